"""Why the gate is code of our own: a general snapshot plugin ends green on five things that it must not pass.

The plugin alone in real pytest runs, then the gate's verdict on the same figures.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from quantkit.errors import BadRecord
from tests.meta.small_project import pytest_in
from tests.support.gate.baseline import Entry, baseline_for, key_of, path_of, read_entries, write_all
from tests.support.gate.regen import RegenRefused, new_entries, planned_files
from tests.support.gate.verdicts import Seen, Verdict, judge_build
from tests.support.miniatures.sweep_runs import HEADER, finished_run

SUITE = """
import pytest

NOW = {"missing": 50.0, "nan": float("nan"), "other_machine": 100.0, "zero": 0.0, "half": 50.0}

@pytest.mark.parametrize("case", NOW)
def test_case(case, data_regression):
    data_regression.check({"8x128": NOW[case]}, basename=case)
"""
STORED = {"nan": ".nan", "other_machine": "100.0", "zero": "100.0", "half": "100.0"}


def plugin_run(folder: Path, *args: str) -> dict[str, bool]:
    """One run of the plugin alone: which cases passed."""
    _, output = pytest_in(folder, "-p", "no:xdist", "-vv", *args)
    lines = [line for line in output.splitlines() if "::test_case[" in line and line[-1] == "]"]
    return {line.split("[")[1].split("]")[0]: " PASSED " in line for line in lines}


@pytest.mark.slow
def test_the_plugin_alone_passes_five(tmp_path: Path) -> None:
    (tmp_path / "test_it").mkdir()
    (tmp_path / "test_it.py").write_text(SUITE)
    for case, value in STORED.items():
        (tmp_path / f"test_it/{case}.yml").write_text(f"8x128: {value}\n")
    first = plugin_run(tmp_path)
    assert first == {"missing": False, "nan": True, "other_machine": True, "zero": False, "half": False}
    assert plugin_run(tmp_path, "--regen-all", "-k", "half") == {"half": True}
    assert plugin_run(tmp_path, "--force-regen", "-k", "zero") == {"zero": False}
    assert plugin_run(tmp_path) == dict.fromkeys(first, True)


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[], list[Entry]]:
    """Entries of a baseline of 100 tok/s; read anew each time."""
    root = tmp_path / "baselines"
    record = finished_run(tmp_path / "run", {"fp8": {"8x128": (100.0, 100.0, 100.0)}})
    write_all(planned_files("cpu", new_entries({"run": record}, ""), root)[0])
    return lambda: read_entries(path_of("cpu", "fp8", root))


def verdict(entries: list[Entry], now: float, **key: str) -> Verdict:
    """The gate's verdict of one cell."""
    baseline = baseline_for(entries, {**key_of(HEADER), **key})
    (found,) = judge_build("fp8", {"8x128": Seen((now,) * 3)}, baseline, enforced=True)
    return found


def test_the_gate_passes_none_of_them(stored: Callable[[], list[Entry]], tmp_path: Path) -> None:
    assert [verdict([], 50.0).verdict for _ in range(2)] == ["new", "new"]
    assert verdict(stored(), 100.0, card="another").verdict == "not_comparable"
    assert verdict(stored(), 50.0).is_regression
    for index, worse in enumerate((0.0, 50.0)):
        record = finished_run(tmp_path / f"worse{index}", {"fp8": {"8x128": (worse,) * 3}})
        with pytest.raises(RegenRefused):
            planned_files("cpu", new_entries({"run": record}, ""), tmp_path / "baselines")
    path = path_of("cpu", "fp8", tmp_path / "baselines")
    given = json.loads(path.read_text())
    given["entries"][0]["cells"]["8x128"]["boots"] = [[float("nan")] * 3]
    path.write_text(json.dumps(given))
    with pytest.raises(BadRecord):
        stored()
