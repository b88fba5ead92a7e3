"""Compiled judgement of one block of int4 rows: every level, step and value against the source.

Pure arithmetic on arrays, from the specification of the q4_0 grid; no names, no files. Only `verify` and its
parts may import it; it imports nothing of the writers.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quantkit.bounds import GRID_TOLERANCE, STEP_TIE_MARGIN
from quantkit.formats import GROUP_SIZE
from quantkit.reference import bf16_bits, bf16_value, nibble_level

# Columns of the fault table; each row holds: how often, first row, first group.
STEP_UNUSABLE, OFF_GRID, LEVEL_NOT_NEAREST, STEP_NOT_FITTED, GRID_TOO_FINE, STEP_SIGN = range(6)
FAULTS = 6
# Columns of the sums.
ERROR_ENERGY, SIGNAL_ENERGY, MAX_OVER_ROW, MAX_PER_ELEMENT = range(4)
# Columns of the counts.
BIT_IDENTICAL, GROUPS_OFF, NEGATIVE_STEPS = range(3)

_FAST = {"reassoc", "nsz"}  # sums may be reordered; NaN and infinity keep their meaning


@njit(cache=True, inline="always")
def _order(value):  # type: ignore[no-untyped-def]  # compiled: float32 -> int32
    """Integer that orders magnitudes as floats do, with NaN above infinity, so that it is never lost."""
    return np.int32(np.float32(value).view(np.uint32) & np.uint32(0x7FFFFFFF))


@njit(cache=True, nogil=True, error_model="numpy")
def _note(faults, kind, row, group):  # type: ignore[no-untyped-def]
    if faults[kind, 0] == 0:
        faults[kind, 1], faults[kind, 2] = row, group
    faults[kind, 0] += 1


@njit(cache=True, nogil=True, error_model="numpy")
def _residual(values, step):  # type: ignore[no-untyped-def]
    """Largest |value - step x nearest level| of a group, levels clipped to -8..7 in the step's sign."""
    worst = 0.0
    for i in range(GROUP_SIZE):
        level = min(max(np.rint(values[i] / step), -8.0), 7.0)
        worst = max(worst, abs(values[i] - step * level))
    return worst


@njit(cache=True, nogil=True, error_model="numpy")
def _coarser_fits(values, peak, levels_at_peak):  # type: ignore[no-untyped-def]
    """Whether a lattice with fewer levels below the peak holds the group well inside the tolerance.

    At three quarters of it: closer than that to the tolerance, whether a lattice fits depends on how its
    step is rounded, and either answer is right.
    """
    allowed = peak * GRID_TOLERANCE * 0.75
    for m in range(1, levels_at_peak):
        step = peak / m
        worst = 0.0
        for i in range(GROUP_SIZE):
            worst = max(worst, abs(values[i] - step * np.rint(values[i] / step)))
            if worst > allowed:
                break
        if worst <= allowed:
            return True
    return False


@njit(cache=True, nogil=True, error_model="numpy")
def _step_is_fitted(values, levels, step, allowed):  # type: ignore[no-untyped-def]
    """Whether the step is the least-squares fit of its own levels, rounded to bfloat16.

    Two exceptions, both in the rule: within STEP_TIE_MARGIN of a rounding tie either neighbour is right (the
    fit is made in some float precision), and where the rounded fit misses the tolerance a neighbour may stand.
    """
    moment, square = 0.0, 0.0
    for i in range(GROUP_SIZE):
        moment += values[i] * levels[i]
        square += float(levels[i]) * levels[i]
    fit = moment / square
    low = np.int64(bf16_bits(np.float32(fit * (1.0 - STEP_TIE_MARGIN))))
    high = np.int64(bf16_bits(np.float32(fit * (1.0 + STEP_TIE_MARGIN))))
    stored = np.int64(bf16_bits(step))
    if low <= stored <= high:
        return True
    return low - 1 <= stored <= high + 1 and _residual(values, np.float64(bf16_value(low))) > allowed


