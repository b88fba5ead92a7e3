"""cells.csv: one line a cell and pass, for a spreadsheet. Pure; a text that a spreadsheet would run is defused."""

import csv
import io
from typing import Any

from tests.report.run import Cell, Run
from tests.report.spread import cell_interval, pooled
from tests.support.record import Record

COLUMNS = (
    "build", "linears", "tables", "pass", "concurrency", "prompt_tokens", "output_tokens", "outcome", "reason",
    "tok_per_s", "tok_per_s_low", "tok_per_s_high", "steady_tok_per_s", "ratio_bf16", "ttft_s", "tpot_s", "cv",
    "cv_at_most", "noisy", "repeats", "tok_per_s_repeats",
)  # fmt: skip


def defused(value: Any) -> Any:
    """Text that starts like a formula with an apostrophe before it; anything else as it is."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _line(run: Run, cell: Cell) -> dict[str, Any]:
    build = next(each for each in run.builds if each.name == cell.build)
    interval = cell_interval(cell, pooled([c for c in run.cells.values() if c.build == cell.build]))
    repeats = " ".join(f"{each.tok_per_s:.6g}" for each in cell.repeats)
    fields = {**vars(cell), "linears": build.linears, "tables": build.tables, "pass": cell.nth}
    fields |= {"ratio_bf16": cell.ratio, "noisy": "yes" if cell.load in run.noisy else "no"}
    fields |= {"tok_per_s_low": interval and interval.low, "tok_per_s_high": interval and interval.high}
    return fields | {"repeats": cell.repeat_count or None, "tok_per_s_repeats": repeats}


def cells_csv(record: Record) -> str:
    """Every cell, both passes of bf16; one that failed has its reason and empty figures."""
    run = Run(record)
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for cell in sorted(run.all_cells, key=lambda c: (c.build, c.nth, c.load)):
        writer.writerow({name: defused(value) for name, value in _line(run, cell).items()})
    return out.getvalue()
