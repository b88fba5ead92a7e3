"""Which rows of a record are cells, what the gate takes of them, and how far bf16 drifted; by hand."""

from dataclasses import replace

import pytest

from tests.support.gate.figures import cell_rows, drift, seen_cells, seen_of
from tests.support.gate.verdicts import Seen
from tests.support.miniatures.sweep_runs import cell_row
from tests.support.record import Row

CELL = cell_row("fp8", "8x128", (79.0, 80.0, 81.0), 0.8)
FAILED = replace(cell_row("fp8", "1x128", (1.0,)), outcome="failed")


def test_first_starts_of_the_sweep_are_cells_however_they_ended() -> None:
    others = [replace(CELL, item=item) for item in ("8x128@2", "repeat-1-8x128", "pair-first-1-8x128")]
    elsewhere = replace(CELL, suite="serve")
    assert cell_rows([CELL, FAILED, *others, elsewhere]) == {"fp8": {"8x128": CELL, "1x128": FAILED}}


def test_the_gate_sees_what_ended_ok_and_no_ratio_of_bf16_to_itself() -> None:
    assert seen_cells({"8x128": CELL, "1x128": FAILED}) == {"8x128": Seen((79.0, 80.0, 81.0), 0.8)}
    assert seen_of(replace(CELL, build="bf16")) == Seen((79.0, 80.0, 81.0), None)


def test_drift_is_bf16s_second_figure_over_its_first() -> None:
    def rows(build: str, first: float, second: float, outcome: str = "ok") -> list[Row]:
        made = [cell_row(build, item, (rate,)) for item, rate in (("8x128", first), ("8x128@2", second))]
        return [made[0], replace(made[1], outcome=outcome)]

    repeat = [replace(each, item=f"repeat-1-{each.item}") for each in rows("bf16", 100.0, 50.0)]
    assert drift([*rows("bf16", 100.0, 97.0), *repeat, *rows("fp8", 80.0, 40.0)]) == {
        "8x128": pytest.approx(0.97)
    }
    assert drift(rows("bf16", 100.0, 97.0, "failed")) == drift(rows("bf16", 100.0, 97.0)[1:]) == {}
