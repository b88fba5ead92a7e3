"""Rows of bfloat16 values <-> fp8 and int8 codes with one float32 scale a row.

Pure; int4 lies in `grid`. scale = row absmax / code_max in float32, 1 for a zero row; the code is the one
nearest to value / scale (divided in float32), ties to even, clamped to code_max. FNUZ codes are the FN
codes of twice the value, without a negative zero: that pattern is its NaN.
"""

import numpy as np
from numpy.typing import NDArray

from quantkit.kernels import bf16_value, compiled, float_bits, nearest_int

INFINITY_BITS = 0x7F80  # bfloat16 magnitudes from here on are infinity or NaN


@compiled
def _row_peak(bits: NDArray[np.uint16], r: int) -> np.uint16:
    peak = np.uint16(0)
    for c in range(bits.shape[1]):
        peak = max(peak, np.uint16(bits[r, c] & np.uint16(0x7FFF)))
    return peak


@compiled
def _row_scale(peak: np.uint16, code_max: np.float32) -> np.float32:
    return bf16_value(peak) / code_max if peak > 0 else np.float32(1.0)


@compiled
def _fp8_magnitude(value: np.float32) -> np.int32:
    """E4M3 code of a magnitude up to 480: exponent bias 7, 3 mantissa bits, ties to even."""
    bits = float_bits(value)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960  # 960: 8 x (127 - 7)
    subnormal = float_bits(np.float32(value + np.float32(16384.0))) - 0x46800000  # unit there: 2^-9
    return normal if bits >= 0x3C800000 else subnormal  # 2^-6


@compiled
def _encode_fp8(
    bits: NDArray[np.uint16],
    codes: NDArray[np.uint8],
    scales: NDArray[np.float32],
    code_max: np.float32,
    gain: np.float32,
    negative_zero: int,
) -> int:
    non_finite = 0
    for r in range(bits.shape[0]):
        peak = _row_peak(bits, r)
        non_finite += peak >= INFINITY_BITS
        scale = _row_scale(peak, code_max)
        scales[r, 0] = scale
        for c in range(bits.shape[1]):
            magnitude = bf16_value(np.uint16(bits[r, c] & np.uint16(0x7FFF))) / scale
            magnitude = min(magnitude, code_max)
            code = _fp8_magnitude(np.float32(magnitude * gain))
            sign = np.int32(bits[r, c] >> np.uint16(8)) & 0x80
            codes[r, c] = np.uint8(code | (sign if code > 0 else sign & negative_zero))
    return non_finite


@compiled
def _encode_int8(
    bits: NDArray[np.uint16], codes: NDArray[np.int8], scales: NDArray[np.float32], code_max: np.float32
) -> int:
    non_finite = 0
    for r in range(bits.shape[0]):
        peak = _row_peak(bits, r)
        non_finite += peak >= INFINITY_BITS
        scale = _row_scale(peak, code_max)
        scales[r, 0] = scale
        for c in range(bits.shape[1]):
            code = nearest_int(np.float32(bf16_value(bits[r, c]) / scale))
            codes[r, c] = np.int8(min(max(code, -127), 127))
    return non_finite


def encode_fp8_rows(
    bits: NDArray[np.uint16], codes: NDArray[np.uint8], scales: NDArray[np.float32], code_max: float
) -> int:
    """Fill codes and scales of a block of rows; the result is the count of rows with infinity or NaN.

    Parameters
    ----------
    bits
        bfloat16 patterns [n, k].
    codes, scales
        Filled: uint8 [n, k] and float32 [n, 1].
    code_max
        448 writes E4M3FN, 240 writes E4M3FNUZ.
    """
    fnuz = code_max < 448
    gain, negative_zero = (2.0, 0) if fnuz else (1.0, 0x80)
    return _encode_fp8(bits, codes, scales, np.float32(code_max), np.float32(gain), negative_zero)


def encode_int8_rows(
    bits: NDArray[np.uint16], codes: NDArray[np.int8], scales: NDArray[np.float32], code_max: float
) -> int:
    """Fill int8 codes [n, k] and float32 scales [n, 1]; the result counts rows with infinity or NaN."""
    return _encode_int8(bits, codes, scales, np.float32(code_max))


def _fp8_table(bias: int) -> NDArray[np.float32]:
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    magnitude = np.where(exponent > 0, 8 + mantissa, mantissa) * 2.0 ** (np.maximum(exponent, 1) - bias - 3)
    return (np.where(code & 0x80, -1.0, 1.0) * magnitude).astype(np.float32)


FP8_VALUES = _fp8_table(bias=7)
FP8_VALUES[[0x7F, 0xFF]] = np.nan
FP8FNUZ_VALUES = _fp8_table(bias=8)
FP8FNUZ_VALUES[0x80] = np.nan
