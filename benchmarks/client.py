"""Processor time a streamed event costs the load client, beside AsyncOpenAI on the same server in the same run.

    python -m benchmarks.client [--streams 64] [--tokens 512] [--period-s 0] [--rounds 3]

Reading is what happens while a load runs; parsing follows when nothing is being timed. Imported by its test.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from openai import AsyncOpenAI

from tests.support.cells import Cell
from tests.support.load.client import Target, measure


@dataclass(frozen=True)
class Cost:
    """Processor seconds an event: while the load runs, and in all; and events a second."""

    reading_s: float
    total_s: float
    events_per_s: float


@contextmanager
def event_server(tokens: int, period_s: float) -> Iterator[str]:
    """Its root URL, while the context is open."""
    command = [sys.executable, "-m", "benchmarks.event_server", str(tokens), str(period_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.kill()


def load_client(base_url: str, streams: int, tokens: int) -> Cost:
    """Cost of the load client."""
    cell = Cell(streams, 4, tokens)
    prompts = [[1, 2, 3, 4]] * cell.requests
    measured = measure(Target(base_url, "events"), cell, prompts, prompts[:streams])  # as a sweep warms up
    assert {answer.problem(4, tokens) for answer in measured.answers} == {""}
    count = cell.requests * tokens
    reading_s, parsing_s = measured.client.cpu_s, measured.parsing_s
    return Cost(reading_s / count, (reading_s + parsing_s) / count, count / measured.client.wall_s)


def openai_client(base_url: str, streams: int, tokens: int) -> Cost:
    """Cost of AsyncOpenAI, for as many streams at once and half as many requests."""

    async def one(client: AsyncOpenAI) -> int:
        stream = await client.completions.create(
            model="events", prompt=[1, 2, 3, 4], max_tokens=tokens, stream=True
        )
        return sum([1 async for _ in stream])

    async def every() -> int:
        async with AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as client:
            return sum(await asyncio.gather(*(one(client) for _ in range(streams))))

    begun, wall = time.process_time(), time.perf_counter()
    count = asyncio.run(every())
    assert count == streams * tokens
    spent_s = (time.process_time() - begun) / count
    return Cost(spent_s, spent_s, count / (time.perf_counter() - wall))


def compared(streams: int, tokens: int, period_s: float, rounds: int) -> tuple[Cost, Cost]:
    """Medians of both clients, taken in turn."""
    with event_server(tokens, period_s) as base_url:
        pairs = [
            (load_client(base_url, streams, tokens), openai_client(base_url, streams, tokens))
            for _ in range(rounds)
        ]
    middles = [
        Cost(*(median(values) for values in zip(*map(_fields, costs), strict=True)))
        for costs in zip(*pairs, strict=True)
    ]
    return middles[0], middles[1]


def _fields(cost: Cost) -> tuple[float, float, float]:
    return (cost.reading_s, cost.total_s, cost.events_per_s)


def main() -> None:
    """Print both clients' cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=64, help="streams at once")
    parser.add_argument("--tokens", type=int, default=512, help="events a stream")
    parser.add_argument(
        "--period-s", type=float, default=0.0, help="seconds between a stream's events; 0: as fast as read"
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each, in turn")
    given = parser.parse_args()
    ours, theirs = compared(given.streams, given.tokens, given.period_s, given.rounds)
    print(
        f"{given.streams} streams of {given.tokens} events, {given.period_s} s apart, median of {given.rounds}"
    )
    for name, cost in (("load client", ours), ("AsyncOpenAI", theirs)):
        figures = f"{cost.reading_s * 1e6:6.1f} us reading, {cost.total_s * 1e6:6.1f} us in all an event"
        print(f"{name:12} {figures}, {cost.events_per_s:9,.0f} events/s")
    print(
        f"AsyncOpenAI costs {theirs.reading_s / ours.reading_s:.1f} times as much while reading, "
        f"{theirs.total_s / ours.total_s:.1f} times in all"
    )


if __name__ == "__main__":
    main()
