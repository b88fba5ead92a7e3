"""The judge's tolerances by brute force: no wider than what the formats' own rounding does at its worst.

A bound that is twice too wide passes every good build, so only a figure found another way can hold it.
"""

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from quantkit import bounds
from quantkit.foreign import DIVISORS, LATTICE, Rules, bound_over_absmax
from quantkit.formats import FP8, FP8FNUZ, INT4, INT8, Scheme

SCHEMES = (FP8, FP8FNUZ, INT8, INT4)
FLOAT8 = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz}
LOWEST = {"I8": -128, "I32": -8}


def rounded(quotients: NDArray[np.float64], scheme: Scheme) -> NDArray[np.float64]:
    """The nearest code's value, clipped to what the codes hold."""
    lowest = LOWEST.get(scheme.code_dtype, -scheme.code_max)
    inside = np.clip(quotients, lowest, scheme.code_max)
    if scheme.code_dtype in FLOAT8:
        return inside.astype(FLOAT8[scheme.code_dtype]).astype(np.float64)
    return np.rint(inside)


def worst(scheme: Scheme, divisor: float) -> float:
    """Largest |error| / absmax over a dense line of quotients, where absmax is `divisor` scales."""
    quotients = np.linspace(-divisor, divisor, 400_001)
    return float(np.abs(rounded(quotients, scheme) - quotients).max() / divisor)


@pytest.mark.parametrize("scheme", [FP8, FP8FNUZ, INT8], ids=lambda scheme: scheme.name)
def test_the_bound_over_the_absmax_is_the_worst_there_is(scheme: Scheme) -> None:
    bound = bounds.OVER_ROW_ABSMAX[scheme.code_dtype]
    assert worst(scheme, scheme.code_max) <= bound <= worst(scheme, scheme.code_max) * 1.001


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_the_bound_of_another_s_rule_is_the_worst_there_is(scheme: Scheme) -> None:
    for rule, divisor in DIVISORS[scheme.code_dtype].items():
        bound = bound_over_absmax(scheme, Rules(1, {rule: 1}, 0.0), "F32")
        assert worst(scheme, divisor) <= bound <= worst(scheme, divisor) * 1.001
    unknown = bound_over_absmax(scheme, Rules(1, {}, 0.0), "F32")
    widest = max(worst(scheme, divisor) for divisor in DIVISORS[scheme.code_dtype].values())
    assert unknown <= 2.001 * widest


def test_a_narrow_scale_adds_its_own_rounding() -> None:
    exact, narrow = (bound_over_absmax(INT8, Rules(1, {"absmax / 127": 1}, 0.0), t) for t in ("F32", "BF16"))
    assert 2.0**-8 <= narrow - exact <= 2.0**-8 * 1.01
    assert bound_over_absmax(INT4, Rules(1, {LATTICE: 1}, 0.0), "F32") <= 2.0**-7 * 1.001


def test_the_lattice_tolerates_two_roundings_and_what_is_read_three() -> None:
    assert bounds.GRID_TOLERANCE == 2.0**-7
    assert 0.01087 <= bounds.INT4_PER_ELEMENT == 3 * 2.0**-8  # 0.01087 is the worst published for E2B


@pytest.mark.parametrize("scheme", [FP8, FP8FNUZ], ids=lambda scheme: scheme.name)
def test_a_float8_value_is_off_by_a_sixteenth_at_most(scheme: Scheme) -> None:
    normal = np.linspace(1, 2, 100_001)
    share = float((np.abs(rounded(normal, scheme) - normal) / normal).max())
    assert share <= bounds.FP8_HALF_STEP <= share * 1.07  # the worst lies at 17/16
    # below the normal range, the widest error in units of the scale, the peak alone code_max scales long
    small = np.linspace(0, 2.0**-6, 100_001)
    assert float(np.abs(rounded(small, scheme) - small).max()) <= bounds.FP8_UNDERFLOW
    assert bounds.relative_rms_bound(scheme, 1) <= bounds.FP8_HALF_STEP * 1.001


def test_an_int8_row_is_off_by_half_a_level_in_every_value() -> None:
    width = 256
    values = np.full(width, 0.5)
    values[0] = 127
    error = np.abs(rounded(values, INT8) - values)
    ratio = float(np.linalg.norm(error) / 127)  # the signal is no less than its peak
    assert ratio <= bounds.relative_rms_bound(INT8, width) <= ratio * 1.01


def test_a_step_is_nearly_a_tie_only_within_the_fit_s_own_rounding() -> None:
    assert bounds.STEP_TIE_MARGIN == 32 * 2.0**-24
