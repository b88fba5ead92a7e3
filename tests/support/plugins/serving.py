"""pytest plugin: one server per boot, started once for all suites that ask for it, watched, and ended whole.

Joins engine, readiness, boot log and metrics. Imports no suite.
"""

import re
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock, Timeout

from quantkit.checkpoint import Checkpoint
from quantkit.formats import Format
from quantkit.machines import Machine
from tests.support.boot.log import BootFacts, BootLog
from tests.support.boot.metrics import Metrics
from tests.support.engine.base import CardTaken, Engine, Launch, Running
from tests.support.engine.process import SERVER, ProcessEngine
from tests.support.engine.readiness import Patience, ask, see_whether_it_died, wait_ready
from tests.support.engine.reaping import lock_folder
from tests.support.host.card_memory import wait_fallen
from tests.support.host.facts import Host
from tests.support.settings import Boot, Settings

if TYPE_CHECKING:
    from openai import OpenAI  # a second to import, which most runs of pytest need not spend

VLLM_ARGS = (
    "--enable-auto-tool-choice",
    "--reasoning-parser", "gemma4",
    "--tool-call-parser", "gemma4",
    "--disable-uvicorn-access-log",
)  # fmt: skip
ENGINE_ARGS = {
    "process": (
        "--max-model-len", "9216",  # the largest cell of the article: 8,192 in, 512 out
        "--enforce-eager",
        "--model-loader-extra-config", '{"enable_weights_track": true}',  # a missing tensor is then an error
    ),
    "docker": (
        "--max-model-len", "32768",
        "--gpu-memory-utilization", "0.90",
    ),
}  # fmt: skip
KV_POOL = "VLLM_CPU_KVCACHE_SPACE"  # GiB
# Where a processor has AMX, vLLM rounds the inputs of int4 products to 8 bits: another format than the one built.
# Of an eager engine torch would compile one thing, the ranks of log probabilities, in 15 seconds at every boot.
ENGINE_ENV = {
    "process": {KV_POOL: "1", "VLLM_CPU_INT4_W4A8": "0", "TORCH_COMPILE_DISABLE": "1"},
    "docker": {},
}
# Of a card that two servers share, each takes its half of what one takes alone.
HALF = {"process": (), "docker": ("--gpu-memory-utilization", "0.45")}
# The one exception: a checkpoint with towers serves text only, as the others do.
MULTIMODAL_ARGS = ("--limit-mm-per-prompt", '{"image": 0, "audio": 0}')
LOCK_S = 1800.0  # a run of ten builds holds its card for less


@dataclass
class Server:
    """A server that is ready.

    Attributes
    ----------
    boot
        Which build, which start.
    checkpoint
        Folder of the build that it serves.
    boot_s
        Seconds from start to the first token.
    """

    boot: Boot
    checkpoint: Path
    running: Running
    boot_s: float

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT``, without ``/v1``."""
        return self.running.base_url

    @property
    def model(self) -> str:
        """The served name."""
        return self.running.launch.model

    @property
    def pids(self) -> tuple[int, ...]:
        """The server's processes on this host."""
        return self.running.pids()

    def alive(self) -> None:
        """Return while our own server runs.

        Raises
        ------
        ServerDied
            With its exit code and last log lines.
        """
        self.running.alive()

    def metrics(self) -> Metrics:
        """What /metrics says now."""
        return Metrics(ask(f"{self.base_url}/metrics", timeout_s=30).body.decode())

    @cached_property
    def boot_facts(self) -> BootFacts:
        """What the boot log says.

        Raises
        ------
        UnknownLogForm
            Where it says it in a way that no known version does.
        """
        log = BootLog()
        log.feed(self.running.launch.log.read_bytes())
        return log.facts()


UP = pytest.StashKey[tuple[Server, ExitStack]]()  # the one that is up now, and how it is ended


def engine_for(settings: Settings) -> Engine:
    """The engine that this machine's record names."""
    if settings.machine.engine == "process":
        return ProcessEngine()
    from tests.support.engine.container import (
        DockerEngine,
        Recipe,
    )  # needs docker's SDK and an engine that answers

    inside = settings.machine.container
    return DockerEngine(
        Recipe(
            settings.image,
            settings.run.name,
            settings.machine.devices,
            inside.binds,
            inside.tmpfs,
            (inside.python, *SERVER),
            inside.env,
        )
    )


