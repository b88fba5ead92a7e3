"""The q4_0 lattice: step and levels of each group of 32 bfloat16 values, recovered, never re-estimated.

Pure. The rule, for a group with peak magnitude P:
  1. All zeros: step 1, levels 0.
  2. m = 1, 2, .. 8 (coarsest lattice first): the levels are the nearest integers of value x m / P, and the
     step is their least-squares fit sum(value x level) / sum(level^2), rounded to bfloat16, ties to even.
  3. The levels are derived again against that stored step. The group fits when every |value - step x level|
     <= P x 2^-7 and every level lies in -8..7; if not, the next bfloat16 above, then below, is tried.
  4. The step is negative only where m is 8 and the positive peak would be level +8.
A group that no m fits is off the grid. Peak over smallest magnitude is the m of nearly every group and is tried
first: two lattices with m <= 8 lie at least P / 56 apart somewhere, so where it fits no coarser one does.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantkit.formats import GROUP_SIZE
from quantkit.kernels import (
    bf16_nearest,
    bf16_value,
    compiled,
    f32,
    float_bits,
    i32,
    nearest_int,
    rounded_to_bf16,
    u16,
    u32,
)
from quantkit.packing import BIAS

TOLERANCE = 2.0**-7  # of the peak: half a unit of the value's and half a unit of the step's last place
ONE_STEP = 0x3F80  # bfloat16 1.0: the step of a group of zeros
STRIP = 64  # groups that go through the stages together: their bits stay in the first-level cache

Bits = NDArray[np.uint16]
Floats = NDArray[np.float32]


@compiled
def _oriented(per_step: np.float32, positive_peak: np.uint16) -> np.float32:
    """Levels per value, negative where the positive peak would be level +8, which int4 lacks."""
    highest = nearest_int(f32(bf16_value(positive_peak) * per_step))
    minus = u32(u32(highest == i32(8)) << u32(31))  # a branch is too often guessed wrong
    return u32(float_bits(per_step) ^ minus).view(f32)


@compiled
def _guess(groups: Bits, peaks: Floats, per_step: Floats) -> None:
    """Peak magnitudes, and levels per value if the smallest magnitude is one step."""
    for g in range(groups.shape[0]):
        top, low, positive = u16(0), u16(0xFFFF), np.int16(0)
        for i in range(32):
            bits = groups[g, i]
            magnitude = u16(bits & u16(0x7FFF))
            top = max(top, magnitude)
            low = min(low, u16(magnitude - u16(1)))  # zeros wrap to the end and drop out
            positive = max(positive, np.int16(bits))
        peak = bf16_value(top)
        m = nearest_int(f32(peak / bf16_value(u16(low + u16(1)))))
        peaks[g] = peak
        per_step[g] = _oriented(f32(f32(m) / peak), u16(positive)) if top > 0 else f32(0.0)


@compiled
def _fit_steps(groups: Bits, per_step: Floats, steps: Bits) -> None:
    """Least-squares steps; on the grid the sums are exact in float32, whatever their order."""
    for g in range(groups.shape[0]):
        rate, moment, square = per_step[g], f32(0.0), f32(0.0)
        for i in range(32):
            value = bf16_value(groups[g, i])
            level = f32(nearest_int(f32(value * rate)))
            moment += f32(value * level)
            square += f32(level * level)
        steps[g] = bf16_nearest(f32(moment / square)) if square > 0 else u16(ONE_STEP)


@compiled
def _largest_residual(peak: np.float32) -> np.uint32:
    """Bits of the tolerance; 0, which the peak itself exceeds, where it is infinity or NaN."""
    return float_bits(f32(peak * f32(TOLERANCE))) if float_bits(peak) < u32(0x7F800000) else u32(0)


@compiled
def _pack(
    groups: Bits, peaks: Floats, steps: Bits, words: NDArray[np.int32], exact: NDArray[np.int8]
) -> None:
    """Levels against each stored step as words [n, 4]; how many values come back exactly, or -1 where one does not fit.

    A group fits if its levels lie in -8..7 and its residuals within the tolerance. Exact: step x level, rounded to
    bfloat16, is the source bit by bit; zeros of either sign are equal.
    """
    nibbles = np.empty(32, u32)  # not bytes: narrowing within the loop costs more than all else of it
    for g in range(groups.shape[0]):
        step = bf16_value(steps[g])
        rate, worst, union, differing = f32(f32(1.0) / step), u32(0), u32(0), u32(0)
        for i in range(32):
            source = u32(u32(groups[g, i]) << u32(16))
            level = nearest_int(f32(source.view(f32) * rate))
            nibble = u32(level + i32(BIAS))
            nibbles[i] = nibble
            union = u32(union | nibble)  # a level outside -8..7 sets a bit above the fourth
            served = f32(f32(level) * step)
            worst = max(worst, u32(float_bits(f32(source.view(f32) - served)) & u32(0x7FFFFFFF)))
            other_bits = u32(
                u32(rounded_to_bf16(served) ^ source) & u32(0x7FFF0000)
            )  # signs agree but for zeros'
            differing = u32(differing + min(other_bits, u32(0x10000)))
        for w in range(4):
            word = u32(0)
            for i in range(8):
                word = u32(word | u32(nibbles[8 * w + i] << u32(4 * i)))
            words[g, w] = i32(word)
        fits = (worst <= _largest_residual(peaks[g])) & (union < u32(16))
        exact[g] = np.int8(i32(32) - i32(differing >> u32(16))) if fits else np.int8(-1)


@compiled
def _fits(group: Bits, peak: np.float32, step: np.uint16) -> bool:
    """Whether one group [32] fits a stored step, as `_pack` has it; ends at the first value that does not."""
    value, limit = bf16_value(step), _largest_residual(peak)
    rate = f32(f32(1.0) / value)
    for i in range(32):
        source = bf16_value(group[i])
        level = nearest_int(f32(source * rate))
        residual = u32(float_bits(f32(source - f32(f32(level) * value))) & u32(0x7FFFFFFF))
        if residual > limit or level > i32(7):  # below -8 lies more than the peak
            return False
    return True


@compiled
def _search(group: Bits, peak: np.float32, rate: Floats, step: Bits) -> np.uint16:
    """The step of one group [1, 32] by trying every m, coarsest first, and the neighbours of each step; or 0.

    Rate and step, of one element each, are scratch.
    """
    positive = np.int16(0)
    for i in range(32):
        positive = max(positive, np.int16(group[0, i]))
    for m in range(1, 9):
        rate[0] = _oriented(f32(f32(m) / peak), u16(positive))
        _fit_steps(group, rate, step)
        for neighbour in (step[0], u16(step[0] + u16(1)), u16(step[0] - u16(1))):
            if _fits(group[0], peak, neighbour):
                return neighbour
    return u16(0)


@compiled
def _recover(groups: Bits, steps: Bits, words: NDArray[np.int32]) -> tuple[int, int, int]:
    """Fill steps (0 where off the grid) and words of groups [n, 32]; the counts of a Tally."""
    peaks, rates, exact = np.empty(STRIP, f32), np.empty(STRIP, f32), np.empty(STRIP, np.int8)
    off_grid, negative, identical = 0, 0, 0
    for first in range(0, groups.shape[0], STRIP):
        strip, strip_steps = groups[first : first + STRIP], steps[first : first + STRIP]
        strip_words = words[first : first + STRIP]
        _guess(strip, peaks, rates)
        _fit_steps(strip, rates, strip_steps)
        _pack(strip, peaks, strip_steps, strip_words, exact)
        for g in range(strip.shape[0]):
            if exact[g] < 0:
                one = slice(g, g + 1)
                strip_steps[g] = _search(strip[one], peaks[g], rates[one], strip_steps[one])
                _pack(strip[one], peaks[one], strip_steps[one], strip_words[one], exact[one])
                off_grid += strip_steps[g] == 0
            negative += strip_steps[g] >= u16(0x8000)
            identical += max(exact[g], np.int8(0))
    return off_grid, negative, identical


class Tally(NamedTuple):
    """What a fit found: groups off the grid, groups with a negative step, values that come back bit by bit.

    The last means something only where no group is off the grid; blocks with one are not packed.
    """

    off_grid: int
    negative_steps: int
    bit_identical: int


def groups_to_steps(groups: Bits) -> Bits:
    """Steps as bfloat16 patterns [n] of groups of bfloat16 patterns [n, 32]; 0 says off the grid."""
    assert groups.dtype == np.uint16
    assert groups.ndim == 2
    assert groups.shape[1] == GROUP_SIZE
    steps, words = np.empty(len(groups), np.uint16), np.empty((len(groups), 4), np.int32)
    _recover(groups, steps, words)
    return steps


def encode_int4_rows(rows: Bits, words: NDArray[np.int32], steps: Bits) -> Tally:
    """Fill packed words [n, k / 8] and bfloat16 steps [n, k / 32] of a block of rows [n, k].

    Rows with a group off the grid hold no meaning for that group: its step is 0.
    """
    return Tally(*_recover(rows.reshape(-1, GROUP_SIZE), steps.reshape(-1), words.reshape(-1, 4)))


def levels_to_values(levels: NDArray[np.int8], steps: Bits) -> Floats:
    """step x level, float32 [n, 32], of levels [n, 32] and bfloat16 steps [n]; exact."""
    return levels.astype(np.float32) * (steps.astype(np.uint32) << 16).view(np.float32)[:, None]
