"""The sweep: every repeat of every cell of every boot is a row, then each cell's medians are one.

Whether a figure is a number is `cellcheck`'s to say, whether it is a good one the gate's; here it is measured.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.cells import GRIDS, Cell
from tests.support.load.cellcheck import CellRefused
from tests.support.load.summary import cell_numbers
from tests.support.plugins.recording import LEDGER, infeasible
from tests.support.plugins.serving import Server
from tests.support.settings import Boot, Settings

pytestmark = pytest.mark.xdist_group("engine")


def test_repeat(
    server: Server,
    repeat: int,
    cell: Cell,
    row: dict[str, Any],
    measure_cell: Callable[[Server, Cell, int], dict[str, Any]],
) -> None:
    """One repeat of one cell is a number."""
    row.update(measure_cell(server, cell, repeat))


@pytest.mark.row("")
def test_cell(
    boot: Boot,
    cell: Cell,
    row: dict[str, Any],
    settings: Settings,
    recorded: Callable[[str, str, str], dict[str, Any] | None],
    pytestconfig: pytest.Config,
) -> None:
    """All repeats of a cell are numbers, and make one."""
    repeats = []
    for repeat in range(1, GRIDS[settings.grid].repeats + 1):
        item = f"repeat-{repeat}-{cell}" + (f"@{boot.nth}" if boot.nth > 1 else "")
        made = pytestconfig.stash[LEDGER].rows.get(("sweep", boot.build.name, item))
        if made is not None and made.outcome == "infeasible":
            infeasible(made.reason)
        if made is None or made.outcome != "ok":
            raise CellRefused(
                f"repeat {repeat} of {cell}", got=made.reason if made else "not run", expected="a number"
            )
        repeats.append(made.numbers)
    first = recorded("sweep", "bf16", str(cell))
    itself = boot.build.name == "bf16" and boot.nth == 1
    numbers = cell_numbers(repeats, None if first is None else first["tok_per_s"])
    row.update(
        concurrency=cell.concurrency,
        prompt_tokens=cell.prompt_tokens,
        **{**numbers, "ratio_bf16": 1.0 if itself else numbers["ratio_bf16"]},
        output_tokens=cell.output_tokens,
    )
