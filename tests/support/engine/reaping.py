"""Which processes, folders and shared memory are ours, and how they end: one session and one scratch folder a server.

A process's environment is no label: vLLM overwrites it with its process title. Its session id stays. Reads /proc
alone; knows no vllm, no docker, no pytest. Imported by the guardian and the engines.
"""

import os
import re
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")
SCRATCH = "quantkit-"
LOCKS = Path("/tmp") / f"{SCRATCH}locks"
SESSION, MEMORY = "session", "memory"  # files in a scratch folder: its leader's label, what it has mapped
OURS = re.compile(rf"{SCRATCH}(?P<owner>\d+-\d+)-[0-9a-f]{{8}}")
NOTED = re.compile(r"^(?P<identity>\S+ \d+) (?P<path>/.+)$", re.MULTILINE)
OF_SESSION, STARTED = 3, 19  # fields of /proc/PID/stat, from the state on


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty when the process is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def started_at(pid: int) -> int | None:
    """Start time of a live process in clock ticks since boot; None when it is gone or a zombie."""
    fields = _stat(pid)
    return None if not fields or fields[0] == "Z" else int(fields[STARTED])


def session_members(session: int) -> list[int]:
    """Processes of a session. Linux gives its number to no other while one of them is there."""
    pids = (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())
    fields = ((pid, _stat(pid)) for pid in pids)
    return [pid for pid, stat in fields if stat and int(stat[OF_SESSION]) == session]


def owner_label() -> str:
    """This process, as others can recognise it: its pid and its start time, since pids are used again."""
    return f"{os.getpid()}-{started_at(os.getpid())}"


def namespace() -> str:
    """Where our pids mean what we mean: in another namespace they are other processes', dead or alive."""
    return str((PROC / "self/ns/pid").readlink())


def owner_lives(label: str) -> bool:
    """Whether the process that a label names still runs."""
    pid, started = label.split("-")
    return str(started_at(int(pid))) == started


def lock_folder() -> Path:
    """Folder of the locks that all runs on this machine share, whoever's they are and whatever their TMPDIR is."""
    with suppress(FileExistsError):
        LOCKS.mkdir()
        LOCKS.chmod(0o777)
    return LOCKS


def new_scratch() -> Path:
    """A folder for one server's temporary files, made; its name is short, since sockets live in it."""
    folder = Path(tempfile.gettempdir()) / f"{SCRATCH}{owner_label()}-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    return folder


def scratch_folders() -> dict[Path, str]:
    """This user's scratch folders that are there, and the owner of each."""
    found: dict[Path, str] = {}
    with os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            ours = OURS.fullmatch(entry.name)
            if ours and _is_own(entry):
                found[Path(entry.path)] = ours["owner"]
    return found


def _is_own(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_uid == os.getuid()
    except FileNotFoundError:  # of a server that ends just now
        return False


@dataclass(frozen=True)
class Segment:
    """A file under /dev/shm. Another's may get its name: only device and inode say that it is still the same.

    Attributes
    ----------
    identity
        Device and inode, as /proc/PID/maps writes them.
    """

    path: Path
    identity: str

    @property
    def is_there(self) -> bool:
        """Whether it has not been removed, here."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        return self.identity == f"{device} {status.st_ino}"

    def remove(self) -> None:
        """Remove it where it is still there."""
        if self.is_there:
            self.path.unlink(missing_ok=True)


def shared_memory(pids: Iterable[int]) -> set[Segment]:
    """Segments under /dev/shm that these processes have mapped."""
    found: set[Segment] = set()
    for pid in pids:
        try:
            maps = (PROC / str(pid) / "maps").read_text()
        except OSError:
            continue
        lines = (line.split(maxsplit=5) for line in maps.splitlines() if f" {SHARED_MEMORY}/" in line)
        found |= {Segment(Path(fields[5]), f"{fields[3]} {fields[4]}") for fields in lines}
    return found


def _said(note: Path) -> str:
    """What a file of a scratch folder says; empty where its writer was killed before, or the folder is gone by now."""
    try:
        return note.read_text()
    except FileNotFoundError:
        return ""


def note_memory(scratch: Path, pids: Iterable[int]) -> None:
    """Note the segments that a server's processes have, for whoever comes when all of them have been killed."""
    lines = [f"{segment.identity} {segment.path}\n" for segment in shared_memory(pids)]
    with (scratch / MEMORY).open("a") as file:
        file.write("".join(lines))


def forget(scratch: Path) -> None:
    """Remove what a server that has ended left: segments that were noted, and its scratch folder."""
    for noted in NOTED.finditer(_said(scratch / MEMORY)):
        Segment(Path(noted["path"]), noted["identity"]).remove()
    shutil.rmtree(scratch, ignore_errors=True)


def wait_gone(pids: Iterable[int], seconds: float) -> list[int]:
    """Those of the processes that still live after at most so many seconds."""
    deadline = time.monotonic() + seconds
    left = list(pids)
    while (left := [pid for pid in left if started_at(pid) is not None]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def kill(pids: Iterable[int]) -> None:
    """Kill processes, and wait until they are gone."""
    wanted = list(pids)
    for pid in wanted:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    wait_gone(wanted, 5)


def end(pids: Iterable[int], grace_s: float = 0) -> None:
    """End processes: after the grace that they have to end by themselves, killed, and their memory removed.

    Memory is listed before the grace, since who ends by itself may leave some, and again before the kill, since who
    does not may have made more.
    """
    wanted = list(pids)
    segments = shared_memory(wanted)
    left = wait_gone(wanted, grace_s)
    segments |= shared_memory(left)
    kill(left)
    for segment in segments:
        segment.remove()


def _left_in(session: str) -> list[int]:
    """Processes of a session by its leader's label; none where its number has been given to another since."""
    pid, _, started = session.partition("-")
    if not pid:
        return []
    leader = _stat(int(pid))
    # Without leader its number is given to no other while a member is left.
    return [] if leader and leader[STARTED] != started else session_members(int(pid))


def reap(scratch: Path) -> list[int]:
    """End what a server left that nobody guards any more; returns the pids."""
    left = _left_in(_said(scratch / SESSION))
    end(left)
    forget(scratch)
    return left


def reap_orphans() -> list[int]:
    """End what dead runs of ours left behind, and nothing else; returns the pids."""
    ended: list[int] = []
    for folder, label in scratch_folders().items():
        if not owner_lives(label):
            ended += reap(folder)
    return ended
