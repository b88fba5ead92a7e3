"""The gate's verdicts as tables: how many of each, and cell by cell. Pure, like `tables`; judges nothing."""

from collections import Counter
from typing import Any

from tests.report.run import Gap, Run
from tests.report.tables import Column, Table
from tests.support.record import Row

VERDICTS = ("worse", "gone", "not comparable", "better", "new", "same")  # in the order in which they matter


def verdict_of(row: Row) -> str:
    """The verdict in words."""
    return str(row.numbers.get("verdict") or row.outcome).replace("_", " ")


def counts(run: Run) -> Table:
    """A row a build, a column a verdict."""
    found: dict[str, Counter[str]] = {}
    for row in run.record.of("gate"):
        found.setdefault(row.build or "–", Counter())[verdict_of(row)] += 1
    rows = tuple((build, *(count[verdict] for verdict in VERDICTS)) for build, count in found.items())
    columns = (Column("build"), *(Column(verdict, "whole") for verdict in VERDICTS))
    return Table("verdicts", "Cells by verdict against the baseline", columns, rows)


def _verdict(row: Row) -> tuple[Any, ...]:
    numbers, gap = row.numbers, Gap(row.reason or str(row.numbers.get("why") or "nothing to compare with"))
    figures = (numbers.get(key) for key in ("ratio", "ratio_bf16", "tolerance"))
    shown = (gap if value is None else value for value in figures)
    why = numbers.get("why") or row.reason or "–"
    decides = "yes" if numbers.get("enforced") else "no"
    return (row.build or "–", row.item, verdict_of(row), *shown, decides, why)


def verdicts(run: Run) -> Table:
    """A row a cell, those that matter most first."""
    rows = sorted(run.record.of("gate"), key=lambda row: (_rank(row), row.build))
    figures = (Column("speed, new / old", "ratio"), Column("ratio to bf16, new / old", "ratio"))
    ends = (Column("tolerance", "percent"), Column("decides"), Column("why"))
    columns = (Column("build"), Column("cell"), Column("verdict"), *figures, *ends)
    return Table("gate", "Each cell against its baseline", columns, tuple(map(_verdict, rows)))


def _rank(row: Row) -> int:
    verdict = verdict_of(row)
    return VERDICTS.index(verdict) if verdict in VERDICTS else -1
