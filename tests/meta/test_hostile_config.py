"""Configs made to hurt beside weights that are sound, and names without end: judged whole, in bounded time and memory.

One child process judges them all, one after another, and measures itself.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quantkit.convert import build
from quantkit.formats import FORMATS
from tests.meta.toy import Raw, make_toy, read_draft

LIMIT_S = 10.0  # of the processor: ten times what is promised, since other machines are slower
LIMIT_BYTES = 300 << 20
CHILD = """
import contextlib, io, re, sys, time
from pathlib import Path
from quantkit.cli import main
for folder in sys.argv[2:]:
    began, said = time.process_time(), io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        status = main(["verify", sys.argv[1], folder, "--json", "-"])
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
    first = said.getvalue().partition("\\n")[0][:300]
    print(status, time.process_time() - began, peak[1], first, sep="\\t")
"""


def _group(section: dict[str, Any]) -> dict[str, Any]:
    group: dict[str, Any] = next(iter(section["config_groups"].values()))
    return group


def many_groups(section: dict[str, Any]) -> None:
    """More groups than are tried."""
    section["config_groups"] = {f"group_{n}": _group(section) for n in range(1_000)}


def costly_groups(section: dict[str, Any]) -> None:
    """As many groups as are tried, each with patterns that alone are cheap enough."""
    costly = _group(section) | {"targets": [f"re:.*.*.*{n}z$" for n in range(4)]}
    section["config_groups"] = {f"group_{n}": costly for n in range(64)}


def many_expressions(section: dict[str, Any]) -> None:
    """Regular expressions enough to take minutes to compile."""
    section["ignore"] = [f"re:{'(?:a|b)' * 60}{n}" for n in range(400_000 // 200)]


def many_ignored(section: dict[str, Any]) -> None:
    """Names enough to fill the memory with findings."""
    section["ignore"] = [f"m{n}" for n in range(200_000)]


def many_targets(section: dict[str, Any]) -> None:
    """As many targets as are read, each of which matches nothing."""
    _group(section)["targets"] += [f"m{n}" for n in range(49_000)]


def endless(section: dict[str, Any]) -> None:
    """A pattern that backtracks for ever."""
    section["ignore"] = ["re:(?:a*)*(?:.+.+)+$"]


def many_cuts(section: dict[str, Any]) -> None:
    """A pattern that cuts a name in as many ways as there are."""
    section["ignore"] = ["re:" + ".*" * 12 + "z"]


def many_ways(section: dict[str, Any]) -> None:
    """A pattern of alternatives of alternatives."""
    section["ignore"] = ["re:" + "(?:.|m)" * 40 + "z"]


def many_keys(section: dict[str, Any]) -> None:
    """Keys that no loader knows."""
    section |= {f"k{n}": n for n in range(200_000)}


def name_of_megabytes(section: dict[str, Any]) -> None:
    """A group whose name would stand in a finding for each module."""
    section["config_groups"] = {"g" * (8 << 20): _group(section) | {"targets": ["re:.*"]}}


def escapes(section: dict[str, Any]) -> None:
    """A key that clears the terminal and writes a verdict of its own."""
    section["\x1b[2J\ngood: all of it"] = 1


def long_names(section: dict[str, Any]) -> None:
    """A key of megabytes."""
    section["k" * (8 << 20)] = "v" * (8 << 20)


def many_tensors(good: Path, folder: Path) -> Path:
    """Weights of as many tensors as are read, each of which nothing implies."""
    draft = read_draft(good)
    for number in range(49_000):
        draft.put(f"model.layers.{number}.self_attn.q_proj.weight", Raw("BF16", (0,), bytearray()))
    return draft.save(folder)


CONFIGS = (
    many_groups,
    costly_groups,
    many_expressions,
    many_ignored,
    many_targets,
    endless,
    many_cuts,
    many_ways,
    many_keys,
    long_names,
    name_of_megabytes,
    escapes,
)


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, float, int, str]]:
    """Status, seconds, peak bytes so far and first sentence for each config, after those of the build as it is."""
    folder = tmp_path_factory.mktemp("configs")
    source = make_toy(folder / "source")
    build(source, folder / "good", FORMATS["q4w4a16"])
    folders = [folder / "good", many_tensors(folder / "good", folder / "many_tensors")]
    for spoil in CONFIGS:
        draft = read_draft(folder / "good")
        spoil(draft.config["quantization_config"])
        folders.append(draft.save(folder / spoil.__name__))
        assert len(json.dumps(draft.config)) < 32 << 20
    command = [sys.executable, "-c", CHILD, str(source), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    lines = [line.split("\t") for line in done.stdout.splitlines() if line.count("\t") == 3]
    return {
        path.name: (int(status), float(seconds), int(kib) << 10, first)
        for path, (status, seconds, kib, first) in zip(folders, lines, strict=True)
    }


def test_the_build_itself_is_good(verdicts: dict[str, tuple[int, float, int, str]]) -> None:
    assert verdicts["good"][0] == 0


@pytest.mark.parametrize("spoil", CONFIGS, ids=lambda spoil: spoil.__name__)
def test_a_hostile_config_is_refused_within_bounds(
    verdicts: dict[str, tuple[int, float, int, str]], spoil: Any
) -> None:
    status, seconds, peak_bytes, first = verdicts[spoil.__name__]
    assert status in (1, 2)
    assert "quantization_config" in first
    assert first.isprintable()
    assert seconds <= LIMIT_S
    assert peak_bytes <= LIMIT_BYTES


def test_very_many_tensors_are_refused_within_bounds(
    verdicts: dict[str, tuple[int, float, int, str]],
) -> None:
    status, seconds, peak_bytes, first = verdicts["many_tensors"]
    assert status == 1
    assert "model.layers.0.self_attn.q_proj.weight" in first
    assert "49,000 times" in first
    assert seconds <= LIMIT_S
    assert peak_bytes <= LIMIT_BYTES
