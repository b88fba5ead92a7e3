"""What failed, was not run or cannot exist: one line a cause and build. Pure, like `tables`."""

import re
from collections import Counter
from dataclasses import dataclass

from tests.report.caveats import disqualified
from tests.report.run import Run
from tests.report.tables import Column, Table
from tests.support.record import Row

OUTCOMES = ("failed", "not_run", "infeasible")  # in the order in which they matter
TOLD = 6  # items that a line names; of more the rest is counted
REPEAT_OF = re.compile(r"repeat-\d+-(.+)")


@dataclass(frozen=True)
class Cause:
    """Items of one build that ended alike, for one reason; of each its suite and name."""

    outcome: str
    build: str
    reason: str
    items: tuple[tuple[str, str], ...]

    @property
    def named(self) -> str:
        """The items by name, the first TOLD of them."""
        names = [f"{suite} {item}" for suite, item in self.items]
        more = f" and {len(names) - TOLD} more" if len(names) > TOLD else ""
        return ", ".join(names[:TOLD]) + more

    @property
    def counted(self) -> str:
        """The items in few words: the name of one, else how many of each suite."""
        if len(self.items) == 1:
            return " ".join(self.items[0])
        return ", ".join(f"{count} of {suite}" for suite, count in Counter(s for s, _ in self.items).items())


def causes(run: Run) -> list[Cause]:
    """Every cause, failures first; a repeat is left out where its cell's row says the same."""
    found: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for row in run.record.rows:
        if row.outcome != "ok" and not _told_by_its_cell(run, row):
            key = (row.outcome, row.build or "–", row.reason or "no reason recorded")
            found.setdefault(key, []).append((row.suite, row.item))
    keys = sorted(found, key=lambda key: OUTCOMES.index(key[0]))
    return [Cause(*key, tuple(found[key])) for key in keys]


def _told_by_its_cell(run: Run, row: Row) -> bool:
    cell = REPEAT_OF.fullmatch(row.item) if row.suite == "sweep" else None
    whole = run.row("sweep", row.build, cell[1]) if cell else None
    return whole is not None and whole.outcome != "ok"


def troubles(run: Run) -> Table:
    """The causes as a table."""
    out = disqualified(run)
    rows = tuple(
        (each.build, each.named, each.outcome.replace("_", " "), each.reason) for each in causes(run)
    )
    caption = "What failed, was not run or cannot exist, and why"
    note = f"; {len(out)} of {len(run.builds)} builds may not be picked" if out else ""
    columns = (Column("build"), Column("items"), Column("outcome"), Column("reason"))
    return Table("troubles", caption + note, columns, rows)
