"""What the processes of one timing saw, cell by cell: medians, spread, refusals, and what is missing.

Pure: lines in, cells out. It knows no torch and no file; `figures` makes figures of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from tests.support.gemm.plan import LEAST_SAMPLES

Line = dict[str, Any]
MISSING = "missing"


@dataclass(frozen=True)
class Cell:
    """One product of one backend at one number of rows.

    Attributes
    ----------
    outcome
        ok, unsupported, wrong, not_run, or missing where a process gave no line.
    seconds
        One median a process; empty unless ok.
    samples
        Samples of all processes.
    """

    outcome: str
    reason: str = ""
    seconds: tuple[float, ...] = ()
    samples: int = 0
    kernel: str = ""
    error_over_bound: float = 0.0
    eager_s: float | None = None

    @property
    def median_s(self) -> float:
        """Median over processes."""
        return median(self.seconds)


def cell_of(lines: Sequence[Line | None]) -> Cell:
    """The cell that each process's line describes; the worst outcome counts, and three samples are the least."""
    for outcome in ("wrong", "unsupported", "not_run"):
        for line in lines:
            if line is not None and line["outcome"] == outcome:
                return Cell(outcome, line["reason"])
    there = [line for line in lines if line is not None]
    if not lines or len(there) < len(lines):
        return Cell(MISSING, "no result came for this product")
    samples = sum(len(line["seconds"]) for line in there)
    if samples < LEAST_SAMPLES:
        return Cell("not_run", f"{samples} samples, {LEAST_SAMPLES} are the least")
    return Cell(
        "ok",
        "",
        tuple(median(line["seconds"]) for line in there),
        samples,
        there[0].get("kernel", ""),
        max(line.get("error_over_bound", 0.0) for line in there),
        there[0].get("eager_s"),
    )


@dataclass(frozen=True)
class Timed:
    """All results of all processes of one timing, and the plan they followed."""

    plan: Line
    processes: tuple[tuple[Line, ...], ...]

    @cached_property
    def _found(self) -> tuple[dict[tuple[Any, ...], Line], ...]:
        return tuple({_key(line): line for line in lines} for lines in self.processes)

    def _each(self, *key: Any) -> list[Line | None]:
        return [found.get(key) for found in self._found]

    def cell(self, backend: str, rows: int, shape: str) -> Cell:
        """One product."""
        return cell_of(self._each("cell", backend, rows, shape))

    def token(self, backend: str, rows: int) -> Cell:
        """A whole token's products, run one after the other."""
        return cell_of(self._each("token", backend, rows, None))

    def control(self, backend: str) -> Cell:
        """The square product."""
        return cell_of(self._each("control", backend, None, None))

    def drift(self, backend: str, rows: int) -> float | None:
        """Largest relative change of one fixed product's time while a cell was timed; None where nobody looked."""
        lines = [line for line in self._each("drift", backend, rows, None) if line]
        changes = [line["after_s"] / line["before_s"] - 1 for line in lines]
        return max(changes, key=abs) if changes else None

    def copy_bytes_per_s(self) -> tuple[float, ...]:
        """Bytes read and written a second by a copy, one a process."""
        return tuple(
            line["bytes"] / median(line["seconds"]) for line in self._each("copy", None, None, None) if line
        )

    def empty_s(self) -> float | None:
        """Seconds of a graph that does nothing; None where there are no graphs."""
        lines = [line for line in self._each("empty", None, None, None) if line]
        return median(median(line["seconds"]) for line in lines) if lines else None

    def facts(self) -> Line:
        """The device, as the first process saw it."""
        line = self._each("facts", None, None, None)[0] or {}
        return {name: value for name, value in line.items() if name not in ("kind", "seed")}


def _key(line: Line) -> tuple[Any, ...]:
    return (line["kind"], line.get("backend"), line.get("rows"), line.get("shape"))


def spread(values: Iterable[float]) -> float:
    """Largest less smallest: with three processes no estimate is better founded."""
    known = list(values)
    return max(known) - min(known)
