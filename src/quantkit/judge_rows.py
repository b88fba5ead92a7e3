"""Compiled judgement of one block of rows in an 8-bit scheme: every code, scale and value against the source.

Pure arithmetic on arrays and a codebook of `reference`; no names, no files. Only `verify` and its parts may
import it; it imports nothing of the writers.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quantkit.reference import Codebook, bf16_bits, bf16_value

# Rows of the fault table; each holds: how often, first row, first column.
SCALE_UNUSABLE, CODE_FORBIDDEN, CODE_NOT_NEAREST, SCALE_NOT_RULE = range(4)
FAULTS = 4
# Columns of the sums, once as stored and once as served.
ERROR_ENERGY, SIGNAL_ENERGY, MAX_OVER_ROW, MAX_PER_ELEMENT = range(4)
# Columns of the counts.
BIT_IDENTICAL = 0

_FAST = {"reassoc", "nsz"}  # sums may be reordered; NaN and infinity keep their meaning
_CHUNK = 64  # values summed in float32 before float64 takes over: 64 x 2^-24 of a sum


@njit(cache=True, inline="always")
def _order(value):  # type: ignore[no-untyped-def]  # compiled: float32 -> int32
    """Integer that orders magnitudes as floats do, with NaN above infinity, so that it is never lost."""
    return np.int32(np.float32(value).view(np.uint32) & np.uint32(0x7FFFFFFF))


@njit(cache=True, inline="always")
def _magnitude(order):  # type: ignore[no-untyped-def]  # compiled: int32 -> float64
    return np.float64(np.uint32(order).view(np.float32))


@njit(cache=True, nogil=True, error_model="numpy")
def _note(faults, kind, row, column):  # type: ignore[no-untyped-def]
    if faults[kind, 0] == 0:
        faults[kind, 1], faults[kind, 2] = row, column
    faults[kind, 0] += 1


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _row_top(bits, r):  # type: ignore[no-untyped-def]
    top = np.uint16(0)
    for c in range(bits.shape[1]):
        top = max(top, np.uint16(bits[r, c] & np.uint16(0x7FFF)))
    return top


@njit(cache=True, inline="always")
def _is_nearest(pattern, code, scale, low, high, sign):  # type: ignore[no-untyped-def]  # compiled: -> bool
    quotient = np.float32(bf16_value(pattern) / scale)
    minus = np.uint8(pattern >> np.uint16(15))
    return (low[code] <= quotient) & (quotient <= high[code]) & ((sign[code] ^ minus) != 1)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _wrong_codes(bits, codes, r, scale, low, high, sign):  # type: ignore[no-untyped-def]
    """How many codes of a row are not the nearest of value / scale."""
    wrong = np.int32(0)
    for c in range(bits.shape[1]):
        wrong += np.int32(not _is_nearest(bits[r, c], codes[r, c], scale, low, high, sign))
    return wrong


@njit(cache=True, nogil=True, error_model="numpy")
def _note_codes(bits, codes, r, scale, tables, sign, usable, faults):  # type: ignore[no-untyped-def]
    """Walk a row that holds a wrong or forbidden code, and note where; without a usable scale none is the nearest."""
    for c in range(bits.shape[1]):
        if np.isnan(tables[0, codes[r, c]]):
            _note(faults, CODE_FORBIDDEN, r, c)
        elif usable and not _is_nearest(bits[r, c], codes[r, c], scale, tables[2], tables[3], sign):
            _note(faults, CODE_NOT_NEAREST, r, c)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _measure_row(bits, codes, r, scale, values, out):  # type: ignore[no-untyped-def]
    """Energies of a row, its largest error and relative error (ordered ints), identical values."""
    energy, signal, same = 0.0, 0.0, np.int32(0)
    worst, relative = np.int32(0), np.int32(0)
    for begin in range(0, bits.shape[1], _CHUNK):
        part, part_signal = np.float32(0), np.float32(0)
        for c in range(begin, min(begin + _CHUNK, bits.shape[1])):
            value = bf16_value(bits[r, c])
            decoded = np.float32(values[codes[r, c]] * scale)
            error = np.float32(decoded - value)
            part += np.float32(error * error)
            part_signal += np.float32(value * value)
            worst = max(worst, _order(error))
            rounded = bf16_bits(decoded)
            zeros = ((rounded | np.uint32(bits[r, c])) & np.uint32(0x7FFF)) == 0
            equal = (rounded == np.uint32(bits[r, c])) | zeros
            same += np.int32(equal)
            off = np.float32(np.float32(bf16_value(rounded) - value) / value)
            relative = max(relative, np.int32(0) if equal else _order(off))
        energy += np.float64(part)
        signal += np.float64(part_signal)
    out[ERROR_ENERGY] += energy
    out[SIGNAL_ENERGY] += signal
    return worst, relative, same


@njit(cache=True, nogil=True, error_model="numpy")
def _judge_row(bits, codes, r, scale, rule, tables, sign, faults):  # type: ignore[no-untyped-def]
    usable = np.isfinite(scale) and scale > 0
    if not usable:
        _note(faults, SCALE_UNUSABLE, r, 0)
    elif scale != rule:
        _note(faults, SCALE_NOT_RULE, r, 0)
    # Forbidden codes lie in no interval, so they are counted here too.
    if _wrong_codes(bits, codes, r, scale, tables[2], tables[3], sign) > 0:
        _note_codes(bits, codes, r, scale, tables, sign, usable, faults)


@njit(cache=True, nogil=True, error_model="numpy")
def _judge(bits, codes, scales, code_max, tables, sign, views, sums, counts, faults):  # type: ignore[no-untyped-def]
    for r in range(bits.shape[0]):
        top, scale = _row_top(bits, r), scales[r]
        peak = bf16_value(top)
        rule = np.float32(1) if top == 0 else np.float32(peak / code_max)
        _judge_row(bits, codes, r, scale, rule, tables, sign, faults)
        for view in range(views):
            worst, relative, same = _measure_row(bits, codes, r, scale, tables[view], sums[view])
            counts[BIT_IDENTICAL] += same if view == 0 else 0
            if top > 0:
                over = _magnitude(worst) / np.float64(peak)
                sums[view, MAX_OVER_ROW] = max(sums[view, MAX_OVER_ROW], over)
            sums[view, MAX_PER_ELEMENT] = max(sums[view, MAX_PER_ELEMENT], _magnitude(relative))


def judge_rows(
    bits: NDArray[np.uint16],
    codes: NDArray[np.uint8],
    scales: NDArray[np.float32],
    code_max: float,
    book: Codebook,
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Sums, counts and faults of a block of 8-bit rows.

    Parameters
    ----------
    bits
        bfloat16 patterns of the source, ``[rows, in]``.
    codes
        Stored bytes, ``[rows, in]``.
    scales
        Stored scales, ``[rows]``.
    code_max
        The rule: scale = row absmax / code_max in float32, 1 for a zero row.

    Returns
    -------
    sums
        float64 ``[2, 4]``, as stored and as served, columns ERROR_ENERGY to MAX_PER_ELEMENT.
    counts
        int64, column BIT_IDENTICAL.
    faults
        int64 ``[FAULTS, 3]``: how often, first row and first column in the block.
    """
    assert bits.dtype == np.uint16
    assert bits.shape == codes.shape
    assert scales.shape == (bits.shape[0],)
    tables = np.stack([book.values, book.served, book.low, book.high])
    views = 1 if np.array_equal(book.values, book.served, equal_nan=True) else 2
    sums, counts = np.zeros((2, 4)), np.zeros(1, np.int64)
    faults: NDArray[Any] = np.zeros((FAULTS, 3), np.int64)
    _judge(bits, codes, scales, np.float32(code_max), tables, book.sign, views, sums, counts, faults)
    if views == 1:
        sums[1] = sums[0]
    return sums, counts, faults
