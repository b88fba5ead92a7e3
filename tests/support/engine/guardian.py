"""A small process between pytest and a server: when pytest is gone, by whatever death, so is the whole server.

Run as ``python -m tests.support.engine.guardian SCRATCH GRACE_S COMMAND...`` as the leader of a session, with one end
of a pipe as standard input: end of file means that the owner is gone, or wants the server stopped. Standard library
only.
"""

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.engine.reaping import (
    SESSION,
    SHARED_MEMORY,
    end,
    forget,
    note_memory,
    owner_label,
    session_members,
)

PR_SET_PDEATHSIG = 1
LOOK_S, MAPPED_S = 1.0, 0.1  # between looks at /dev/shm, and from a segment's making until it is mapped


def _die_with_the_guardian() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _wait(server: "subprocess.Popen[bytes]", scratch: Path) -> None:
    """Until the owner closes the pipe or the server ends; meanwhile its shared memory is noted as it changes."""
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        selector.register(os.pidfd_open(server.pid), selectors.EVENT_READ)
        there: set[Path] = set()
        while not selector.select(LOOK_S):
            if there != (there := set(SHARED_MEMORY.glob("*"))):
                time.sleep(MAPPED_S)
                note_memory(scratch, session_members(os.getpid()))


def guard(scratch: Path, grace_s: float, command: list[str]) -> int:
    """Run the command until it ends or the owner is gone, then end its whole session.

    Returns its exit code, or 128 and the signal's number, as a shell does.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the server would inherit
    (scratch / SESSION).write_text(owner_label())
    environment = {**os.environ, "TMPDIR": str(scratch)}
    server = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, env=environment, preexec_fn=_die_with_the_guardian
    )
    _wait(server, scratch)
    died = server.poll() is not None
    server.terminate()
    end((pid for pid in session_members(os.getpid()) if pid != os.getpid()), 0 if died else grace_s)
    forget(scratch)
    code = server.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    raise SystemExit(guard(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
