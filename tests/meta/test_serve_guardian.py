"""What a server is given, how it is asked to end, and how its death is told: servers of a few lines, for real."""

import json
import os
import re
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine import process
from tests.support.engine.base import Launch, ServerDied
from tests.support.engine.process import Process, ProcessEngine
from tests.support.engine.reaping import SESSION, owner_label, scratch_folders, wait_gone

pytestmark = pytest.mark.xdist_group("reaping")
PLAIN = textwrap.dedent("""
    import json, os, signal, sys, tempfile, time
    def end(*_):
        time.sleep(0.5)
        print("bye")
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    facts = {"stdin": sys.stdin.read(), "tmp": tempfile.gettempdir(), **os.environ}
    print(json.dumps(facts))
    print("up", file=sys.stderr, flush=True)
    time.sleep(600)
""")
Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers from their code, and stops them."""
    started: list[Process] = []

    def make(code: str = PLAIN, grace_s: float = 60) -> Process:
        log = tmp_path / "run" / "boot" / "x.log"
        launch = Launch("x", tmp_path, "x", log, env={"A": "b", "DO_NOT_TRACK": "0"})
        started.append(ProcessEngine((sys.executable, "-c", code), grace_s=grace_s).start(launch))
        return started[-1]

    yield make
    for running in started:
        running.stop()


def said(running: Process, words: str) -> str:
    """The log, when it has these words."""
    deadline = time.monotonic() + 60
    while words not in (text := running.launch.log.read_text()):
        assert time.monotonic() <= deadline, text
        time.sleep(0.02)
    return text


def died(running: Process) -> str:
    """How its death is told."""
    deadline = time.monotonic() + 60
    while time.monotonic() <= deadline:
        try:
            running.alive()
        except ServerDied as ended:
            return str(ended).partition("\n")[0]
        time.sleep(0.02)
    raise AssertionError("it lives")


def test_what_a_server_is_given(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An end of input, a folder of its own, the run's variables; no secret, and the log of no earlier start.

    What it prints is in the log at once, so that a death does not swallow it.
    """
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "run" / "boot" / "x.log"
    for _ in range(2):
        running = start()
        facts: dict[str, Any] = json.loads(said(running, "up").splitlines()[0])
        assert facts["tmp"] == str(running.scratch)
        assert scratch_folders()[running.scratch] == owner_label()
        assert running.scratch.stat().st_mode & 0o777 == 0o700
        assert (facts["stdin"], facts["A"], facts["DO_NOT_TRACK"]) == ("", "b", "0")
        assert facts["HF_HUB_OFFLINE"] == "1"
        assert "HF_TOKEN" not in facts
        running.stop()
        assert not running.scratch.exists()
    assert log.read_text().count("up\n") == 1


def test_a_server_is_asked_to_end_and_given_time(start: Start) -> None:
    running = start()
    said(running, "up")
    running.stop()
    said(running, "bye")


def test_signals_to_its_guardian_do_not_touch_it(start: Start) -> None:
    """Who ends all processes of a job ends pytest too, and that is when the guardian acts."""
    running = start()
    said(running, "up")
    (server,) = running.pids()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(running.guardian.pid, number)
    assert wait_gone([running.guardian.pid], 0.5)
    running.alive()
    assert running.pids() == (server,)
    ignored = re.search(r"SigIgn:\s*(\w+)", Path(f"/proc/{server}/status").read_text())
    assert ignored is not None
    of_ours = 1 << (signal.SIGINT - 1) | 1 << (signal.SIGHUP - 1)
    assert not int(ignored[1], 16) & of_ours


ENDS = {
    "by itself": ("raise SystemExit(3)", "got exit code 3"),
    "with a high status": ("raise SystemExit(250)", "got exit code 250"),
    "killed": ("import os; os.kill(os.getpid(), 9)", "got signal 9"),
}


@pytest.mark.parametrize(("code", "words"), ENDS.values(), ids=ENDS)
def test_how_it_ended_is_told(start: Start, code: str, words: str) -> None:
    assert died(start(code)).endswith(words)


def test_the_death_of_its_guardian_is_told(start: Start) -> None:
    running = start()
    said(running, "up")
    (server,) = running.pids()
    running.guardian.kill()
    assert died(running).endswith("got signal 9")
    running.stop()
    assert wait_gone([server], 0) == []
    assert not running.scratch.exists()


@pytest.mark.parametrize("noted", [True, False])
def test_a_guardian_that_does_not_answer_is_ended_with_its_server(
    start: Start, monkeypatch: pytest.MonkeyPatch, noted: bool
) -> None:
    """Whether or not it has noted its session by then."""
    monkeypatch.setattr(process, "GRACE_S", 0.1)
    monkeypatch.setattr(process, "STOP_S", 0.1)
    running = start()
    said(running, "up")
    (server,) = running.pids()
    os.kill(running.guardian.pid, signal.SIGSTOP)
    if not noted:
        (running.scratch / SESSION).unlink()
    running.stop()
    assert wait_gone([running.guardian.pid, server], 10) == []
    assert not running.scratch.exists()


def test_a_dead_servers_children_get_no_grace(start: Start) -> None:
    """Else its death would be known only after it."""
    child = "import os, time\nif os.fork():\n    raise SystemExit(4)\ntime.sleep(600)"
    assert died(start(child, grace_s=3600)).endswith("got exit code 4")


def test_a_process_that_ended_has_no_port(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    running = start()
    monkeypatch.setattr(Process, "pids", lambda _: (2**22 + 1,))
    assert not running.owns_port()
