"""Rows of bfloat16 values <-> fp8 and int8 codes with one float32 scale a row.

Pure; int4 lies in `grid`. scale = row absmax / code_max in float32, 1 for a zero row; the code is the one
nearest to value / scale (divided in float32), ties to even. It never exceeds code_max, since the absmax itself
does not: the tests try every bfloat16. FNUZ codes are the FN codes of twice the value, without a negative zero:
that pattern is its NaN.
"""

import numpy as np
from numpy.typing import NDArray

from quantkit.kernels import bf16_value, compiled, f32, float_bits, nearest_int, u8, u16, u32

Bits = NDArray[np.uint16]
Floats = NDArray[np.float32]


@compiled
def _row_scales(rows: Bits, scales: Floats, code_max: np.float32) -> int:
    """Fill scales [n, 1]; the result counts rows with infinity or NaN."""
    non_finite = 0
    for r in range(rows.shape[0]):
        peak = u16(0)
        for c in range(rows.shape[1]):
            peak = max(peak, u16(rows[r, c] & u16(0x7FFF)))
        scales[r, 0] = f32(bf16_value(peak) / code_max) if peak > 0 else f32(1.0)
        non_finite += int(peak >= u16(0x7F80))
    return non_finite


@compiled
def _fp8_magnitude(value: np.float32) -> np.uint32:
    """E4M3 code of a magnitude up to 480: exponent bias 7, 3 mantissa bits, ties to even."""
    bits = float_bits(value)
    odd = u32(u32(bits >> u32(20)) & u32(1))
    normal = u32(u32(u32(u32(bits + u32(0x7FFFF)) + odd) >> u32(20)) - u32(960))  # 960: 8 x (127 - 7)
    subnormal = u32(float_bits(f32(value + f32(16384.0))) - u32(0x46800000))  # the last place of 2^14 is 2^-9
    return normal if bits >= u32(0x3C800000) else subnormal  # 2^-6


@compiled
def _fp8_codes(
    rows: Bits,
    codes: NDArray[np.uint8],
    scales: Floats,
    code_max: np.float32,
    gain: np.float32,
    zero_sign: np.uint32,
) -> None:
    for r in range(rows.shape[0]):
        row, out, scale = rows[r], codes[r], scales[r, 0]
        for c in range(row.size):
            bits = u32(row[c])
            # The minimum also keeps the compiler from multiplying first, which overflows near the largest float.
            magnitude = min(f32(bf16_value(u16(bits & u32(0x7FFF))) / scale), code_max)
            code = _fp8_magnitude(f32(magnitude * gain))
            sign = u32(u32(bits >> u32(8)) & u32(0x80))
            out[c] = u8(code | (sign if code > u32(0) else u32(sign & zero_sign)))


@compiled
def _int8_codes(rows: Bits, codes: NDArray[np.int8], scales: Floats) -> None:
    for r in range(rows.shape[0]):
        row, out, scale = rows[r], codes[r], scales[r, 0]
        for c in range(row.size):
            out[c] = np.int8(nearest_int(f32(bf16_value(row[c]) / scale)))


def encode_fp8_rows(rows: Bits, codes: NDArray[np.uint8], scales: Floats, code_max: float) -> int:
    """Fill codes and scales of a block of rows; the result is the count of rows with infinity or NaN.

    Parameters
    ----------
    rows
        bfloat16 patterns [n, k].
    codes, scales
        Filled: uint8 [n, k] and float32 [n, 1].
    code_max
        448 writes E4M3FN, 240 writes E4M3FNUZ.
    """
    fnuz = code_max < 448
    gain, zero_sign = (f32(2.0), u32(0)) if fnuz else (f32(1.0), u32(0x80))
    non_finite = _row_scales(rows, scales, f32(code_max))
    _fp8_codes(rows, codes, scales, f32(code_max), gain, zero_sign)
    return non_finite


def encode_int8_rows(rows: Bits, codes: NDArray[np.int8], scales: Floats, code_max: float) -> int:
    """Fill int8 codes [n, k] and float32 scales [n, 1]; the result counts rows with infinity or NaN."""
    non_finite = _row_scales(rows, scales, f32(code_max))
    _int8_codes(rows, codes, scales)
    return non_finite


def _fp8_table(bias: int) -> NDArray[np.float32]:
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    magnitude = np.where(exponent > 0, 8 + mantissa, mantissa) * 2.0 ** (np.maximum(exponent, 1) - bias - 3)
    return np.asarray(np.where(code & 0x80, -1.0, 1.0) * magnitude, np.float32)


FP8_VALUES = _fp8_table(bias=7)
FP8_VALUES[[0x7F, 0xFF]] = np.nan
FP8FNUZ_VALUES = _fp8_table(bias=8)
FP8FNUZ_VALUES[0x80] = np.nan
