"""A real vLLM under the judge: an untrained model fails everything, rolled rows are seen, a kill leaves nothing."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from openai import OpenAI
from safetensors.numpy import load_file, save_file

from quantkit.convert import build as write_build
from quantkit.formats import FORMATS, Format
from tests.nano import NANO
from tests.nano.untrained import untrained
from tests.support.answers.asking import ask
from tests.support.answers.checkers import WrongAnswer, check
from tests.support.answers.decoded import decoded_scores
from tests.support.answers.logprobs import ShiftTooLarge, check_shift, scored, shift, token_ids
from tests.support.answers.probes import FOLDER, KINDS, read_probes
from tests.support.engine.base import Launch
from tests.support.engine.process import ProcessEngine
from tests.support.engine.reaping import SHARED_MEMORY, scratch_folders, session_members, wait_gone
from tests.support.plugins.serving import ENGINE_ARGS, ENGINE_ENV, VLLM_ARGS, Server, serve
from tests.support.settings import Boot

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("engine")]
ROOT = Path(__file__).parents[2]
PROBES = read_probes(FOLDER / "nano.toml")
BF16, W8A8 = FORMATS["bf16"], FORMATS["w8a8"]
OWNER = textwrap.dedent("""
    from pathlib import Path
    import time
    from quantkit.formats import FORMATS
    from tests.meta.test_serve_real import serving
    with serving(FORMATS["w8a8"], Path({checkpoint!r}), Path({folder!r})) as server:
        print(server.running.guardian.pid, flush=True)
        time.sleep(600)
""")


@contextmanager
def serving(build: Format, checkpoint: Path, folder: Path) -> Iterator[Server]:
    """A real vLLM that serves a folder, as the serving suite would."""
    args, env = (*VLLM_ARGS, *ENGINE_ARGS["process"]), ENGINE_ENV["process"]
    launch = Launch(build.name, checkpoint, f"quantkit-{build.name}", folder / "boot.log", args, env)
    with serve(ProcessEngine(), launch, Boot(build)) as server:
        yield server


def failures(server: Server, kind: str) -> list[bool]:
    """Whether each question of a kind was answered wrong."""
    found = []
    with OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        for probe in PROBES.of(kind):
            try:
                check(probe, ask(client, probe, PROBES, server.model))
                found.append(False)
            except WrongAnswer:
                found.append(True)
    return found


def served_shift_check(server: Server, checkpoint: Path) -> None:
    """The suite's check of what is served against the files of a checkpoint."""
    tokens = [token_ids(server.base_url, server.model, text) for text in PROBES.sequences]
    served = [scored(server.base_url, server.model, each) for each in tokens]
    check_shift("a build", shift(decoded_scores(checkpoint, tokens).fp32, served), PROBES.bounds["served"])


def roll_rows(checkpoint: Path, module: str) -> None:
    """Roll the rows of a kind of bf16 module by one, in every layer, in place."""
    for file in checkpoint.glob("*.safetensors"):
        tensors = {name: np.array(values) for name, values in load_file(file).items()}
        rolled = {name: np.roll(tensors[name], 1, axis=0) for name in tensors if module in name}
        save_file({**tensors, **rolled}, file, metadata={"format": "pt"})


def test_untrained_fails_everything(tmp_path: Path) -> None:
    """The negative control: random weights on the grid boot well and answer nothing right."""
    write_build(untrained(tmp_path / "source"), tmp_path / "bf16", BF16)
    with serving(BF16, tmp_path / "bf16", tmp_path) as server:
        assert {kind: all(failures(server, kind)) for kind in KINDS} == dict.fromkeys(KINDS, True)
        served_shift_check(server, tmp_path / "bf16")


def test_rolled_rows_are_seen(built: Callable[[Format], Path], tmp_path: Path) -> None:
    """Rows of every down_proj rolled by one: answers go wrong, and what is served is not what was built."""
    good = built(BF16)
    write_build(NANO, tmp_path / "bf16", BF16)
    roll_rows(tmp_path / "bf16", "mlp.down_proj")
    with serving(BF16, tmp_path / "bf16", tmp_path) as server:
        assert any(any(failures(server, kind)) for kind in KINDS)
        with pytest.raises(ShiftTooLarge):
            served_shift_check(server, good)


def test_killed_run_leaves_no_vllm(built: Callable[[Format], Path], tmp_path: Path) -> None:
    """kill -9 of the run that serves: every process of vLLM, its shared memory and its files are gone."""
    memory = set(SHARED_MEMORY.iterdir())
    script = OWNER.format(checkpoint=str(built(W8A8)), folder=str(tmp_path))
    owner = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        members = session_members(int(owner.stdout.readline()))
    assert len(members) >= 4  # guardian, API server, engine core, worker
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    assert wait_gone(members, 30) == []
    assert not [label for label in scratch_folders().values() if label.startswith(f"{owner.pid}-")]
    assert set(SHARED_MEMORY.iterdir()) <= memory