@njit(cache=True, nogil=True, error_model="numpy")
def _judge_slowly(bits, words, r, g, step, top, values, levels, faults):  # type: ignore[no-untyped-def]
    """Rules that need more than one pass over a group; called for every group that holds any value."""
    peak = np.float64(bf16_value(top))
    allowed = peak * GRID_TOLERANCE
    lowest, ones, at_peak, nearest = np.int32(0), 0, np.int32(0), True
    for i in range(GROUP_SIZE):
        pattern = bits[r, g * GROUP_SIZE + i]
        values[i] = np.float64(bf16_value(pattern))
        level = nibble_level(words[r, (g * GROUP_SIZE + i) // 8], i % 8)
        levels[i] = level
        lowest = min(lowest, level)
        ones += abs(level) == 1
        if (pattern & np.uint16(0x7FFF)) == top:
            at_peak = max(at_peak, abs(level))
        nearest &= level == min(max(np.rint(values[i] / step), -8.0), 7.0)
    if not nearest:
        _note(faults, LEVEL_NOT_NEAREST, r, g)
        return
    if not _step_is_fitted(values, levels, step, allowed):
        _note(faults, STEP_NOT_FITTED, r, g)
    if step < 0 and lowest > -8:
        _note(faults, STEP_SIGN, r, g)
    # A level of 1 is at least 1/8 of a coarser step away from its lattice, which tolerates 7/128.
    if ones == 0 and _coarser_fits(values, peak, at_peak):
        _note(faults, GRID_TOO_FINE, r, g)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _measure_group(bits, words, r, g, step, out):  # type: ignore[no-untyped-def]
    """Error and signal energy, largest residual and relative error (as ordered ints), identical values."""
    energy, signal, same = np.float32(0), np.float32(0), np.int32(0)
    worst, relative = np.int32(0), np.int32(0)
    for w in range(GROUP_SIZE // 8):
        word = words[r, g * (GROUP_SIZE // 8) + w]
        for i in range(8):
            pattern = bits[r, g * GROUP_SIZE + w * 8 + i]
            value = bf16_value(pattern)
            decoded = np.float32(np.float32(nibble_level(word, i)) * step)
            rounded = bf16_bits(decoded)
            error = np.float32(decoded - value)
            energy += np.float32(error * error)
            signal += np.float32(value * value)
            worst = max(worst, _order(error))
            zeros = ((rounded | np.uint32(pattern)) & np.uint32(0x7FFF)) == 0
            equal = (rounded == np.uint32(pattern)) | zeros
            same += np.int32(equal)
            off = np.float32(np.float32(bf16_value(rounded) - value) / value)
            relative = max(relative, np.int32(0) if equal else _order(off))
    out[0], out[1] = energy, signal
    return worst, relative, same


@njit(cache=True, nogil=True, error_model="numpy")
def _judge(bits, words, steps, sums, counts, faults):  # type: ignore[no-untyped-def]
    values, levels = np.empty(GROUP_SIZE, np.float64), np.empty(GROUP_SIZE, np.int32)
    energies = np.empty(2, np.float32)
    for r in range(bits.shape[0]):
        row_top, row_worst = np.uint16(0), np.int32(0)
        for g in range(bits.shape[1] // GROUP_SIZE):
            step, top = steps[r, g], np.uint16(0)
            for i in range(GROUP_SIZE):
                top = max(top, np.uint16(bits[r, g * GROUP_SIZE + i] & np.uint16(0x7FFF)))
            worst, relative, same = _measure_group(bits, words, r, g, step, energies)
            row_top, row_worst = max(row_top, top), max(row_worst, worst)
            sums[ERROR_ENERGY] += energies[0]
            sums[SIGNAL_ENERGY] += energies[1]
            sums[MAX_PER_ELEMENT] = max(
                sums[MAX_PER_ELEMENT], np.float64(np.uint32(relative).view(np.float32))
            )
            counts[BIT_IDENTICAL] += same
            counts[NEGATIVE_STEPS] += step < 0
            allowed = np.float32(bf16_value(top) * np.float32(GRID_TOLERANCE))
            if not np.isfinite(step) or step == 0:
                _note(faults, STEP_UNUSABLE, r, g)
            elif top == 0:
                if worst > 0:
                    _note(faults, LEVEL_NOT_NEAREST, r, g)
                if step != 1:
                    _note(faults, STEP_NOT_FITTED, r, g)
            else:
                _judge_slowly(bits, words, r, g, step, top, values, levels, faults)
                if worst > _order(allowed):
                    counts[GROUPS_OFF] += 1
                    _note(faults, OFF_GRID, r, g)
        over = np.float64(np.uint32(row_worst).view(np.float32))
        if row_top > 0:
            sums[MAX_OVER_ROW] = max(sums[MAX_OVER_ROW], over / np.float64(bf16_value(row_top)))


def judge_groups(
    bits: NDArray[np.uint16], words: NDArray[np.int32], steps: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Sums, counts and faults of a block of int4 rows in groups of 32.

    Parameters
    ----------
    bits
        bfloat16 patterns of the source, ``[rows, in]``.
    words
        Packed levels, ``[rows, in / 8]``.
    steps
        Values of the stored steps, ``[rows, in / 32]``.

    Returns
    -------
    sums
        float64, columns ERROR_ENERGY to MAX_PER_ELEMENT; NaN where a stored step is.
    counts
        int64, columns BIT_IDENTICAL to NEGATIVE_STEPS.
    faults
        int64 ``[FAULTS, 3]``: how often, first row and first group in the block.
    """
    assert bits.dtype == np.uint16
    assert words.shape == (bits.shape[0], bits.shape[1] // 8)
    assert steps.shape == (bits.shape[0], bits.shape[1] // GROUP_SIZE)
    sums, counts = np.zeros(4), np.zeros(3, np.int64)
    faults: NDArray[Any] = np.zeros((FAULTS, 3), np.int64)
    _judge(bits, words, steps, sums, counts, faults)
    return sums, counts, faults
