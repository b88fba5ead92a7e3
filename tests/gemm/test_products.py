"""What each number format can give on this device: the products of one token at each number of rows, and a square.

Speed is never asserted here: a row says what was measured, and the tests fail on wrong values and broken timings.
"""

from typing import Any

import pytest

from tests.support.gemm.backends import Backend
from tests.support.gemm.baseline import judge_item, path_of, require_no_worse
from tests.support.gemm.figures import cells_of
from tests.support.gemm.plan import Timing
from tests.support.gemm.rows import Ending, card_numbers, control_numbers, ending, product_numbers
from tests.support.gemm.samples import Timed
from tests.support.gemm.shapes import Token
from tests.support.plugins.recording import infeasible
from tests.support.settings import Settings

pytestmark = pytest.mark.xdist_group("engine")


def conclude(end: Ending) -> None:
    """End the test as its item ended."""
    if end.outcome == "infeasible":
        infeasible(end.reason)
    if end.outcome == "not_run":
        pytest.skip(end.reason)
    assert end.outcome == "ok", end.reason


def test_card(row: dict[str, Any], timed: Timed) -> None:
    """The device copies memory, and says what it is."""
    row |= card_numbers(timed)
    assert row["copy_gb_per_s"] > 0


def test_control(row: dict[str, Any], timed: Timed, backend: Backend) -> None:
    """A square product, which stands for the dense peak, has the right values."""
    numbers, end = control_numbers(timed, backend)
    row |= numbers
    conclude(end)


@pytest.mark.row("")
def test_products(
    row: dict[str, Any],
    settings: Settings,
    timed: Timed,
    timing: Timing,
    token: Token,
    backend: Backend,
    rows: int,
) -> None:
    """Every product of a token has the right values, a steady clock, and a ratio to bf16 that is no worse."""
    row |= product_numbers(timed, token, backend, rows)
    cells = cells_of(timed, backend, rows, token.shapes)
    conclude(ending(cells, timed.drift(backend.label, rows), timing.drift_limit))
    if backend is Backend.BF16 or settings.gate != "baseline":
        return
    path = path_of(settings.machine.name)
    item = f"{backend}-{rows}"
    verdict = judge_item(item, row, card_numbers(timed), path)
    row["baseline"] = verdict.to_dict()
    if not settings.machine.advisory_speed:
        require_no_worse(item, verdict)
