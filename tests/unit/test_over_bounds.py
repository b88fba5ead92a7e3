"""What the judge says of a module's figures and faults: each bound by itself, and where in the module.

Measures are made by hand, so that no other rule speaks first.
"""

import numpy as np
import pytest

from quantkit import foreign
from quantkit.as_found import Module
from quantkit.bounds import INT4_PER_ELEMENT, OVER_ROW_ABSMAX, relative_rms_bound
from quantkit.formats import FP8, FP8FNUZ, INT4, INT8, Scheme
from quantkit.metrics import ERROR_ENERGY, MAX_OVER_ROW, MAX_PER_ELEMENT, SIGNAL_ENERGY, STORED, Measure
from quantkit.model import Role, Tensor
from quantkit.verify_values import Faults, Verdict, as_findings, over_bounds

WIDTH = 64
SCHEMES = pytest.mark.parametrize("scheme", [FP8, FP8FNUZ, INT8, INT4], ids=lambda scheme: scheme.name)


def module(scheme: Scheme) -> Module:
    """A module of that scheme."""
    return Module("m", Tensor("m.weight", "m", "m", Role.LINEAR, (8, WIDTH)), scheme, True, WIDTH)


def said(scheme: Scheme, rms: float, worst: float) -> list[tuple[str, str]]:
    """Kind, and what was expected, of figures that are these shares of their bounds."""
    measure = Measure(values=8 * WIDTH)
    measure.sums[STORED, SIGNAL_ENERGY] = 1
    measure.sums[STORED, ERROR_ENERGY] = (rms * relative_rms_bound(scheme, WIDTH)) ** 2
    column = MAX_PER_ELEMENT if scheme.packed else MAX_OVER_ROW
    measure.sums[STORED, column] = worst * (
        INT4_PER_ELEMENT if scheme.packed else OVER_ROW_ABSMAX[scheme.code_dtype]
    )
    return [(finding.kind, finding.got.split()[0]) for finding in over_bounds(module(scheme), measure)]


@SCHEMES
def test_each_bound_speaks_for_itself(scheme: Scheme) -> None:
    assert said(scheme, 0.999, 0.999) == []
    assert said(scheme, 1.001, 0.999) == [("error_over_bound", "relative")]
    assert len(said(scheme, 0.999, 1.001)) == 1
    assert said(scheme, 0.999, 1.001)[0][0] == "error_over_bound"


@SCHEMES
def test_what_is_no_number_is_beyond(scheme: Scheme) -> None:
    assert [kind for kind, _ in said(scheme, np.nan, np.nan)] == ["decoder_fault", *["error_over_bound"] * 2]


@SCHEMES
def test_nothing_but_zeros_is_the_decoder_s_fault(scheme: Scheme) -> None:
    """The error is then just as large as the signal."""
    measure = Measure(values=8 * WIDTH)
    measure.sums[STORED, [ERROR_ENERGY, SIGNAL_ENERGY]] = 2
    theirs = foreign.over_bounds(module(scheme), measure, foreign.NO_RULES, "BF16")
    assert [next(found).kind for found in (over_bounds(module(scheme), measure), theirs)] == [
        "decoder_fault"
    ] * 2


@pytest.mark.parametrize(
    ("scheme", "kind", "at"),
    [
        (INT4, "off_grid", "first in row 3, group 5"),
        (INT8, "code_not_nearest", "first in row 3, column 5"),
        (INT8, "scale_not_rule", "first in row 3"),
    ],
)
def test_a_fault_is_placed_by_group_or_column_and_a_scale_by_row(scheme: Scheme, kind: str, at: str) -> None:
    (finding,) = as_findings(module(scheme), Verdict(Measure(), (Faults(kind, 2, 3, 5),)))
    assert (finding.where, finding.got, finding.count) == ("m", at, 2)
