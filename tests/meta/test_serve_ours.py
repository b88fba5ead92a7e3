"""What is a run's own on a host: its processes, folders and locks, and nothing that only looks like them."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest

from tests.support.engine import reaping
from tests.support.engine.process import ProcessEngine, _ports
from tests.support.engine.reaping import (
    MEMORY,
    SESSION,
    SHARED_MEMORY,
    forget,
    kill,
    lock_folder,
    note_memory,
    owner_label,
    owner_lives,
    reap_orphans,
    scratch_folders,
    session_members,
    shared_memory,
    started_at,
    wait_gone,
)

pytestmark = pytest.mark.xdist_group("reaping")
OF_THE_DEAD = "quantkit-1-0-0a0a0a0a"  # a folder whose owner is no more: process 1 began at another time


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of temporary files of our own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that leads a session."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def test_a_folder_of_another_or_half_made_stops_no_run(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporary files are everybody's: only this user's own, of our names, are looked into."""
    half, empty = temporary / "quantkit-1-0-0a0a0a0a", temporary / "quantkit-1-0-0b0b0b0b"
    others = {temporary / "quantkit-a-b-c", temporary / "quantkit-1-0-0a0a0a0a-kept"}
    for folder in (half, empty, *others):
        folder.mkdir()
    (half / SESSION).touch()
    (half / MEMORY).write_text("00:1b 7")
    assert scratch_folders() == {half: "1-0", empty: "1-0"}
    with monkeypatch.context() as another:
        another.setattr("os.getuid", lambda: -1)
        assert scratch_folders() == {}
    assert reap_orphans() == []
    assert set(temporary.iterdir()) == others


def test_a_pid_that_is_used_again_is_another_owner() -> None:
    """An owner is a pid and its start; one that has ended and was not waited for lives no more."""
    pid, started = owner_label().split("-")
    assert owner_lives(f"{pid}-{started}")
    assert not owner_lives(f"{pid}-{int(started) + 1}")
    with subprocess.Popen(["sleep", "600"]) as ended:
        label = f"{ended.pid}-{started_at(ended.pid)}"
        assert owner_lives(label)
        ended.kill()
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert not owner_lives(label)


@pytest.mark.parametrize("later", [0, 1], ids=["its own", "another's by now"])
def test_a_sessions_number_may_be_anothers_by_now(
    temporary: Path, sleeper: "subprocess.Popen[bytes]", later: int
) -> None:
    """What is noted of a session is its leader's pid and start: a pid alone is given to others in time."""
    began = started_at(sleeper.pid)
    assert began is not None
    (temporary / OF_THE_DEAD).mkdir()
    (temporary / OF_THE_DEAD / SESSION).write_text(f"{sleeper.pid}-{began + later}")
    assert ProcessEngine().reap_orphans() == ([] if later else [f"process {sleeper.pid}"])
    assert owner_lives(f"{sleeper.pid}-{began}") == bool(later)
    assert not (temporary / OF_THE_DEAD).exists()


def test_a_session_outlives_its_leader(temporary: Path) -> None:
    """What a leader that is gone has left is still of the session that it led."""
    with subprocess.Popen(
        ["sh", "-c", "sleep 600 > /dev/null & echo $!"], start_new_session=True, stdout=PIPE
    ) as leader:
        assert leader.stdout is not None
        left = int(leader.stdout.read())
    (temporary / OF_THE_DEAD).mkdir()
    (temporary / OF_THE_DEAD / SESSION).write_text(f"{leader.pid}-7")
    assert reap_orphans() == [left]
    assert wait_gone([left], 0) == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to make another user's link")
def test_anothers_link_to_a_folder_of_ours_is_not_ours(temporary: Path) -> None:
    """Temporary files are everybody's: what a link points at says nothing of who made it."""
    (temporary / "kept").mkdir()
    link = temporary / OF_THE_DEAD
    link.symlink_to(temporary / "kept")
    os.lchown(link, 65534, 65534)
    assert scratch_folders() == {}


def test_a_folder_may_go_while_it_is_looked_at(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other runs' servers end when they end."""
    gone, kept = temporary / OF_THE_DEAD, temporary / "quantkit-1-0-0b0b0b0b"
    for folder in (gone, kept):
        folder.mkdir()
    with os.scandir(temporary) as entries:
        listed = list(entries)
    gone.rmdir()
    monkeypatch.setattr("os.scandir", lambda _: nullcontext(listed))
    assert scratch_folders() == {kept: "1-0"}


def test_a_process_may_go_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends between a list and a look is nobody's."""
    for name in ("7", "8", "self"):
        (tmp_path / name).mkdir()
    (tmp_path / "7" / "stat").write_text(Path("/proc/self/stat").read_text())
    monkeypatch.setattr(reaping, "PROC", tmp_path)
    assert session_members(os.getsid(0)) == [7]
    assert (started_at(8), started_at(9)) == (None, None)
    assert shared_memory([8, 9]) == set()
    kill([2**22 + 1])


def test_a_start_is_the_kernels() -> None:
    began = started_at(os.getpid())
    assert began is not None
    seconds = began / os.sysconf("SC_CLK_TCK") + psutil.boot_time()
    assert seconds == pytest.approx(psutil.Process().create_time(), abs=1.5)  # boot is told in whole seconds


def test_what_was_noted_stays_noted(tmp_path: Path) -> None:
    """A process that is noted first and ends may leave a segment that no later look sees."""
    segment = SHARED_MEMORY / f"noted-{os.getpid()}"
    segment.write_bytes(bytes(4096))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    status = segment.stat()
    identity = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x} {status.st_ino}"
    (scratch / MEMORY).write_text(f"{identity} {segment}\n")
    note_memory(scratch, [])
    forget(scratch)
    assert not segment.exists()


def test_the_locks_folder_is_everybodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes first makes it; it stays as it is."""
    monkeypatch.setattr(reaping, "LOCKS", tmp_path / "locks")
    assert lock_folder().stat().st_mode & 0o777 == 0o777
    (tmp_path / "locks").chmod(0o755)
    assert lock_folder().stat().st_mode & 0o777 == 0o755


def test_a_port_is_owned_by_who_listens_on_it() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as other,
    ):
        ports = _ports(os.getpid())
        assert listener.getsockname()[1] in ports
        assert other.getsockname()[1] not in ports
