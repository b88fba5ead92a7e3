"""What each format did to the weights: every value of every build against its source.

The figures are the judge's (`quantkit.verify`); the bounds are asserted here once more, by the formats' own
arithmetic, so that a judge who forgets one is noticed.
"""

from collections.abc import Callable
from typing import Any

import pytest

from quantkit.formats import FP8, FP8FNUZ, INT4, INT8, Format, Scheme
from quantkit.metrics import SERVED, STORED, errors
from quantkit.model import Role
from quantkit.verify import Report
from tests.quant.faulty import refuse_faulty
from tests.support.plugins.recording import infeasible

HALF_STEP_OF_ROW = {  # largest |error| / row absmax: half the widest step between codes, over the largest code
    FP8: 16 / 448,
    FP8FNUZ: 8 / 240,
    INT8: 0.5 / 127,
}
FLOAT32 = 2.0**-22  # a division and a product in float32
INT4_OF_VALUE = 3 * 2.0**-8  # three roundings to bfloat16: the value's, the step's, the product's
NOT_FIGURES = ("schema_version", "source", "built", "build", "good", "problems")
OTHERS = "others made this build: it is judged by the bounds of its own rules, with its fidelity"

Verified = Callable[[Format], Report]


def _worst(report: Report, role: Role, view: int, name: str) -> float:
    """A maximum as stored or served, or 0 where the role holds nothing quantized; a NaN stays one."""
    figure = errors(report.measure(role), view)[name]
    if not report.measure(role).values:
        return 0.0
    return float("nan") if figure is None else float(figure)


def _row_bound(scheme: Scheme, view: int) -> float:
    """An FNUZ file is cast to E4M3FN on loading, which moves codes below its normal range by 2^-10."""
    cast = 2.0**-10 / FP8FNUZ.code_max if scheme == FP8FNUZ and view == SERVED else 0.0
    return HALF_STEP_OF_ROW[scheme] + cast + FLOAT32


def test_fidelity(build: Format, verified: Verified, row: dict[str, Any]) -> None:
    report = verified(build)
    row.update({key: value for key, value in report.to_dict().items() if key not in NOT_FIGURES})
    refuse_faulty(build.name, report.problems)
    found = report.found
    assert {module.scheme for module in found.of(Role.LINEAR)} == {build.linears}
    kinds = {module.source.kind for module in found.of(Role.TABLE)}
    assert {m.source.kind for m in found.of(Role.TABLE) if m.scheme == INT4} == kinds & build.tables
    assert row["modules"] == len(found.of(Role.LINEAR)) * (build.linears is not None)
    assert row["tables"]["modules"] == len(kinds & build.tables) + build.unties_lm_head


def test_bounds(build: Format, verified: Verified, row: dict[str, Any]) -> None:
    """No value lies farther from its source than the format's own rounding explains."""
    report = verified(build)
    if not build.schemes:
        infeasible("nothing is quantized in this build")
    if report.others:
        infeasible(OTHERS)
    for role, scheme in ((Role.LINEAR, build.linears), (Role.TABLE, INT4 if build.tables else None)):
        if scheme is None:
            continue
        name = "max_rel_err_per_element" if scheme.packed else "max_err_over_row_absmax"
        for view, label in ((STORED, "as_stored"), (SERVED, "as_served")):
            bound = INT4_OF_VALUE if scheme.packed else _row_bound(scheme, view)
            worst = _worst(report, role, view, name)
            row[f"{role.value}_{label}"] = {"figure": name, "worst": worst, "bound": bound}
            assert worst <= bound


def test_grid(build: Format, verified: Verified, row: dict[str, Any]) -> None:
    """Every int4 group lies on its lattice; 0 off it."""
    if not build.needs_grid:
        infeasible("nothing is int4 in this build")
    report = verified(build)
    if report.others:
        infeasible(OTHERS)
    for role in (Role.LINEAR, Role.TABLE):
        measure = report.measure(role)
        row[f"{role.value}_groups"] = measure.groups
        row[f"{role.value}_groups_off_grid"] = measure.groups_off_grid
        row[f"{role.value}_negative_steps"] = measure.negative_steps
        assert measure.groups_off_grid == 0
        assert measure.groups * 32 == measure.values * (measure.groups > 0)
    assert row["linear_groups"] + row["table_groups"] > 0


def test_copied(build: Format, verified: Verified, row: dict[str, Any]) -> None:
    """Tensors that are not quantized are the source's own, byte for byte; none is lost, none added."""
    report = verified(build)
    row.update(copied=report.copied, copied_identical=report.copied_identical)
    row.update(missing=list(report.layout.missing), unexpected=list(report.layout.unexpected))
    assert report.copied > 0
    assert report.copied_identical == report.copied
    assert row["missing"] == []
    assert row["unexpected"] == []


@pytest.mark.row("views")
def test_served_view(build: Format, verified: Verified, row: dict[str, Any]) -> None:
    """The loader changes values of E4M3FNUZ files only: 16 small codes have no E4M3FN neighbour that close."""
    report = verified(build)
    if build.linears is None:
        infeasible("linears are bf16 in this build")
    stored, served = (report.measure(Role.LINEAR).relative_rms(view) for view in (STORED, SERVED))
    row.update(relative_rms_as_stored=stored, relative_rms_as_served=served)
    if build.linears == FP8FNUZ:
        assert stored <= served <= stored * (1 + 2.0**-7)
    else:
        assert served == stored
