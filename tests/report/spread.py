"""How far a figure may be off: intervals from the spread of repeats, on a logarithmic scale. Pure arithmetic.

A build's spread is pooled over its cells, since three repeats alone say little. No threshold lives here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tests.report.run import Cell, is_noisy

# 97.5 % quantiles of Student's t by degrees of freedom, from the usual printed table.
T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def t975(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; past 30 degrees of freedom that of 30, which is a little wide."""
    return T975[min(freedom, len(T975)) - 1]


@dataclass(frozen=True)
class Interval:
    """A value and the 95 % interval around it; the ends are None where no spread is known."""

    value: float
    low: float | None = None
    high: float | None = None

    def overlaps(self, other: "Interval") -> bool:
        """Whether the two could be one value; an unknown spread could be anything."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return True
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Spread:
    """The variation of one repeat, relative, and the degrees of freedom it was estimated with."""

    cv: float
    freedom: int


def pooled(cells: Sequence[Cell]) -> Spread | None:
    """A build's spread over its quiet cells; None where no cell has two repeats."""
    repeated = [cell for cell in cells if cell.repeat_count > 1 and cell.known_cv is not None]
    quiet = [cell for cell in repeated if not is_noisy(cell)] or repeated
    chosen = [(cell.known_cv or 0.0, cell.repeat_count - 1) for cell in quiet]
    freedom = sum(n for _, n in chosen)
    if not freedom:
        return None
    return Spread(math.sqrt(sum(n * cv**2 for cv, n in chosen) / freedom), freedom)


def around(value: float, spread: Spread | None, repeats: int) -> Interval:
    """The interval of a figure that rests on so many repeats."""
    if spread is None or repeats < 1:
        return Interval(value)
    half = t975(spread.freedom) * spread.cv / math.sqrt(repeats)
    return Interval(value, value * math.exp(-half), value * math.exp(half))


def cell_interval(cell: Cell, spread: Spread | None) -> Interval | None:
    """A cell's output tokens a second with their interval; a noisy cell is judged by its own repeats."""
    if cell.tok_per_s is None:
        return None
    if is_noisy(cell) and cell.cv is not None and cell.repeat_count > 1:
        spread = Spread(cell.cv, cell.repeat_count - 1)
    return around(cell.tok_per_s, spread, cell.repeat_count)


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive numbers."""
    return math.exp(sum(math.log(value) for value in values) / len(values))
