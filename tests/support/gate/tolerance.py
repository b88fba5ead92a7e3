"""How far a cell may move and still be the same: the gate's tolerances, each with its reason.

Pure and over arrays, so that the judge can try thousands of runs with the very code the gate uses. Knows no
build and no verdict. Imported by the gate and its judges.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.support.stats import Array

# Below 3 % lie differences between boots, clocks and drivers that no change of ours makes.
LEAST_TOLERANCE = 0.03
# A baseline of one or two boots does not know how boots differ; on one public MI300X run cells differed by up to 10 %.
PROVISIONAL_TOLERANCE = 0.10
# Five standard deviations: 90 cells alarm by chance in less than 1 % of runs, also where the deviation was
# estimated from few values (simulated in tests/meta).
DEVIATIONS = 5.0
# The median of 3 repeats spreads by 0.67 of what one repeat does (normal noise: sqrt(0.449)).
MEDIAN_OF_3 = 0.67
# A cell's own spread counts against this many degrees of freedom of its build's: eight of its own, at most, are a
# guess, and a guess that is too small alarms (simulated in tests/meta with cells of unlike noise).
PRIOR_FREEDOM = 2.0
# A cell that varies by more than this says nothing about a change; it is reported and never decides.
REPORT_ONLY_CV = 0.10


def padded(cells: Sequence[Sequence[Sequence[float]]]) -> Array:
    """Repeats of boots of cells as one array, shape (cells, boots, repeats); NaN where there is no repeat."""
    boots = max((len(cell) for cell in cells), default=0)
    repeats = max((len(boot) for cell in cells for boot in cell), default=0)
    found = np.full((len(cells), boots, repeats), np.nan)
    for c, cell in enumerate(cells):
        for b, boot in enumerate(cell):
            found[c, b, : len(boot)] = boot
    return found


def _squares(values: Array) -> tuple[Array, Array]:
    """Sum of squares about the mean in units of the mean, and degrees of freedom, over the last axis."""
    known = ~np.isnan(values)
    counts = known.sum(axis=-1)
    filled = np.where(known, values, 0.0)
    means = filled.sum(axis=-1) / np.maximum(counts, 1)
    off = np.where(known, filled - means[..., None], 0.0)
    squares = np.einsum("...i,...i->...", off, off) / np.where(counts > 0, means, 1.0) ** 2
    return squares, np.maximum(counts - 1, 0)


def _medians(values: Array) -> Array:
    holes = bool(np.isnan(values).any())
    return np.asarray(np.nanmedian(values, axis=-1) if holes else np.median(values, axis=-1))


@dataclass(frozen=True)
class Spread:
    """How the figures of several cells vary: sums of squares, and degrees of freedom, per cell.

    Attributes
    ----------
    within
        Of the repeats about their boot's mean.
    between
        Of the boots' medians about the cell's mean.
    """

    within: tuple[Array, Array]
    between: tuple[Array, Array]

    @staticmethod
    def of(boots: Array) -> "Spread":
        """Of tokens a second, shape (..., cells, boots, repeats)."""
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", RuntimeWarning
            )  # a boot that lacks a cell is a slice of NaN alone
            squares, freedom = _squares(boots)
            between = _squares(_medians(boots))
        return Spread((squares.sum(axis=-1), freedom.sum(axis=-1)), between)

    @property
    def steady(self) -> npt.NDArray[np.bool_]:
        """Which cells vary little enough to decide anything."""
        return np.asarray(np.maximum(_sd(*self.within), _sd(*self.between)) <= REPORT_ONLY_CV)

    def pooled(self) -> "Spread":
        """The steady cells together, as one cell."""

        def together(part: Array) -> Array:
            return np.asarray(np.sum(part * self.steady, axis=-1, keepdims=True))

        return Spread(
            (together(self.within[0]), together(self.within[1])),
            (together(self.between[0]), together(self.between[1])),
        )


def _sd(squares: Array, freedom: Array) -> Array:
    """Standard deviation; 0 where nothing was repeated."""
    found: Array = np.sqrt(
        np.divide(squares, freedom, out=np.zeros_like(squares, dtype=float), where=freedom > 0)
    )
    return found


def tolerances(
    boots: Array, provisional: bool, boot_sd: Array | float = 0.0, run: Array | None = None
) -> Array:
    """The relative change of each cell of a build within which it is the same.

    Parameters
    ----------
    boots
        Tokens a second, shape (..., cells, boots, repeats), NaN where there is no repeat.
    provisional
        Whether the baseline is one.
    boot_sd
        How boots differ on this machine, from `boot_deviation`: a build's own three boots say too little.
    run
        Tokens a second of the run that is judged, one boot of them: they too show a cell's noise.

    Returns
    -------
    ndarray, shape (..., cells)
        max(least, DEVIATIONS x deviation). The deviation is that of a run's figure, pooled over the build's
        cells, so that three lucky repeats do not make a cell strict: between boots where known, and never
        below what the repeats imply; from one boot that of a single repeat. A cell noisier than its build
        is given its own, drawn towards the pool's. Cells that are only reported stay out of the pool.
    """
    spread = Spread.of(boots)
    pool = spread.pooled()
    one_boot = pool.between[1] == 0
    share = np.where(one_boot, 1.0, MEDIAN_OF_3)
    repeats = _sd(*pool.within)
    pooled = np.maximum(np.maximum(_sd(*pool.between), share * repeats), boot_sd)
    squares, freedom = spread.within
    if run is not None:
        further = Spread.of(run).within
        squares, freedom = squares + further[0], freedom + further[1]
    own = share * _sd(squares + PRIOR_FREEDOM * repeats**2, freedom + PRIOR_FREEDOM)
    least = PROVISIONAL_TOLERANCE if provisional else LEAST_TOLERANCE
    return np.asarray(np.maximum(least, DEVIATIONS * np.maximum(pooled, own)))


def bounded_tolerance(cv_at_most: float) -> float:
    """The relative change within which a cell of one unknown boot is the same, from a bound on its repeats' cv."""
    return max(PROVISIONAL_TOLERANCE, DEVIATIONS * cv_at_most)


def boot_deviation(builds: Sequence[Array]) -> Array:
    """How much the figures of one build differ between boots, pooled over all builds of a machine.

    All cells of a boot move together, so that a build of three boots holds two independent values, whatever
    its number of cells; ten builds hold twenty.

    Parameters
    ----------
    builds
        One array a build, shape (..., cells, boots, repeats).

    Returns
    -------
    ndarray, shape (..., 1)
        Relative standard deviation; 0 where no build has two boots.
    """
    pools = [Spread.of(boots).pooled().between for boots in builds]
    squares, freedom = (np.asarray(sum(pool[part] for pool in pools)) for part in (0, 1))
    return _sd(squares, freedom)
