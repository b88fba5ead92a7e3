"""Which processes, folders and shared memory are ours, and how they end: one session and one scratch folder a server.

A process's environment is no label: vLLM overwrites it with its process title. Its session id stays. Reads /proc
alone; knows no vllm, no docker, no pytest. Imported by the guardian and the engines.
"""

import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")
SCRATCH = "quantkit-"
SESSION = "session"


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty when the process is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def started_at(pid: int) -> int | None:
    """Start time of a live process in clock ticks since boot; None when it is gone or a zombie."""
    fields = _stat(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def session_members(session: int) -> list[int]:
    """Live processes of a session. Linux gives its number to no other while one of them lives."""
    pids = (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())
    fields = ((pid, _stat(pid)) for pid in pids)
    return [pid for pid, stat in fields if stat and stat[0] not in "ZX" and int(stat[3]) == session]


def owner_label() -> str:
    """This process, as others can recognise it: its pid and its start time, since pids are used again."""
    return f"{os.getpid()}-{started_at(os.getpid())}"


def owner_lives(label: str) -> bool:
    """Whether the process that a label names still runs."""
    pid, started = label.split("-")
    return str(started_at(int(pid))) == started


def lock_folder() -> Path:
    """Folder of the locks that runs on this machine share."""
    folder = Path(tempfile.gettempdir()) / f"{SCRATCH}locks"
    folder.mkdir(exist_ok=True)
    return folder


def new_scratch() -> Path:
    """A folder for one server's temporary files, made; its name is short, since sockets live in it."""
    folder = Path(tempfile.gettempdir()) / f"{SCRATCH}{owner_label()}-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    return folder


def scratch_folders() -> dict[Path, str]:
    """The scratch folders that are there, and the owner of each."""
    found = Path(tempfile.gettempdir()).glob(f"{SCRATCH}*-*-*")
    return {folder: folder.name.removeprefix(SCRATCH).rpartition("-")[0] for folder in found}


def shared_memory(pids: Iterable[int]) -> set[Path]:
    """Segments under /dev/shm that these processes have mapped."""
    found: set[Path] = set()
    for pid in pids:
        try:
            maps = (PROC / str(pid) / "maps").read_text()
        except OSError:
            continue
        lines = (line.split(maxsplit=5) for line in maps.splitlines() if str(SHARED_MEMORY) in line)
        found |= {Path(fields[5]) for fields in lines}
    return {path for path in found if path.exists()}


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
        segment.unlink(missing_ok=True)


def reap_orphans() -> list[int]:
    """End what dead runs of ours left behind, and nothing else; returns the pids."""
    ended: list[int] = []
    for folder, label in scratch_folders().items():
        if owner_lives(label):
            continue
        session = folder / SESSION
        left = session_members(int(session.read_text())) if session.exists() else []
        end(left)
        ended += left
        shutil.rmtree(folder, ignore_errors=True)
    return ended
