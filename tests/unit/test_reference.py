"""What the second decoder says of single codes: served values of float8 on every device, and no value for a hole.

Written from the specifications; `test_third_decode` holds whole builds against a third decoder.
"""

import itertools

import numpy as np
import pytest

from quantkit.formats import FP8, FP8FNUZ, INT8, Scheme
from quantkit.reference import ANY_VALUES, CODEBOOKS, code_values, gfx94x_values, served_values


@pytest.mark.parametrize("scheme", [FP8, FP8FNUZ, INT8], ids=lambda scheme: scheme.name)
def test_gfx94x_serves_the_same_values_as_any_device(scheme: Scheme) -> None:
    """Reinterpreted bits and a doubled scale are exact, so that one served table stands for all devices."""
    finite = ~np.isnan(code_values(scheme))
    assert (gfx94x_values(scheme)[finite] == served_values(scheme)[finite]).all()


def test_fn_and_int8_are_served_as_stored_and_fnuz_but_for_16_codes() -> None:
    for scheme in (FP8, INT8):
        assert np.array_equal(served_values(scheme), code_values(scheme), equal_nan=True)
    stored, served = code_values(FP8FNUZ), served_values(FP8FNUZ)
    changed = np.flatnonzero((stored != served) & ~np.isnan(stored))
    assert len(changed) == 16
    assert (np.abs(stored[changed]) < 2.0**-6).all()
    assert (stored[changed] * 2**10 % 2 == 1).all()
    assert (np.abs(stored[changed] - served[changed]) == 2.0**-10).all()


@pytest.mark.parametrize(("scheme", "holes"), [(FP8, {0x7F, 0xFF}), (FP8FNUZ, {0x80}), (INT8, {0x80})])
def test_codes_that_may_not_occur(scheme: Scheme, holes: set[int]) -> None:
    book = CODEBOOKS[scheme.code_dtype]
    assert set(np.flatnonzero(np.isnan(book.values)).tolist()) == holes
    assert set(np.flatnonzero(book.low > book.high).tolist()) == holes  # no quotient has such a code
    assert np.isnan(ANY_VALUES[scheme.code_dtype]).sum() == len(holes) * (scheme != INT8)


@pytest.mark.parametrize("scheme", [FP8, FP8FNUZ, INT8], ids=lambda scheme: scheme.name)
def test_a_quotient_has_one_nearest_code_and_ties_go_to_even(scheme: Scheme) -> None:
    """Midpoints of neighbours lie in the interval of the even code, the floats beside them in the nearer one's."""
    book, values = CODEBOOKS[scheme.code_dtype], code_values(scheme)
    codes = [code for code in range(256) if values[code] >= 0 and not np.signbit(values[code])]
    for lower, upper in itertools.pairwise(codes):
        middle = np.float32((float(values[lower]) + float(values[upper])) / 2)
        even, odd = (lower, upper) if lower % 2 == 0 else (upper, lower)
        assert book.low[even] <= middle <= book.high[even]
        assert not book.low[odd] <= middle <= book.high[odd]
        assert book.high[lower] < np.nextafter(middle, np.float32(np.inf)) <= book.high[upper]
        assert book.low[upper] > np.nextafter(middle, np.float32(-np.inf)) >= book.low[lower]
