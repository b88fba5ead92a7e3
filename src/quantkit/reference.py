"""What stored codes mean, written from the specifications of the number formats: the second opinion.

Tables come from ml_dtypes, arithmetic from numpy and numba. It shares no line with the writers and may not
import grid, codes, packing, plan, config, convert or torch. `verify` and its parts import it; so may tests.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numba import njit
from numpy.typing import NDArray

from quantkit.formats import FP8, FP8FNUZ, INT8, Scheme

FLOAT8 = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz}
SIGN_PLUS, SIGN_MINUS, SIGN_EITHER = 0, 1, 2
LEVEL_BIAS = 8  # a nibble is level + 8
NIBBLES_PER_WORD = 8


@dataclass(frozen=True)
class Codebook:
    """One row of 256 for each property of an 8-bit code.

    Attributes
    ----------
    values
        float32; what the byte stands for, before the scale. NaN for a code that may not occur.
    served
        float32; the same after the engine's loader (see `served_values`).
    low, high
        float32; a quotient value / scale has this code as its nearest, ties to even, exactly if it lies in
        [low, high]. Empty for codes that may not occur.
    sign
        Sign that the quotient must have: SIGN_PLUS, SIGN_MINUS or SIGN_EITHER.
    """

    values: NDArray[np.float32]
    served: NDArray[np.float32]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    sign: NDArray[np.uint8]


def code_values(scheme: Scheme) -> NDArray[np.float32]:
    """Value of each of the 256 bytes under an 8-bit scheme, float32; NaN where none may stand."""
    codes = np.arange(256, dtype=np.uint8)
    if scheme.code_dtype == "I8":
        values = codes.view(np.int8).astype(np.float32)
        values[0x80] = np.nan  # -128: levels are symmetric, -127..127
        return values
    return np.asarray(codes.view(FLOAT8[scheme.code_dtype]), dtype=np.float32)


def served_values(scheme: Scheme) -> NDArray[np.float32]:
    """Value of each byte after loading: an FNUZ file is value-cast into an E4M3FN parameter first.

    The 16 FNUZ codes at odd multiples of 2^-10 below 2^-6 have no E4M3FN neighbour that close, and round to
    even. On gfx94x the loader then reinterprets the E4M3FN bits as FNUZ and doubles the scale, which is exact
    for every finite code, so that one table stands for all devices (see `gfx94x_values`).
    """
    values = code_values(scheme)
    if scheme.code_dtype == "F8_E4M3FNUZ":
        with np.errstate(invalid="ignore"):
            return values.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return values


def gfx94x_values(scheme: Scheme) -> NDArray[np.float32]:
    """Value of each byte on gfx94x, in units of the stored scale: 0x80 becomes 0, bits are read as FNUZ.

    The loader doubles the scale; the factor of two is applied to the value here.
    """
    if scheme.code_dtype == "I8":
        return code_values(scheme)
    with np.errstate(invalid="ignore"):
        loaded = code_values(scheme).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    loaded[loaded == 0x80] = 0
    return np.asarray(loaded.view(ml_dtypes.float8_e4m3fnuz), dtype=np.float32) * np.float32(2)


def _codebook(scheme: Scheme) -> Codebook:
    values = code_values(scheme)
    low = np.full(256, np.inf, dtype=np.float32)
    high = np.full(256, -np.inf, dtype=np.float32)
    positive = [code for code in range(256) if values[code] >= 0 and not np.signbit(values[code])]
    for at, code in enumerate(positive):  # ascending: code order is value order in all three types
        even = at % 2 == 0
        low[code] = _edge(values[positive[at - 1]], values[code], even, up=False) if at else 0.0
        last = at + 1 == len(positive)
        high[code] = np.inf if last else _edge(values[code], values[positive[at + 1]], even, up=True)
    negative = np.signbit(values) & ~np.isnan(values)
    for code in np.flatnonzero(negative):
        mirror = next(other for other in positive if values[other] == -values[code])
        low[code], high[code] = -high[mirror], -low[mirror]
    sign = np.where(negative, SIGN_MINUS, SIGN_PLUS).astype(np.uint8)
    if not (negative & (values == 0)).any():  # no -0: the one zero takes small negatives too
        low[0], sign[0] = -high[0], SIGN_EITHER
    return Codebook(values, served_values(scheme), low, high, sign)


def _edge(below: np.float32, above: np.float32, even: bool, *, up: bool) -> np.float32:
    """The midpoint of two neighbours, or one ulp before it where the tie belongs to the other one."""
    middle = np.float32((float(below) + float(above)) / 2)  # exact: both have few bits
    if even:
        return middle
    return np.float32(np.nextafter(middle, np.float32(-np.inf if up else np.inf)))


CODEBOOKS: dict[str, Codebook] = {scheme.code_dtype: _codebook(scheme) for scheme in (FP8, FP8FNUZ, INT8)}
# What each byte means to an engine, whoever wrote it: other people's int8 codes use the level -128 too.
ANY_VALUES = {dtype: book.values for dtype, book in CODEBOOKS.items()} | {
    "I8": np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32)
}


@njit(cache=True, inline="always")
def bf16_value(bits):  # type: ignore[no-untyped-def]  # compiled: uint16 -> float32
    """float32 value of a bfloat16 bit pattern: its bits are the upper half of the float32."""
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@njit(cache=True, inline="always")
def bf16_bits(value):  # type: ignore[no-untyped-def]  # compiled: float32 -> uint16 range
    """bfloat16 bit pattern of a finite float32, rounded to nearest, ties to even."""
    bits = np.float32(value).view(np.uint32)
    return np.uint32((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@njit(cache=True, inline="always")
def nibble_level(word, at):  # type: ignore[no-untyped-def]  # compiled: int32, 0..7 -> int32
    """Level -8..7 of element `at` of eight in a word: lowest bits first, biased by 8."""
    return np.int32((np.uint32(word) >> np.uint32(4 * at)) & np.uint32(15)) - np.int32(8)


def bf16_to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """float32 values of bfloat16 bit patterns, same shape."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def float32_to_bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 values rounded to the nearest bfloat16, ties to even, by ml_dtypes; same shape."""
    return np.asarray(values.astype(ml_dtypes.bfloat16), dtype=np.float32)


