"""The load client: a closed loop at an exact concurrency over aiohttp, streaming, every request kept.

While it runs it only stamps and keeps what comes; it parses when nothing is being timed, and stops early
where a response breaks. Judges no cell and writes no file. Imported by the sweep, its judges and the benchmark.
"""

import asyncio
import gc
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import aiohttp

from tests.support.cells import Cell
from tests.support.load.stream import Answer, Recording
from tests.support.load.watch import (
    ClientWatch,
    InFlight,
    Metrics,
    Sample,
    ServerWatch,
    cancelled,
    metrics_of,
)

Prompt = Sequence[int]
KEEP_ALIVE_S = 2.0
METRICS_S = 30.0  # a server that renders its metrics for longer is not well
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Target:
    """Where the load goes, and how long to wait for it.

    Attributes
    ----------
    base_url, model
        Root of the server, without ``/v1``, and the model's served name.
    request_s, stall_s
        Seconds after which a request is given up: in all, and without a further byte.
    """

    base_url: str
    model: str
    request_s: float = 900.0
    stall_s: float = 300.0


@dataclass
class Measured:
    """Everything one repeat of one cell gave.

    Attributes
    ----------
    answers
        One a request, in the order they were sent.
    before, after
        The server's counters around the load.
    samples
        The server's own counts while every slot was streaming.
    parsing_s
        Processor seconds that parsing took, after the load.
    """

    cell: Cell
    answers: list[Answer] = field(default_factory=list)
    client: ClientWatch = field(default_factory=ClientWatch)
    before: Metrics = field(default_factory=dict)
    after: Metrics = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    parsing_s: float = 0.0


def body_of(model: str, prompt: Prompt, output_tokens: int) -> bytes:
    """The request's JSON for ``/v1/completions``: token ids in, exactly `output_tokens` out, usage in each chunk."""
    return json.dumps(
        {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
    ).encode()


def measure(
    target: Target, cell: Cell, prompts: Sequence[Prompt], warm_up: Sequence[Prompt] = ()
) -> Measured:
    """Measure one repeat of a cell; returns when every response has ended.

    Parameters
    ----------
    prompts
        One a request, token ids; all are made into bytes before the first is sent.
    warm_up
        Prompts sent first, at the same concurrency, for 8 tokens each, and not measured.

    Returns
    -------
    Measured
        With an error in each answer that is none; the load stops at the first of them.
    """
    return asyncio.run(_measure(target, cell, prompts, warm_up))


async def _measure(
    target: Target, cell: Cell, prompts: Sequence[Prompt], warm_up: Sequence[Prompt]
) -> Measured:
    timeout = aiohttp.ClientTimeout(total=None)  # aiohttp's would be entered and left at every read
    # A limit would cap the concurrency in silence; a connection kept longer than the server keeps it (uvicorn:
    # 5 s) breaks the request that is written to it.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
    async with aiohttp.ClientSession(target.base_url, connector=connector, timeout=timeout) as session:
        measured = Measured(cell)
        bodies = [body_of(target.model, prompt, cell.output_tokens) for prompt in prompts]
        warm = [body_of(target.model, prompt, min(8, cell.output_tokens)) for prompt in warm_up]
        await ClosedLoop(session, InFlight(cell.concurrency), target).send(warm)
        measured.before = await read_metrics(session)
        await _watched(ClosedLoop(session, InFlight(cell.concurrency), target), measured, bodies)
        measured.after = await read_metrics(session)
        return measured


async def _watched(loop: "ClosedLoop", measured: Measured, bodies: Sequence[bytes]) -> None:
    server = ServerWatch(loop.flight, lambda: read_metrics(loop.session), measured.samples)
    watching = asyncio.get_running_loop().create_task(server.watch())
    gc.collect()
    gc.disable()  # a collection in the middle would be measured as the server's
    measured.client.start()
    try:
        recordings = await loop.send(bodies)
    finally:
        gc.enable()
        await measured.client.stop()
        await cancelled(watching)
    begun_s = time.thread_time()
    measured.answers = [recording.answer() for recording in recordings]
    measured.parsing_s = time.thread_time() - begun_s


async def read_metrics(session: aiohttp.ClientSession) -> Metrics:
    """The server's metrics now; none where it does not answer, so that the cell's checks say so."""
    try:
        async with session.get("/metrics", timeout=aiohttp.ClientTimeout(METRICS_S)) as response:
            return metrics_of(await response.text()) if response.status == 200 else {}
    except (aiohttp.ClientError, TimeoutError):
        return {}


@dataclass
class ClosedLoop:
    """Keeps `flight.concurrency` requests out until all are sent: as one ends, the next goes."""

    session: aiohttp.ClientSession
    flight: InFlight
    target: Target
    broken: bool = False
    out: dict[asyncio.Timeout, Recording] = field(default_factory=dict)

    async def send(self, bodies: Sequence[bytes]) -> list[Recording]:
        """Send every body; the responses in the order the requests were sent."""
        recordings: list[Recording] = []
        waiting = iter(bodies)
        slots = (self._slot(waiting, recordings) for _ in range(self.flight.concurrency))
        watching = asyncio.get_running_loop().create_task(self._end_stalled())
        try:
            await asyncio.gather(*slots)
        finally:
            await cancelled(watching)
        return recordings

    async def _end_stalled(self) -> None:
        """Time out each request without a byte for `stall_s`: one look at all costs less than a timer a read."""
        while True:
            await asyncio.sleep(self.target.stall_s / 4)
            now_s = time.perf_counter()
            for deadline, recording in self.out.items():
                if now_s - recording.last_s > self.target.stall_s:
                    deadline.reschedule(asyncio.get_running_loop().time())

    async def _slot(self, waiting: Iterator[bytes], recordings: list[Recording]) -> None:
        for body in waiting:
            if self.broken:
                return
            recording = Recording()
            recordings.append(recording)
            await self._request(body, recording)
            self.broken |= recording.looks_broken

    async def _request(self, body: bytes, recording: Recording) -> None:
        recording.sent_s = time.perf_counter()
        try:
            async with asyncio.timeout(self.target.request_s) as deadline:
                self.out[deadline] = recording
                async with self.session.post("/v1/completions", data=body, headers=JSON) as response:
                    if response.status == 200:
                        await self._keep(response.content.readany, recording)
                    else:
                        recording.error = f"HTTP {response.status}: {(await response.text())[:200]}"
        except TimeoutError:
            recording.error = "no further byte came before the deadline"
        except aiohttp.ClientError as wrong:
            recording.error = f"connection broke: {type(wrong).__name__}: {wrong}"
        recording.ended_s = time.perf_counter()
        del self.out[deadline]

    async def _keep(self, read: Callable[[], Awaitable[bytes]], recording: Recording) -> None:
        """Stamp and keep each piece; what more is done with one would be taken for the server's time."""
        keep, clock = recording.pieces.append, time.perf_counter
        while not recording.has_token:
            if not (piece := await read()):
                return
            keep((clock(), piece))
        with self.flight.streaming_one():
            while piece := await read():
                keep((clock(), piece))
