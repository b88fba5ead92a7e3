"""What an engine is to the suites: a server that is launched, watched and stopped; and its typed errors.

Knows neither processes nor containers: `process` and `container` do. Imports no suite.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quantkit.errors import QuantkitError

TAIL_LINES = 80


class EngineError(QuantkitError):
    """The engine cannot be started as asked."""


class PortInUse(EngineError):
    """Something else already answers, or listens, where the server should."""


class CardTaken(EngineError):
    """Another run has the card."""


class ServerError(QuantkitError):
    """A server did not do what it must; carries the end of its log."""

    def __init__(self, what: str, *, log: Path, **fields: object) -> None:
        super().__init__(what, **fields)  # type: ignore[arg-type]
        self.log = log
        self.tail = tail(log)

    def __str__(self) -> str:
        return f"{super().__str__()}\n--- last lines of {self.log}\n{self.tail}"


class ServerDied(ServerError):
    """Our own process or container ended."""


class ServerLoops(ServerError):
    """The server starts again and again."""


class ServerUnhealthy(ServerError):
    """It answers, and will not serve."""


class ServerSlow(ServerError):
    """Its deadline is over and it is not ready."""


class ForeignServer(ServerError):
    """What answers on the port is not what we started."""


class WrongModel(ServerError):
    """It serves another model."""


class NoFirstToken(ServerError):
    """It says that it is ready, and cannot make one token."""


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log; empty when there is none."""
    if not log.exists():
        return ""
    with log.open(errors="replace") as file:
        return "".join(deque(file, lines)).rstrip("\n")


@dataclass(frozen=True)
class Launch:
    """One server to start.

    Attributes
    ----------
    name
        The boot's name, for messages and files.
    checkpoint
        Folder of the build.
    model
        Name that the server must serve it under.
    args, env
        Further arguments and variables for vLLM, the same for every build of a run.
    log
        File that takes the whole log.
    """

    name: str
    checkpoint: Path
    model: str
    log: Path
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


class Running(ABC):
    """A server that was launched."""

    def __init__(self, launch: Launch, base_url: str) -> None:
        self.launch = launch
        self.base_url = base_url

    @abstractmethod
    def alive(self) -> None:
        """Return while our own process or container runs.

        Raises
        ------
        ServerDied
            With its exit code and last log lines.
        """

    @abstractmethod
    def owns_port(self) -> bool:
        """Whether it is our server that listens on the port."""

    @abstractmethod
    def pids(self) -> tuple[int, ...]:
        """Its processes on this host."""

    @abstractmethod
    def stop(self) -> None:
        """End it whole; safe to call again."""


class Engine(ABC):
    """A way to start servers."""

    @abstractmethod
    def start(self, launch: Launch) -> Running:
        """Start a server and return at once.

        Raises
        ------
        EngineError
            Where it cannot even be tried.
        """

    @abstractmethod
    def reap_orphans(self) -> list[str]:
        """End what dead runs of ours left behind, and nothing else; returns what it was."""

    def close(self) -> None:
        """Let go of what the engine holds open; servers are not ended."""
        return