def scales_to_float32(stored: NDArray[np.generic], dtype: str) -> NDArray[np.float32]:
    """float32 values of stored scales of any of the dtypes BF16, F16, F32."""
    if dtype == "BF16":
        return bf16_to_float32(stored.astype(np.uint16, copy=False))
    if dtype == "F16":
        return stored.view(np.float16).astype(np.float32)
    return stored.astype(np.float32, copy=False)


def decode_words(words: NDArray[np.int32]) -> NDArray[np.int32]:
    """Levels -8..7 of packed words, ``[rows, words] -> [rows, 8 * words]``."""
    shifts = np.arange(NIBBLES_PER_WORD, dtype=np.uint32) * np.uint32(4)
    nibbles = (words.view(np.uint32)[..., None] >> shifts) & np.uint32(15)
    return nibbles.astype(np.int32).reshape(*words.shape[:-1], -1) - LEVEL_BIAS


def decode_int4(words: NDArray[np.int32], steps: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 values of packed int4: level x step, one step for each ``in / steps.shape[1]`` values."""
    levels = decode_words(words)
    return levels.astype(np.float32) * np.repeat(steps, levels.shape[1] // steps.shape[1], axis=1)


def decode_codes(codes: NDArray[np.uint8], scales: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """float32 values of 8-bit codes ``[rows, in]`` with one scale a row ``[rows, 1]``."""
    return CODEBOOKS[dtype].values[codes.view(np.uint8)] * scales