def launch_for(boot: Boot, checkpoint: Path, settings: Settings) -> Launch:
    """The launch of a boot: one record of settings, the same for every build but for the checkpoint."""
    kind = settings.machine.engine
    shared = HALF[kind] if settings.gate == "ab" else ()
    with Checkpoint.open(checkpoint) as opened:
        exceptions = MULTIMODAL_ARGS if "vision_config" in opened.config else ()
    return Launch(
        name=str(boot),
        checkpoint=checkpoint,
        model=f"quantkit-{boot.build.name}",
        log=settings.run / "boot" / f"{boot}.log",
        args=(*VLLM_ARGS, *ENGINE_ARGS[kind], *shared, *exceptions, *settings.engine_args),
        env={**ENGINE_ENV[kind], **settings.engine_env},
    )


@contextmanager
def serve(engine: Engine, launch: Launch, boot: Boot, patience: Patience = Patience()) -> Iterator[Server]:
    """A server for as long as the context lasts; ended whole on every way out."""
    begun = time.monotonic()
    running = engine.start(launch)
    try:
        wait_ready(running, patience)
        yield Server(boot, launch.checkpoint, running, time.monotonic() - begun)
    finally:
        running.stop()


def card_of(machine: Machine) -> str:
    """What a run must have for itself: the devices, whatever the record that lists them is called; else the host."""
    return re.sub(r"\W+", "-", " ".join(sorted(machine.devices))).strip("-") or machine.arch


@contextmanager
def one_run(card: str, seconds: float = LOCK_S) -> Iterator[None]:
    """This machine's card for this run alone.

    Raises
    ------
    CardTaken
        Where another run does not let go of it in so many seconds.
    """
    lock = FileLock(lock_folder() / f"{card}.lock", timeout=seconds, mode=0o666)
    try:
        lock.acquire()
    except Timeout:
        raise CardTaken(
            f"card {card}", got=f"another run's for {seconds:g} s", hint="one run a card"
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def card_let_go(settings: Settings) -> Iterator[None]:
    """Around servers: when they are gone, so is what they held of the card's memory.

    Raises
    ------
    MemoryHeld
        Where it is not.
    """
    cards = Host(settings.machine, settings.image).cards
    before = cards()
    yield
    wait_fallen(cards, before)


@pytest.fixture(scope="session")
def engine(settings: Settings) -> Iterator[Engine]:
    """This machine's engine and its card for ourselves; what dead runs of ours left on it is ended first."""
    with one_run(card_of(settings.machine)):
        engine = engine_for(settings)
        engine.reap_orphans()
        yield engine
        engine.close()


@pytest.fixture(scope="session")
def server(
    boot: Boot,
    engine: Engine,
    built: Callable[[Format], Path],
    settings: Settings,
    pytestconfig: pytest.Config,
) -> Iterator[Server]:
    """The server of this boot, ready; the next boot's starts when this one, and its memory, are gone."""
    launch = launch_for(boot, built(boot.build), settings)
    with ExitStack() as stack:
        stack.enter_context(card_let_go(settings))
        ready = stack.enter_context(serve(engine, launch, boot))
        pytestconfig.stash[UP] = ready, stack
        stack.callback(pytestconfig.stash.__delitem__, UP)
        yield ready


def boot_of(item: pytest.Item | None) -> Boot | None:
    """The boot that an item asks for."""
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("boot") if callspec else None


def _or_its_server(item: pytest.Item) -> Generator[None, object, object]:
    """What fails since its server died fails of that. On the way out it adds an error or none, and drops none."""

    def ask(
        kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and (up := item.config.stash.get(UP, None)):
            see_whether_it_died(up[0])

    with ExitStack() as stack:
        stack.push(ask)
        return (yield)


pytest_runtest_setup = pytest.hookimpl(wrapper=True)(_or_its_server)
pytest_runtest_call = pytest.hookimpl(wrapper=True)(_or_its_server)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """End a server with its last test: what it leaves is that one's failure, and not that of the next one's first."""
    try:
        return (yield)
    finally:
        up, then = item.config.stash.get(UP, None), boot_of(nextitem)
        if up and then not in (None, up[0].boot):
            up[1].close()


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator["OpenAI"]:
    """An OpenAI client of this boot's server."""
    from openai import OpenAI

    with OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client
