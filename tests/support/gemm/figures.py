"""Figures of a timing: rates, shares of what the card can do, what binds, ratios to bf16, and sums over a token.

Pure: samples and sizes in, numbers out. The suite records them; the report and the tests of the judge read them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any

from tests.support.gemm.backends import Backend
from tests.support.gemm.samples import Cell, Timed
from tests.support.gemm.shapes import Shape

# Below a third of both the copy bandwidth and the dense peak, neither explains the time: launches and tails do.
BOUND_SHARE = 1 / 3


@dataclass(frozen=True)
class Ceilings:
    """What the card can do, as measured: a copy's bytes a second, and a backend's dense operations a second."""

    bytes_per_s: float | None
    flop_per_s: float | None


@dataclass(frozen=True)
class Rates:
    """Rates of a time, and their shares of the ceilings."""

    us: float
    tflops: float
    gb_per_s: float
    share_copy: float | None
    share_peak: float | None

    @property
    def binds(self) -> str:
        """``bandwidth``, ``compute``, ``neither`` or, without ceilings, ``unknown``."""
        if self.share_copy is None or self.share_peak is None:
            return "unknown"
        if max(self.share_copy, self.share_peak) < BOUND_SHARE:
            return "neither"
        return "bandwidth" if self.share_copy >= self.share_peak else "compute"

    def to_dict(self) -> dict[str, Any]:
        """For a row; shares that are not known are left out."""
        shares = {"share_copy": self.share_copy, "share_peak": self.share_peak}
        known = {name: rounded(value) for name, value in shares.items() if value is not None}
        figures = {"us": rounded(self.us), "tflops": rounded(self.tflops), "gb_per_s": rounded(self.gb_per_s)}
        return {**figures, **known, "binds": self.binds}


def rounded(value: float) -> float:
    """Five significant digits: no timing has more, and a record stays readable."""
    return float(f"{value:.5g}")


def rates(weights: int, rows: int, seconds: float, backend: Backend, ceilings: Ceilings) -> Rates:
    """Rates of products that read `weights` weights and multiply each by `rows` activations in `seconds`."""
    flop_per_s = 2 * rows * weights / seconds
    bytes_per_s = backend.weight_bytes * weights / seconds
    return Rates(
        us=seconds * 1e6,
        tflops=flop_per_s / 1e12,
        gb_per_s=bytes_per_s / 1e9,
        share_copy=None if ceilings.bytes_per_s is None else bytes_per_s / ceilings.bytes_per_s,
        share_peak=None if ceilings.flop_per_s is None else flop_per_s / ceilings.flop_per_s,
    )


def ceilings_of(timed: Timed, backend: Backend) -> Ceilings:
    """The ceilings of a backend on the timed device: a copy, and the fastest of the square and of all products.

    On a CPU the square that its time allows is no peak: a taller product, cut better among the cores, can beat it.
    A share of the peak is therefore never above 1.
    """
    copies, control = timed.copy_bytes_per_s(), timed.control(backend.label)
    side = int(timed.plan["control_side"])
    if control.outcome != "ok":
        return Ceilings(median(copies) if copies else None, None)
    rates_seen = [2 * side**3 / control.median_s]
    for rows, shape in product(timed.plan["rows"], timed.plan["shapes"]):
        cell = timed.cell(backend.label, rows, shape["name"])
        if cell.outcome == "ok":
            rates_seen.append(2 * rows * shape["n"] * shape["k"] / cell.median_s)
    return Ceilings(median(copies) if copies else None, max(rates_seen))


def ratios(bf16: Sequence[float], other: Sequence[float]) -> tuple[float, ...]:
    """bf16's time over this one's in each process: above 1 is faster; what slows a whole process cancels."""
    return tuple(base / seconds for base, seconds in zip(bf16, other, strict=True))


def sums(cells: Mapping[str, Cell], shapes: Sequence[Shape]) -> tuple[float, ...] | None:
    """Seconds of a token's products, one sum a process; None unless every shape ran."""
    mine = [(shape.count, cells[shape.name]) for shape in shapes]
    if any(cell.outcome != "ok" for _, cell in mine):
        return None
    return tuple(
        sum(count * seconds for (count, _), seconds in zip(mine, each, strict=True))
        for each in zip(*(cell.seconds for _, cell in mine), strict=True)
    )


def cells_of(timed: Timed, backend: Backend, rows: int, shapes: Sequence[Shape]) -> dict[str, Cell]:
    """The cells of one backend and number of rows, by the shape's name."""
    return {shape.name: timed.cell(backend.label, rows, shape.name) for shape in shapes}
