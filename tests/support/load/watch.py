"""What a load client observes beside the answers: its own processor time, its loop's lag, the server's counts.

Knows nothing of cells or verdicts. Imported by the load client and by benchmarks.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import nan

LAG_PERIOD_S = 0.005  # 200 wake-ups a second: under half a percent of a core
SETTLE_S = 0.02  # the engine publishes its counts at the end of a step, just after the tokens
SAMPLE_PERIOD_S = 1.0  # rendering /metrics costs the server milliseconds: seldom, once it has been seen

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"

Metrics = Mapping[str, float]


@dataclass
class ClientWatch:
    """Processor time of this thread and lag of this loop, between `start` and `stop`.

    Attributes
    ----------
    cpu_s, wall_s
        Processor and elapsed seconds.
    lags_s
        By how much each short sleep overran: how long an event may have waited to be stamped.
    """

    cpu_s: float = 0.0
    wall_s: float = 0.0
    lags_s: list[float] = field(default_factory=list)

    def start(self) -> None:
        """Begin to count, in the loop's own thread."""
        self._wall, self._cpu = time.perf_counter(), time.thread_time()
        self._task = asyncio.get_running_loop().create_task(self._sample())

    async def stop(self) -> None:
        """Stop counting."""
        self.cpu_s, self.wall_s = time.thread_time() - self._cpu, time.perf_counter() - self._wall
        await cancelled(self._task)

    async def _sample(self) -> None:
        while True:
            asleep = time.perf_counter()
            await asyncio.sleep(LAG_PERIOD_S)
            self.lags_s.append(time.perf_counter() - asleep - LAG_PERIOD_S)

    @property
    def cpu_share(self) -> float:
        """Share of one core that the client used."""
        return self.cpu_s / self.wall_s if self.wall_s else 0.0

    @property
    def lag_p99_s(self) -> float:
        """99th percentile of the loop's lag, in seconds; 0 before the first sample."""
        ordered = sorted(self.lags_s)
        return ordered[int(0.99 * (len(ordered) - 1))] if ordered else 0.0


@dataclass
class InFlight:
    """How many requests are out, and whether every slot is filled and streaming."""

    concurrency: int
    streaming: int = 0
    ended: int = 0
    full: asyncio.Event = field(default_factory=asyncio.Event)

    @contextmanager
    def streaming_one(self) -> Iterator[None]:
        """Around what comes of a request after its first token."""
        self.streaming += 1
        if self.streaming == self.concurrency:
            self.full.set()
        try:
            yield
        finally:
            self.streaming -= 1
            self.ended += 1
            self.full.clear()


@dataclass(frozen=True)
class Sample:
    """The server's own counts, read while every slot was streaming.

    Attributes
    ----------
    settled
        Whether no request ended from just before to just after the reading: then nothing may wait.
    """

    running: float
    waiting: float
    settled: bool


@dataclass
class ServerWatch:
    """Reads the server's own counts while all slots are streaming: then all must run, and none may wait."""

    flight: InFlight
    read: Callable[[], Awaitable[Metrics]]
    samples: list[Sample] = field(default_factory=list)

    async def watch(self) -> None:
        """Sample until cancelled."""
        while True:
            await self.flight.full.wait()
            ended = self.flight.ended
            await asyncio.sleep(SETTLE_S)
            metrics = await self.read()
            settled = self.flight.ended == ended
            self.samples.append(Sample(metrics.get(RUNNING, nan), metrics.get(WAITING, nan), settled))
            await asyncio.sleep(SAMPLE_PERIOD_S if settled else SETTLE_S)


def most_running(samples: Sequence[Sample]) -> float | None:
    """The most requests that the server said it ran; None where it was never asked while all streamed."""
    return max((sample.running for sample in samples), default=None)


def most_waiting(samples: Sequence[Sample]) -> float | None:
    """The most requests that waited while all should run.

    Of the settled samples, for one that ends lets the next one wait a moment; where there are none, of the
    sample that saw the most run.
    """
    settled = [sample.waiting for sample in samples if sample.settled]
    fullest = sorted(samples, key=lambda sample: sample.running)[-1:]
    return max(settled or [sample.waiting for sample in fullest], default=None)


async def cancelled(task: asyncio.Task[None]) -> None:
    """Cancel `task` and wait until it is gone; an error it died of is raised here."""
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return


def metrics_of(text: str) -> dict[str, float]:
    """Prometheus' text as one number a name, summed over its labels; comments and ``_created`` are dropped."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.split("{", 1)[0].split(" ", 1)[0], line.rsplit(" ", 1)[1]
            found[name] = found.get(name, 0.0) + float(value)
    return found
