"""Runs the timing program where the card is: a fresh python of this host, or the pinned container.

Ships the folder `runner` as one file, reads its JSON lines as they come, and keeps them beside the run.
"""

import json
import os
import subprocess
import sys
import threading
import zipapp
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from quantkit.errors import QuantkitError
from quantkit.machines import Machine
from tests.support.engine.container import OWNER
from tests.support.engine.reaping import owner_label
from tests.support.host.facts import container_arguments

Line = dict[str, Any]
HERE = Path(__file__).parent
IN_CONTAINER = "/quantkit-gemm.pyz"
TAIL_LINES = 5


class TimingFailed(QuantkitError):
    """The timing program ended without its last line."""


def bundle(target: Path) -> Path:
    """The folder `runner` as one file that any python with torch can run."""
    target.parent.mkdir(parents=True, exist_ok=True)
    zipapp.create_archive(
        HERE,
        target,
        main="runner.main:main",
        filter=lambda at: at.parts[0] == "runner" and at.suffix != ".pyc",
    )
    return target


def command(machine: Machine, image: str, program: Path, plan: Line) -> tuple[str, ...]:
    """What runs the program: this python where the engine is a process, else a container of the image.

    A container sees the card and nothing else: no network, and the program alone mounted. Its label is that of the
    run's servers, so that a later run ends it where this one was killed.
    """
    told = json.dumps(plan)
    if machine.engine != "docker" or not image:
        return (sys.executable, str(program), told)
    return (
        *("docker", "run", "--rm", "--init", "--label", f"{OWNER}={owner_label()}"),
        *("--network", "none", "--ipc", "host"),
        *("--security-opt", "seccomp=unconfined", *container_arguments(machine)),
        *("--volume", f"{program}:{IN_CONTAINER}:ro"),
        *(image, IN_CONTAINER, told),
    )


def environment(cores: Sequence[int]) -> dict[str, str]:
    """This process's environment with one pinned thread a core."""
    pinned = {"OMP_NUM_THREADS": str(len(cores)), "OMP_PROC_BIND": "true", "OMP_PLACES": "threads"}
    return {**os.environ, **pinned}


def kept_lines(path: Path, plan: Line) -> list[Line] | None:
    """The results of an earlier process of this run, if it ended and had the same plan."""
    if not path.exists():
        return None
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    same = bool(lines) and lines[0] == {"kind": "plan", **plan}
    return lines[1:] if same and lines[-1]["kind"] == "end" else None


def run_program(
    argv: Sequence[str],
    plan: Line,
    path: Path,
    deadline_s: float,
    tell: Callable[[Line], None] = lambda line: None,
) -> list[Line]:
    """Run the program, keeping its lines at `path` as they come, and telling each to who waits.

    Raises
    ------
    TimingFailed
        Where it did not end with its last line: its exit code and what it said last.
    """
    if (kept := kept_lines(path, plan)) is not None:
        return kept
    path.parent.mkdir(parents=True, exist_ok=True)
    log = path.with_suffix(".log")
    lines: list[Line] = []
    with path.open("w", encoding="utf-8") as out, log.open("w", encoding="utf-8") as said:
        print(json.dumps({"kind": "plan", **plan}), file=out, flush=True)
        env = environment(sorted(os.sched_getaffinity(0)))
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=said, text=True, env=env) as program:
            late = threading.Timer(deadline_s, program.terminate)
            late.start()
            try:
                assert program.stdout is not None
                for text in program.stdout:
                    out.write(text)
                    out.flush()
                    lines.append(json.loads(text))
                    tell(lines[-1])
            except BaseException:
                program.terminate()
                raise
            finally:
                late.cancel()
    if not lines or lines[-1] != {"kind": "end", "lines": len(lines) - 1}:
        last = " / ".join(log.read_text(encoding="utf-8").splitlines()[-TAIL_LINES:])
        raise TimingFailed(
            "timing program",
            got=f"exit code {program.returncode} after {len(lines)} results: {last}",
            expected=f"its last line within {deadline_s:g} s",
        )
    return lines
