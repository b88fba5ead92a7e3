"""Where products run: the CPU, or a GPU through CUDA or HIP. Clocks, graphs and facts, and nothing of a plan.

A test's fake derives from `Cpu` and replaces one method.
"""

import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch

from .products import Product, Weights, product, weights

Call = Callable[[], object]
Sample = Callable[[], float]
WARM_UP_S, SETTLE_S = (
    0.2,
    2.0,
)  # shortest and longest warm-up of one graph: clocks rise over tens of milliseconds
SETTLED = 0.01  # clocks count as steady once three samples in a row differ by less
SAMPLE_S = 5e-3  # a GPU's sample replays its graph for at least this long


class Room:
    """Memory that is written again and again, so that its pages are asked of the system once."""

    def __init__(self) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)
        self.used = 0

    def clear(self, size: int) -> None:
        """Begin anew, with so many bytes at least."""
        self.used = 0
        if len(self.bytes) < size:
            self.bytes = torch.empty(size, dtype=torch.uint8)

    def clone(self, part: torch.Tensor) -> torch.Tensor:
        """The same values here."""
        at, self.used = self.used, self.used + aligned(part)
        return self.bytes[at : at + part.nbytes].view(part.dtype).view(part.shape).copy_(part)


def aligned(part: torch.Tensor) -> int:
    """Bytes of a tensor, up to a whole cache line."""
    return -(-part.nbytes // 64) * 64


class Cpu:
    """The host's cores, as many and as pinned as whoever started the program says; no graphs."""

    def __init__(self) -> None:
        self.torch = torch.device("cpu")
        self.room = Room()

    def facts(self) -> dict[str, Any]:
        """What a figure of this device depends on."""
        return {
            "device": platform.processor() or platform.machine(),
            "isa": torch.backends.cpu.get_cpu_capability(),
            "cores": torch.get_num_threads(),
            "pinned": os.environ.get("OMP_PROC_BIND", "no"),
            "torch": torch.__version__,
        }

    def weights(self, backend: str, n: int, k: int, count: int, span: int) -> Weights:
        """Random weights here, `count` copies of them; `cold` makes those that fill a cache."""
        return weights(backend, n, k, count, 0, self.torch)

    def cold(self, wanted: Sequence[tuple[Weights, int]]) -> list[Weights]:
        """The same weights in as many copies each, lying where those of the last call did: one of each stays."""
        more = [(of, range(copies - len(of.copies))) for of, copies in wanted]
        self.room.clear(sum(len(turns) * sum(map(aligned, of.copies[-1])) for of, turns in more))
        return [
            replace(of, copies=[*(tuple(map(self.room.clone, of.copies[-1])) for _ in turns), *of.copies])
            for of, turns in more
        ]

    def product(self, backend: str, rows: int, of: Weights) -> Product:
        """A product here."""
        return product(backend, rows, of, self.torch)

    def timer(self, calls: Sequence[Call], whole: bool) -> Sample:
        """A function that gives seconds: of all calls once (`whole`), else of one of them, each in its turn."""
        turns = count()

        def sample() -> float:
            todo = calls if whole else (calls[next(turns) % len(calls)],)
            begin = time.perf_counter()
            for call in todo:
                call()
            return time.perf_counter() - begin

        return sample

    def settle(self, sample: Sample) -> None:
        """Nothing: the checked call was the warm-up, and cores that are shared never settle."""

    def eager_s(self, calls: Sequence[Call]) -> float | None:
        """Seconds a call without a graph; None here, where all timing is eager."""
        return None

    def assert_alive(self) -> None:
        """Raise where a refused product broke the device, so that nothing after it is called unsupported."""


class Gpu(Cpu):
    """The first GPU torch sees, by CUDA or HIP: every timing is a replay of a captured graph."""

    def __init__(self) -> None:
        super().__init__()
        self.torch = torch.device("cuda", 0)

    def facts(self) -> dict[str, Any]:
        """What a figure of this card depends on."""
        at = torch.cuda.get_device_properties(0)
        return {
            "device": at.name,
            "arch": getattr(at, "gcnArchName", f"sm_{at.major}{at.minor}"),
            "multiprocessors": at.multi_processor_count,
            "memory_bytes": at.total_memory,
            "runtime": f"hip {torch.version.hip}" if torch.version.hip else f"cuda {torch.version.cuda}",
            "torch": torch.__version__,
        }

    def weights(self, backend: str, n: int, k: int, count: int, span: int) -> Weights:
        """Random weights here: `count` copies or more, `span` bytes or more."""
        return weights(backend, n, k, count, span, self.torch)

    def cold(self, wanted: Sequence[tuple[Weights, int]]) -> list[Weights]:
        """The weights as they are: a card has room for all the copies at once."""
        return [of for of, _ in wanted]

    def timer(self, calls: Sequence[Call], whole: bool) -> Sample:
        """As on the CPU, from a graph of all calls; a call's share of it unless `whole`."""
        self.eager_s(calls)  # kernels compile and workspaces appear before the capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        event: Callable[..., Any] = torch.cuda.Event
        begin, end = event(enable_timing=True), event(enable_timing=True)

        def replay(times: int) -> float:
            begin.record()
            for _ in range(times):
                graph.replay()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1000 / times

        replay(1)
        times = max(1, math.ceil(SAMPLE_S / max(replay(1), 1e-6)))
        return lambda: replay(times) / (1 if whole else len(calls))

    def settle(self, sample: Sample) -> None:
        """Replay until the clocks are steady: for `WARM_UP_S` at least, for `SETTLE_S` at most."""
        last, begin = [sample() for _ in range(3)], time.monotonic()
        while (ran := time.monotonic() - begin) < SETTLE_S:
            if ran >= WARM_UP_S and max(last) <= min(last) * (1 + SETTLED):
                return
            last = [*last[1:], sample()]

    def eager_s(self, calls: Sequence[Call]) -> float | None:
        """Seconds a call, launch overhead included: a diagnostic, never a result."""
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for call in calls:
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / len(calls)

    def assert_alive(self) -> None:
        """Multiply two numbers; a sticky error of the runtime comes back here."""
        torch.ones(1, device=self.torch).mul(2).item()


def device_of(kind: str) -> Cpu:
    """The device of a plan: ``cpu`` or ``gpu``."""
    return {"cpu": Cpu, "gpu": Gpu}[kind]()
