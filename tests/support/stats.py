"""Statistics of repeats: the spread of a few, and the max-T sign-flip permutation test.

Pure: arrays and numbers in, numbers out; knows no cell, build or verdict. Imported by the gate and its judges.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

MAX_EXACT_PAIRS = 12  # 4,096 sign patterns; beyond that nobody measures
PRIOR_PAIRS = 2.0  # weight of the cells' common variance, in pairs: see `moderated_t`


def cv(values: Sequence[float]) -> float | None:
    """Sample standard deviation (n - 1) over the mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1) / np.mean(values))


def sign_patterns(pairs: int) -> Array:
    """All 2^pairs patterns of +1 and -1, shape (2^pairs, pairs), the one without a flip first."""
    if not 1 <= pairs <= MAX_EXACT_PAIRS:
        raise ValueError(f"pairs, got {pairs}, expected 1 to {MAX_EXACT_PAIRS}")
    return np.array(list(product((1.0, -1.0), repeat=pairs)))


def moderated_t(means: Array, squares: Array, common: Array, pairs: int) -> Array:
    """What orders patterns and cells as t does, each cell's variance drawn towards what is common to the cells.

    With 8 pairs a cell's own variance is often far too small by chance, and the largest of 90 such t is
    chance. Any statistic is fair in a permutation test as long as every pattern gets the same one: mean over
    root mean square rises and falls with t, and no flip changes a mean square.

    Parameters
    ----------
    means, squares
        Mean and mean square of the log ratios, shape (..., cells).
    common
        Mean square of the middle cell, shape (..., 1).
    pairs
        Log ratios a cell.
    """
    drawn = squares + PRIOR_PAIRS / pairs * common
    t: Array = means / np.sqrt(np.maximum(drawn, np.finfo(np.float64).tiny))
    return t


def max_t_p_values(log_ratios: Array) -> Array:
    """Adjusted p of each cell having lost, against the largest t over all cells in every sign pattern.

    Under no difference, which member of a pair is A is a coin toss, so every sign pattern was as likely. The
    family's error stays at the level asked for, however the cells depend on one another.

    Parameters
    ----------
    log_ratios
        log(B / A) of each pair and cell, shape (..., pairs, cells); a loss is negative.

    Returns
    -------
    ndarray, shape (..., cells)
        Share of sign patterns whose largest -t is at least the cell's own: 1 / 2^pairs at best. 1 where a
        log ratio is not a number.
    """
    pairs = log_ratios.shape[-2]
    means = (sign_patterns(pairs) / pairs) @ log_ratios
    squares = np.mean(log_ratios**2, axis=-2, keepdims=True)  # no flip changes a square, nor their median
    losses = -moderated_t(means, squares, np.median(squares, axis=-1, keepdims=True), pairs)
    largest = losses.max(axis=-1)
    observed = losses[..., 0, :] * (1 - 1e-12)  # its own pattern counts, rounding or not
    below = largest[..., :, None] < observed[..., None, :]
    return np.asarray(1.0 - below.mean(axis=-2))
