"""The sweep rows of a run record as figures a gate can compare. Pure; imported by `gating` and `regen`.

A row counts only when it ended ok; the second start of bf16 is for the run's drift, never for a baseline.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tests.support.gate.verdicts import Seen
from tests.support.record import Row

CELL = re.compile(r"\d+x\d+")


def cell_rows(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    """Sweep rows of first starts, by build and cell, however they ended."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row.suite == "sweep" and CELL.fullmatch(row.item):
            found.setdefault(row.build, {})[row.item] = row
    return found


def seen_of(row: Row) -> Seen:
    """A cell's row as the gate compares it."""
    numbers = row.numbers
    ratio = None if row.build == "bf16" else numbers.get("ratio_bf16")
    return Seen(tuple(repeat["tok_per_s"] for repeat in numbers["repeats"]), ratio)


def seen_cells(rows: Mapping[str, Row]) -> dict[str, Seen]:
    """The cells that ended ok."""
    return {cell: seen_of(row) for cell, row in rows.items() if row.outcome == "ok"}


def drift(rows: Iterable[Row]) -> dict[str, float]:
    """By cell, bf16's second figure over its first: how far the run drifted."""
    done: dict[str, Mapping[str, Any]] = {
        row.item: row.numbers
        for row in rows
        if row.suite == "sweep" and row.build == "bf16" and row.outcome == "ok"
    }
    again = {item.removesuffix("@2"): numbers for item, numbers in done.items() if item.endswith("@2")}
    return {
        cell: numbers["tok_per_s"] / done[cell]["tok_per_s"]
        for cell, numbers in again.items()
        if CELL.fullmatch(cell) and cell in done
    }
