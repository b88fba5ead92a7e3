"""fp8 and int8 rows: golden bytes by hand, all 256 patterns, nearest code and hard bounds on any row."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantkit.codes import FP8_VALUES, FP8FNUZ_VALUES, encode_fp8_rows, encode_int8_rows
from tests.unit.bits import from_bf16, to_bf16
from tests.unit.golden_codes import FP8_ROWS, FP8FNUZ_ROWS, INT8_ROWS

# code_max, values of all patterns, worst error over the row's absmax: half a step of the top binade, or of a code
FN = (448.0, FP8_VALUES, 16 / 448)
FNUZ = (240.0, FP8FNUZ_VALUES, 8 / 240)
INT8 = (127.0, np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32), 0.5 / 127)
CODES = {"fp8": FN, "fp8fnuz": FNUZ, "int8": INT8}
FLOAT32_ROUNDING = 2.0**-22  # of scale and quotient, beyond the bound of exact arithmetic


def encode(rows: NDArray[np.uint16], code_max: float) -> tuple[NDArray[np.uint8], NDArray[np.float32], int]:
    """Codes as bytes, scales, and rows with infinity or NaN; buffers start as garbage."""
    codes, scales = np.full(rows.shape, 0xA5, np.uint8), np.full((len(rows), 1), np.nan, np.float32)
    if code_max == 127:
        return codes, scales, encode_int8_rows(rows, codes.view(np.int8), scales, code_max)
    return codes, scales, encode_fp8_rows(rows, codes, scales, code_max)


GOLDEN = [(448.0, *row) for row in FP8_ROWS]
GOLDEN += [(240.0, *row) for row in FP8FNUZ_ROWS]
GOLDEN += [(127.0, *row) for row in INT8_ROWS]


@pytest.mark.parametrize(
    ("code_max", "values", "scale", "codes"),
    [(row[0], *row[2:]) for row in GOLDEN],
    ids=[f"{row[0]:.0f}-{row[1]}" for row in GOLDEN],
)
def test_golden_rows(code_max: float, values: list[float], scale: float, codes: str) -> None:
    found, scales, non_finite = encode(to_bf16([values]), code_max)
    assert found.tobytes().hex(" ") == codes
    assert scales.tolist() == [[scale]]
    assert non_finite == 0


@pytest.mark.parametrize(
    ("table", "dtype"),
    [(FP8_VALUES, ml_dtypes.float8_e4m3fn), (FP8FNUZ_VALUES, ml_dtypes.float8_e4m3fnuz)],
    ids=["fp8", "fp8fnuz"],
)
def test_all_256_patterns_mean_what_ml_dtypes_says(table: NDArray[np.float32], dtype: type) -> None:
    reference = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    assert np.array_equal(table, reference, equal_nan=True)
    assert (np.signbit(table) == np.signbit(reference))[~np.isnan(reference)].all()


@pytest.mark.parametrize("name", ["fp8", "fp8fnuz"])
def test_every_finite_code_encodes_to_itself(name: str) -> None:
    code_max, table, _ = CODES[name]
    finite = np.flatnonzero(np.isfinite(table)).astype(np.uint8)
    row = np.concatenate([table[finite], [code_max]])[None, :]
    codes, scales, _ = encode(to_bf16(row), code_max)
    assert scales.tolist() == [[1.0]]
    assert codes[0, :-1].tolist() == finite.tolist()


@pytest.mark.parametrize("name", CODES)
def test_the_absmax_of_any_row_is_the_largest_code(name: str) -> None:
    """Every finite bfloat16 as its row's absmax, subnormal ones too, whose scales have few bits."""
    magnitudes = np.arange(1, 0x7F80, dtype=np.uint16)
    codes, _, non_finite = encode(np.stack([magnitudes, magnitudes | 0x8000], axis=1), CODES[name][0])
    largest = {"fp8": (0x7E, 0xFE), "fp8fnuz": (0x7F, 0xFF), "int8": (0x7F, 0x81)}[name]
    assert non_finite == 0
    assert (codes == largest).all()


@pytest.mark.parametrize("name", CODES)
def test_a_row_with_infinity_or_nan_is_counted(name: str) -> None:
    rows = to_bf16([[1.0, 2.0], [np.inf, 1.0], [np.nan, 1.0], [-np.inf, 0.0]])
    assert encode(rows, CODES[name][0])[2] == 3


@pytest.mark.parametrize("name", CODES)
@given(
    rows=st.integers(1, 4),
    width=st.integers(1, 70),
    exponent=st.integers(-100, 100),
    seed=st.integers(0, 2**32 - 1),
)
def test_nearest_code_and_bound_on_any_row(
    name: str, rows: int, width: int, exponent: int, seed: int
) -> None:
    code_max, table, bound = CODES[name]
    values = np.random.default_rng(seed).standard_t(3, (rows, width)) * 2.0**exponent
    bits = to_bf16(values)
    before = bits.copy()
    codes, scales, non_finite = encode(bits, code_max)
    source, absmax = from_bf16(bits), np.abs(from_bf16(bits)).max(axis=1, keepdims=True)
    expected = np.where(absmax > 0, absmax.astype(np.float32) / np.float32(code_max), np.float32(1))
    assert non_finite == 0
    assert (bits == before).all()
    assert (scales == expected).all()
    decoded = table[codes].astype(np.float64) * scales
    assert (np.abs(decoded - source) <= (bound + FLOAT32_ROUNDING) * absmax).all()
    lattice = np.unique(table[np.isfinite(table)]).astype(np.float64)
    every = np.abs(source[..., None] - lattice * scales[..., None].astype(np.float64)).min(axis=-1)
    assert (np.abs(decoded - source) <= every + FLOAT32_ROUNDING * absmax).all()
