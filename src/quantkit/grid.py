"""The q4_0 lattice: step and levels of each group of 32 bfloat16 values, recovered, never re-estimated.

Pure. The rule, for a group with peak magnitude P:
  1. All zeros: step 1, levels 0.
  2. m = 1, 2, .. 8 (coarsest lattice first): the levels are the nearest integers of value x m / P, and the
     step is their least-squares fit sum(value x level) / sum(level^2), rounded to bfloat16, ties to even.
  3. The levels are derived again against that stored step; the group fits when every |value - step x level|
     <= P x 2^-7 and every level lies in -8..7. Otherwise the next bfloat16 above, then below, is tried.
  4. The step is negative only where some level is +8 and none is -8: both then change sign.
A group that no m fits is off the grid. Peak over smallest magnitude is the m of nearly every group, so that is
tried first; two lattices with m <= 8 lie at least P / 56 apart somewhere, so no coarser one can fit as well.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantkit.formats import GROUP_SIZE
from quantkit.kernels import bf16_nearest, bf16_value, compiled, float_bits, nearest_int
from quantkit.packing import PER_WORD, pack_eight

TOLERANCE = 2.0**-7  # of the peak: half a unit of the value's and half a unit of the step's last place
UNFIT = 0  # no step has this pattern: it would be a step of zero


@compiled
def _levels_against(
    bits: NDArray[np.uint16],
    r: int,
    start: int,
    step_bits: np.uint16,
    peak: np.float32,
    nibbles: NDArray[np.uint8],
) -> tuple[bool, bool, int]:
    """Levels + 8 of one group for a positive step; whether they fit, are negated, and how many are exact."""
    step = bf16_value(step_bits)
    per_step = np.float32(1.0) / step
    worst, low, high, exact = np.int32(0), np.int32(0), np.int32(0), np.int32(0)
    for i in range(32):
        pattern = bits[r, start + i]
        value = bf16_value(pattern)
        level = nearest_int(np.float32(value * per_step))
        served = np.float32(np.float32(level) * step)
        worst = max(worst, float_bits(np.float32(abs(np.float32(value - served)))))
        low, high = min(low, level), max(high, level)
        both_zero = (level == 0) & ((pattern & np.uint16(0x7FFF)) == 0)
        exact += np.int32((bf16_nearest(served) == pattern) | both_zero)
        nibbles[i] = np.uint8(level + 8)
    negated = high == 8
    fits = (worst <= float_bits(np.float32(peak * np.float32(TOLERANCE)))) & (low >= -8) & (high <= 8)
    if negated:
        fits &= low > -8
        for i in range(32):
            nibbles[i] = np.uint8(16 - nibbles[i])
    return fits, negated, exact


@compiled
def _least_squares(bits: NDArray[np.uint16], r: int, start: int, per_step: np.float32) -> np.float32:
    """Fitted step; the sums are exact in float32 where the group is on the grid, in any order."""
    moment, square = np.float32(0.0), np.int32(0)
    for i in range(32):
        value = bf16_value(bits[r, start + i])
        level = nearest_int(np.float32(value * per_step))
        moment += np.float32(value * np.float32(level))
        square += level * level
    return np.float32(moment / np.float32(square))


@compiled
def _try_lattice(
    bits: NDArray[np.uint16], r: int, start: int, peak: np.float32, m: int, nibbles: NDArray[np.uint8]
) -> tuple[np.uint16, int]:
    """Stored step, sign included, or UNFIT; and how many values come back bit-identical."""
    rounded = bf16_nearest(_least_squares(bits, r, start, np.float32(np.float32(m) / peak)))
    for neighbour in (0, 1, -1):
        step_bits = np.uint16(np.int32(rounded) + neighbour)
        fits, negated, exact = _levels_against(bits, r, start, step_bits, peak, nibbles)
        if fits:
            return np.uint16(step_bits | np.uint16(0x8000 if negated else 0)), exact
    return np.uint16(0), 0


@compiled
def fit_group(
    bits: NDArray[np.uint16], r: int, start: int, nibbles: NDArray[np.uint8]
) -> tuple[np.uint16, int]:
    """Fit ``bits[r, start : start + 32]``; fills nibbles with level + 8."""
    top, low = np.uint16(0), np.uint16(0xFFFF)
    for i in range(32):
        magnitude = np.uint16(bits[r, start + i] & np.uint16(0x7FFF))
        top = max(top, magnitude)
        low = min(low, np.uint16(magnitude - np.uint16(1)))  # zeros wrap to the end and drop out
    if top == 0:
        nibbles[:] = np.uint8(8)
        return np.uint16(0x3F80), 32
    peak = bf16_value(top)
    guess = nearest_int(np.float32(peak / bf16_value(np.uint16(low + np.uint16(1)))))
    if 1 <= guess <= 8:
        step_bits, exact = _try_lattice(bits, r, start, peak, guess, nibbles)
        if step_bits != UNFIT:
            return step_bits, exact
    for m in range(1, 9):
        step_bits, exact = _try_lattice(bits, r, start, peak, m, nibbles)
        if step_bits != UNFIT:
            return step_bits, exact
    return np.uint16(0), 0


@compiled
def _encode(
    bits: NDArray[np.uint16], words: NDArray[np.int32], steps: NDArray[np.uint16], tally: NDArray[np.int64]
) -> None:
    nibbles = np.empty(32, np.uint8)
    for r in range(bits.shape[0]):
        for g in range(bits.shape[1] // 32):
            step_bits, exact = fit_group(bits, r, g * 32, nibbles)
            steps[r, g] = step_bits
            tally[0] += step_bits == UNFIT
            tally[1] += step_bits >= 0x8000
            tally[2] += exact
            for w in range(4):
                words[r, g * 4 + w] = np.int32(pack_eight(nibbles, w * 8))


@compiled
def _recover(bits: NDArray[np.uint16], levels: NDArray[np.int8], steps: NDArray[np.uint16]) -> None:
    nibbles = np.empty(32, np.uint8)
    for g in range(bits.shape[0]):
        steps[g], _ = fit_group(bits, g, 0, nibbles)
        for i in range(32):
            levels[g, i] = np.int8(np.int32(nibbles[i]) - 8)


class Tally(NamedTuple):
    """What a fit found: groups off the grid, groups with a negative step, values that come back bit by bit."""

    off_grid: int
    negative_steps: int
    bit_identical: int


def groups_to_levels(bits: NDArray[np.uint16]) -> tuple[NDArray[np.int8], NDArray[np.uint16]]:
    """Levels int8 [n, 32] and steps as bfloat16 patterns [n] of groups [n, 32]; a step of 0 says off the grid."""
    assert bits.dtype == np.uint16
    assert bits.ndim == 2
    assert bits.shape[1] == GROUP_SIZE
    levels, steps = np.zeros(bits.shape, np.int8), np.zeros(len(bits), np.uint16)
    _recover(bits, levels, steps)
    return levels, steps


def levels_to_values(levels: NDArray[np.int8], steps: NDArray[np.uint16]) -> NDArray[np.float32]:
    """step x level, float32 [n, 32], of levels [n, 32] and bfloat16 steps [n]; exact."""
    return levels.astype(np.float32) * (steps.astype(np.uint32) << 16).view(np.float32)[:, None]


def encode_int4_rows(bits: NDArray[np.uint16], words: NDArray[np.int32], steps: NDArray[np.uint16]) -> Tally:
    """Fill packed words [n, k / 8] and bfloat16 steps [n, k / 32] of a block of rows [n, k]."""
    assert words.shape[1] * PER_WORD == bits.shape[1]
    tally = np.zeros(3, np.int64)
    _encode(bits, words, steps, tally)
    return Tally(*tally.tolist())
