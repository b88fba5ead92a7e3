"""--force-regen: new baselines from named runs, written only where nothing speaks against it.

Joins records and baselines; knows no pytest. Every refusal is an error with its reason. Imported by `gating`.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit.errors import QuantkitError
from tests.support.gate.baseline import Entry, differences, key_of, path_of, read_entries
from tests.support.gate.figures import cell_rows, seen_of
from tests.support.gate.verdicts import Expected, tolerance_by_cell
from tests.support.load.cellcheck import FIGURES
from tests.support.record import Record, Row
from tests.support.stats import cv

BOOTS, REPEATS = 3, 3  # fewer do not show how boots and repeats differ: the baseline is then provisional
HINT = 'no worse cell, or --accept-regression "why"'
CV_LIMIT = 0.20  # a cell that varies more is no measurement; the worst public one varied by 15.7 %


class RegenRefused(QuantkitError):
    """No baseline may be written from this."""


@dataclass(frozen=True)
class Change:
    """One cell, old against new, in tokens a second."""

    build: str
    cell: str
    old: float | None
    new: float
    worse: bool

    def __str__(self) -> str:
        old = "none" if self.old is None else f"{self.old:.2f}"
        ratio = "" if self.old is None else f", ratio {self.new / self.old:.3f}"
        return (
            f"{self.build} {self.cell}: old {old}, new {self.new:.2f}{ratio}{' WORSE' if self.worse else ''}"
        )


def refuse_here(environment: Mapping[str, str], workers: bool) -> None:
    """Refuse where nobody looks, or where more than one process would write.

    Raises
    ------
    RegenRefused
        In CI, and under xdist.
    """
    if environment.get("CI", "").lower() not in ("", "0", "false"):
        raise RegenRefused(
            "--force-regen in CI", got="CI is set", expected="a person who looks at the difference"
        )
    if workers:
        raise RegenRefused(
            "--force-regen under xdist", got="-n", expected="one process", hint="leave -n away"
        )


def new_entries(
    records: Mapping[str, Record], accepted: str, asked: Collection[str] | None = None
) -> dict[str, Entry]:
    """One entry a build, of all its cells in all the runs.

    Parameters
    ----------
    records
        By the run's name.
    accepted
        The reason given for a worse figure.
    asked
        Builds whose baselines are made anew; all that the runs hold by default.

    Raises
    ------
    RegenRefused
        Where runs are missing, not comparable, lack a cell, or hold a figure that is no measurement.
    """
    headers = {name: record.header for name, record in records.items()}
    key = _common_key(headers)
    grids = {name: cell_rows(record.rows) for name, record in records.items()}
    held = dict.fromkeys(build for grid in grids.values() for build in grid)
    builds = [build for build in held if asked is None or build in asked]
    if not builds:
        raise RegenRefused("runs to merge", got="no sweep cell asked for", expected="runs of tests/sweep")
    return {build: _entry(build, grids, headers, key, accepted) for build in builds}


def _common_key(headers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    keys = {name: key_of(header) for name, header in headers.items()}
    first, *others = keys
    for name in others:
        if differs := differences(keys[name], keys[first]):
            raise RegenRefused(f"runs {first} and {name}", got="; ".join(differs), expected="comparable runs")
    return keys[first]


def _entry(
    build: str,
    grids: Mapping[str, Mapping[str, Mapping[str, Row]]],
    headers: Mapping[str, Mapping[str, Any]],
    key: dict[str, Any],
    accepted: str,
) -> Entry:
    names = dict.fromkeys(cell for grid in grids.values() for cell in grid.get(build, {}))
    rows = {cell: [_good_row(build, cell, run, grid) for run, grid in grids.items()] for cell in names}
    seen = {cell: [seen_of(row) for row in found] for cell, found in rows.items()}
    cells = {
        cell: Expected(
            tuple(each.repeats for each in boots),
            tuple(each.ratio for each in boots if each.ratio is not None),
        )
        for cell, boots in seen.items()
    }
    times = {
        cell: {name: [float(row.numbers[name]) for row in found] for name in ("ttft_s", "tpot_s")}
        for cell, found in rows.items()
    }
    short = len(grids) < BOOTS or any(len(boot) < REPEATS for each in cells.values() for boot in each.boots)
    runs = tuple(
        {"run": n, "started": str(h["started"]), "commit": str(h["commit"])} for n, h in headers.items()
    )
    newest = runs[-1]
    return Entry(key, short, time.strftime("%Y-%m-%d"), newest["commit"], accepted, runs, cells, times)


def _good_row(build: str, cell: str, run: str, grid: Mapping[str, Mapping[str, Row]]) -> Row:
    row = grid.get(build, {}).get(cell)
    where = f"{build} {cell} of run {run}"
    if row is None or row.outcome != "ok":
        got = "no such cell" if row is None else f"{row.outcome}: {row.reason}"
        raise RegenRefused(where, got=got, expected="a cell that ended ok in every run")
    for name in FIGURES:
        value = row.numbers.get(name)
        if not (isinstance(value, int | float) and 0 < value < float("inf")):
            raise RegenRefused(f"{name} of {where}", got=value, expected="a finite positive number")
    repeats = seen_of(row).repeats
    spread = cv(repeats) or 0.0
    if not spread <= CV_LIMIT:
        raise RegenRefused(f"cv of {where}", got=f"{spread:.1%}", expected=f"at most {CV_LIMIT:.0%}")
    return row


def changes(build: str, old: Entry | None, new: Entry) -> list[Change]:
    """Every cell, old against new; worse where it fell by more than the old baseline's tolerance."""
    limits = tolerance_by_cell(old.cells, old.provisional) if old else {}
    found = []
    for cell, expected in new.cells.items():
        before = old.cells.get(cell) if old else None
        worse = before is not None and not expected.tok_per_s >= before.tok_per_s * (1 - limits[cell])
        found.append(Change(build, cell, before.tok_per_s if before else None, expected.tok_per_s, worse))
    return found


def planned_files(
    machine: str, entries: Mapping[str, Entry], root: Path
) -> tuple[dict[Path, list[Entry]], list[Change]]:
    """What would be written, and how it differs from what is there.

    Raises
    ------
    RegenRefused
        Where a cell is worse, or gone, and no reason was given.
    """
    files: dict[Path, list[Entry]] = {}
    found: list[Change] = []
    for build, entry in entries.items():
        path = path_of(machine, build, root)
        there = read_entries(path)
        old = next((each for each in there if not differences(entry.key, each.key)), None)
        gone = sorted(old.cells.keys() - entry.cells.keys()) if old else []
        if gone and not entry.accepted:
            raise RegenRefused(f"{build} {gone[0]}", got="no such cell in the runs", expected=HINT)
        found += changes(build, old, entry)
        files[path] = [*(each for each in there if each is not old), entry]
    if (worse := [change for change in found if change.worse]) and not next(iter(entries.values())).accepted:
        raise RegenRefused("new baseline", got="; ".join(map(str, worse)), expected=HINT)
    return files, found
