"""Nothing is left behind: after a pass, a failure, Ctrl-C, kill -9 of the owner, and of owner and guardian both."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.engine.base import Launch
from tests.support.engine.process import ProcessEngine
from tests.support.engine.reaping import (
    MEMORY,
    SESSION,
    SHARED_MEMORY,
    end,
    kill,
    reap_orphans,
    scratch_folders,
    session_members,
    shared_memory,
    started_at,
    wait_gone,
)

pytestmark = pytest.mark.xdist_group(
    "reaping"
)  # one worker: a test that reaps would end what another left on purpose

ROOT = Path(__file__).parents[2]
# What an engine is at its worst: deaf to SIGTERM, with a child as deaf, a new name, and shared memory in both.
STUBBORN = textwrap.dedent("""
    import os, signal, sys, time
    from multiprocessing.shared_memory import SharedMemory
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    memory = SharedMemory(create=True, size=4096)
    if not os.fork():
        os.setpgid(0, 0)
    with open("/proc/self/comm", "w") as name:
        name.write("vLLM) Z 1 (")
    print("up", os.getpid(), flush=True)
    time.sleep(600)
""")
# Makes shared memory when told to, while the tracker that would remove it stands beside it and is killed with it.
LATE = textwrap.dedent("""
    import sys
    from multiprocessing import resource_tracker
    from multiprocessing.shared_memory import SharedMemory
    resource_tracker.ensure_running()
    print("up", flush=True)
    sys.stdin.readline()
    memory = SharedMemory(create=True, size=4096)
    print(memory.name, flush=True)
    sys.stdin.readline()
""")
MAPS = textwrap.dedent("""
    import mmap, sys, time
    file = open(sys.argv[1], "r+b")
    memory = mmap.mmap(file.fileno(), 4096)
    print("up", flush=True)
    time.sleep(600)
""")
OWNER = textwrap.dedent("""
    import signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
    from pathlib import Path
    from tests.support.engine.base import Launch
    from tests.support.engine.process import ProcessEngine
    running = ProcessEngine((sys.executable, "-c", {stubborn!r}), grace_s=0.5).start(
        Launch("x", Path({folder!r}), "x", Path({folder!r}) / "boot.log"))
    try:
        print(running.guardian.pid, flush=True)
        time.sleep(600)
    finally:
        running.stop()
""")


def stubborn(folder: Path) -> Launch:
    """A launch whose log lies in the folder."""
    return Launch("x", folder, "x", folder / "boot.log")


def wait_for(holds: Callable[[], bool]) -> None:
    """Until something holds."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() <= deadline
        time.sleep(0.05)


def wait_up(log: Path) -> None:
    """Until both processes have said that they are up."""
    wait_for(lambda: log.exists() and log.read_text().count("up ") >= 2)


