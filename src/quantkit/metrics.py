"""Figures of fidelity: sums of blocks, joined to tensors, kinds and builds, each under its published name.

Pure arithmetic on sums; knows no file. Definitions, over all values x of the source and decoded values r:
relative_rms_error = sqrt(sum (r-x)^2 / sum x^2); max_err_over_row_absmax = max |r-x| / max |row of x|;
max_rel_err_per_element = max |bf16(r)-x| / |x|; per_tensor_frobenius = ||r-x|| / ||x|| of one tensor.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

STORED, SERVED = 0, 1
ERROR_ENERGY, SIGNAL_ENERGY, MAX_OVER_ROW, MAX_PER_ELEMENT = range(4)


@dataclass
class Measure:
    """What was measured of one tensor, or of several together.

    Attributes
    ----------
    sums
        float64 ``[2, 4]``: as stored and as served; error energy, signal energy, maximum over the row's
        absmax, maximum per element.
    groups, groups_off_grid, negative_steps
        Of int4; 0 for 8-bit schemes.
    frobenius
        ``||r-x|| / ||x||`` of every tensor, as stored and as served.
    """

    tensors: int = 0
    values: int = 0
    bit_identical: int = 0
    groups: int = 0
    groups_off_grid: int = 0
    negative_steps: int = 0
    sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros((2, 4)))
    frobenius: list[tuple[float, float]] = field(default_factory=list)

    def add(self, other: "Measure") -> None:
        """Take in the measure of other values."""
        self.tensors += other.tensors
        self.values += other.values
        self.bit_identical += other.bit_identical
        self.groups += other.groups
        self.groups_off_grid += other.groups_off_grid
        self.negative_steps += other.negative_steps
        energies = self.sums[:, :MAX_OVER_ROW] + other.sums[:, :MAX_OVER_ROW]
        tops = np.maximum(self.sums[:, MAX_OVER_ROW:], other.sums[:, MAX_OVER_ROW:])  # NaN stays NaN
        self.sums = np.concatenate([energies, tops], axis=1)
        self.frobenius += other.frobenius

    def relative_rms(self, view: int = STORED) -> float:
        """sqrt(error energy / signal energy); 0 where both are 0, infinite for an error on a zero signal."""
        error, signal = float(self.sums[view, ERROR_ENERGY]), float(self.sums[view, SIGNAL_ENERGY])
        if signal == 0:
            return 0.0 if error == 0 else math.inf
        return math.sqrt(error / signal)

    def close_tensor(self) -> "Measure":
        """Count what was added so far as one tensor."""
        self.tensors = 1
        self.frobenius = [(self.relative_rms(STORED), self.relative_rms(SERVED))]
        return self


def total(measures: Iterable[Measure]) -> Measure:
    """The measure of several together."""
    found = Measure()
    for measure in measures:
        found.add(measure)
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {"min": None, "max": None, "mean": None}
    return {
        "min": _finite(min(values)),
        "max": _finite(max(values)),
        "mean": _finite(math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan),
    }


def errors(measure: Measure, view: int) -> dict[str, Any]:
    """The error figures of one view; null where nothing was measured, or a NaN or infinity is stored."""
    if not measure.values:
        nothing = ("relative_rms_error", "max_err_over_row_absmax", "max_rel_err_per_element")
        return dict.fromkeys(nothing) | {"per_tensor_frobenius": _spread([])}
    return {
        "relative_rms_error": _finite(measure.relative_rms(view)),
        "max_err_over_row_absmax": _finite(float(measure.sums[view, MAX_OVER_ROW])),
        "max_rel_err_per_element": _finite(float(measure.sums[view, MAX_PER_ELEMENT])),
        "per_tensor_frobenius": _spread([pair[view] for pair in measure.frobenius]),
    }


def figures(measure: Measure) -> dict[str, Any]:
    """Counts, and the errors as stored."""
    return {
        "modules": measure.tensors,
        "values": measure.values,
        "values_bit_identical": measure.bit_identical,
        "groups": measure.groups,
        "groups_off_grid": measure.groups_off_grid,
        "negative_steps": measure.negative_steps,
        **errors(measure, STORED),
    }


def difference(measure: Measure) -> dict[str, float | None]:
    """Served minus stored, of the three figures that are one number."""
    stored, served = errors(measure, STORED), errors(measure, SERVED)
    names = ("relative_rms_error", "max_err_over_row_absmax", "max_rel_err_per_element")
    return {
        name: None if stored[name] is None or served[name] is None else served[name] - stored[name]
        for name in names
    }