@pytest.fixture
def owner(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process like pytest's that has started a stubborn server; killed at the end."""
    script = OWNER.format(stubborn=STUBBORN, folder=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    wait_up(tmp_path / "boot.log")
    yield process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def guardian_of(owner: "subprocess.Popen[str]") -> int:
    """The guardian's pid, as the owner printed it."""
    assert owner.stdout is not None
    return int(owner.stdout.readline())


def scratch_of(guardian: int) -> Path:
    """The scratch folder of a guardian's server."""
    sessions = {
        path: path / SESSION for path in scratch_folders()
    }  # of all runs on this host, which come and go
    (folder,) = (
        path
        for path, file in sessions.items()
        if file.exists() and file.read_text().startswith(f"{guardian}-")
    )
    return folder


def test_stop_ends_a_stubborn_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deaf processes, their shared memory and their scratch folder are gone when `stop` returns."""
    running = ProcessEngine((sys.executable, "-c", STUBBORN), grace_s=0.5).start(stubborn(tmp_path))
    wait_up(tmp_path / "boot.log")
    members, scratch = session_members(running.guardian.pid), scratch_of(running.guardian.pid)
    memory = shared_memory(members)
    said = {int(pid) for pid in re.findall(r"up (\d+)", (tmp_path / "boot.log").read_text())}
    assert len(said) == 2
    assert said <= set(running.pids())
    assert memory
    running.stop()
    running.stop()
    assert wait_gone(members, 0) == []
    assert not scratch.exists()
    assert not [segment for segment in memory if segment.is_there]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_death_of_the_owner(owner: "subprocess.Popen[str]", how: signal.Signals) -> None:
    """However the owner ends, its server ends with it, and nobody has to come by."""
    guardian = guardian_of(owner)
    members, scratch = session_members(guardian), scratch_of(guardian)
    memory = shared_memory(members)
    owner.send_signal(how)
    owner.wait()
    assert wait_gone(members, 20) == []
    assert not scratch.exists()
    assert not [segment for segment in memory if segment.is_there]


def test_next_run_reaps(owner: "subprocess.Popen[str]") -> None:
    """Where the guardian was killed too, the next run ends what is left, and nothing of a living owner."""
    guardian = guardian_of(owner)
    members, scratch = session_members(guardian), scratch_of(guardian)
    assert not set(reap_orphans()) & set(members)  # it may meet what other dead runs left on this host
    assert len(session_members(guardian)) == len(members)
    os.kill(owner.pid, signal.SIGSTOP)
    server = min((pid for pid in members if pid != guardian), key=lambda pid: (started_at(pid), pid))
    kill([guardian])
    assert wait_gone([server], 10) == []
    owner.kill()
    owner.wait()
    left = wait_gone(members, 0.2)
    memory = shared_memory(left)
    assert left
    assert scratch.exists()
    assert set(left) <= set(reap_orphans())
    assert wait_gone(members, 0) == []
    assert not scratch.exists()
    assert not [segment for segment in memory if segment.is_there]


@pytest.mark.parametrize("guarded", [True, False], ids=["but the guardian", "with the guardian"])
def test_memory_of_processes_that_are_killed_together(
    owner: "subprocess.Popen[str]", request: pytest.FixtureRequest, guarded: bool
) -> None:
    """Nobody lives whose memory could be asked for: what was noted is removed, and what has its name now is not."""
    guardian = guardian_of(owner)
    members, scratch = session_members(guardian), scratch_of(guardian)
    memory, note = shared_memory(members), scratch / MEMORY
    assert memory
    wait_for(lambda: note.exists() and all(str(segment.path) in note.read_text() for segment in memory))
    other = SHARED_MEMORY / f"other-{os.getpid()}"
    other.touch()
    request.addfinalizer(other.unlink)
    with note.open("a") as file:
        file.write(f"00:00 1 {other}\n")
    together = [pid for pid in members if pid != guardian] if guarded else [guardian, *members, owner.pid]
    for pid in together:
        os.kill(pid, signal.SIGSTOP)
    kill(together)
    if not guarded:
        assert all(segment.is_there for segment in memory)
        reap_orphans()
    wait_for(lambda: not scratch.exists())
    assert not [segment for segment in memory if segment.is_there]
    assert other.exists()


def test_memory_made_during_the_grace_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are killed at once, and with them who would have removed what they made after being asked to end."""
    process = subprocess.Popen(
        [sys.executable, "-c", LATE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process, process.stdin as told, process.stdout as said:
        assert said.readline() == "up\n"
        members = session_members(process.pid)
        made: list[Path] = []

        def grace(pids: list[int], seconds: float) -> list[int]:
            if not made:
                told.write("now\n")
                told.flush()
                made.append(SHARED_MEMORY / said.readline().strip())
            return wait_gone(pids, 0 if pids == members else seconds)

        monkeypatch.setattr("tests.support.engine.reaping.wait_gone", grace)
        end(members, grace_s=1)
    (segment,) = made
    assert not segment.exists()


def test_memory_of_who_ends_in_the_grace_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends when asked may leave what it had mapped."""
    segment = SHARED_MEMORY / f"left by {os.getpid()}"
    segment.write_bytes(bytes(4096))
    with subprocess.Popen([sys.executable, "-c", MAPS, segment], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"

        def grace(pids: list[int], seconds: float) -> list[int]:
            process.terminate()
            return wait_gone(pids, 20)

        monkeypatch.setattr("tests.support.engine.reaping.wait_gone", grace)
        end([process.pid], grace_s=1)
    assert not segment.exists()


def test_server_that_dies_takes_its_children_along(tmp_path: Path) -> None:
    """A child whose parent died is ended by the guardian."""
    running = ProcessEngine((sys.executable, "-c", STUBBORN), grace_s=0.5).start(stubborn(tmp_path))
    wait_up(tmp_path / "boot.log")
    members = session_members(running.guardian.pid)
    first = min(running.pids(), key=lambda pid: (started_at(pid), pid))
    kill([first])
    assert wait_gone(members, 10) == []
    running.stop()
