"""The run record: a header, one row per item, a footer with counts. Pure but for reading and writing its file.

Knows no suite and no pytest. The reader refuses what cannot be trusted: a record without a footer, with an
item twice, with counts that do not match, or with a number that is not finite.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantkit.errors import BadRecord

SCHEMA_VERSION = 1
OUTCOMES = ("ok", "failed", "infeasible", "not_run")
RECORD = "record.jsonl"

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Row:
    """One item of a run: what was measured, how it ended, and its numbers.

    Attributes
    ----------
    suite, build, item
        The key; ``build`` is empty where a row belongs to none.
    outcome
        One of OUTCOMES.
    reason
        One sentence, empty for ``ok``.
    """

    suite: str
    build: str
    item: str
    outcome: str
    reason: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What makes a row unique within a run."""
        return (self.suite, self.build, self.item)


@dataclass(frozen=True)
class Record:
    """A whole run as read back."""

    header: Mapping[str, Any]
    rows: tuple[Row, ...]
    footer: Mapping[str, Any]

    def row(self, suite: str, build: str, item: str) -> Row | None:
        """The row of that key, if the run has it."""
        return next((row for row in self.rows if row.key == (suite, build, item)), None)

    def of(self, suite: str) -> tuple[Row, ...]:
        """All rows of one suite, in the order of the run."""
        return tuple(row for row in self.rows if row.suite == suite)


def unfit(value: Any, at: str = "numbers") -> str:
    """Where a value holds something that a record must not: '' when all is well."""
    if value is None or isinstance(value, str | bool | int):
        return ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{at} is {value}"
    if isinstance(value, Mapping):
        found = (unfit(each, f"{at}.{name}") for name, each in value.items())
    elif isinstance(value, list | tuple):
        found = (unfit(each, f"{at}[{index}]") for index, each in enumerate(value))
    else:
        return f"{at} is a {type(value).__name__}"
    return next((text for text in found if text), "")


def row_to_line(row: Row) -> dict[str, Any]:
    """A row as the object that stands on its line; its numbers come last."""
    head = {name: getattr(row, name) for name in ("suite", "build", "item", "outcome", "reason")}
    return {"kind": "row", **head, "numbers": dict(row.numbers)}


def line_to_row(line: Mapping[str, Any]) -> Row:
    """A row from its line.

    Raises
    ------
    BadRecord
        For an unknown outcome, a missing or unknown field, or a number that is not finite.
    """
    fields = {name: value for name, value in line.items() if name != "kind"}
    try:
        row = Row(**fields)
    except TypeError as wrong:
        raise BadRecord("a row of the record", got=wrong, expected="the fields of Row") from None
    if row.outcome not in OUTCOMES:
        raise BadRecord(
            f"outcome of {row.key}", got=repr(row.outcome), expected=f"one of {', '.join(OUTCOMES)}"
        )
    if fault := unfit(row.numbers):
        raise BadRecord(f"row {row.key}", got=fault, expected="finite JSON values")
    return row


def latest(rows: Iterable[Row]) -> dict[Key, Row]:
    """The last row of each key, in the order in which the keys were first met."""
    found: dict[Key, Row] = {}
    for row in rows:
        found[row.key] = row
    return found


def footer_of(rows: Iterable[Row]) -> dict[str, Any]:
    """Counts that the reader checks."""
    counts = Counter(row.outcome for row in rows)
    return {"kind": "footer", "rows": sum(counts.values()), **{name: counts[name] for name in OUTCOMES}}


def write_record(run: Path, header: Mapping[str, Any], rows: Iterable[Row]) -> Path:
    """Write ``RUN/record.jsonl`` whole: temporary name, fsync, rename."""
    rows = tuple(rows)
    lines = [{"kind": "header", "schema_version": SCHEMA_VERSION, **header}]
    lines += [row_to_line(row) for row in rows] + [footer_of(rows)]
    temporary = run / f".{RECORD}.{os.getpid()}"
    with temporary.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return temporary.rename(run / RECORD)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
        except ValueError as wrong:
            raise BadRecord(f"line {number} of {path.name}", got=wrong, expected="one JSON object") from None
        if not isinstance(line, dict):
            raise BadRecord(f"line {number} of {path.name}", got=type(line).__name__, expected="an object")
        yield line


def read_record(path: Path) -> Record:
    """Read a record, refusing one that cannot be trusted.

    Parameters
    ----------
    path
        ``record.jsonl``, or the run's folder.

    Raises
    ------
    BadRecord
        With what is wrong: absent, truncated, another schema, an item twice, counts, a number not finite.
    """
    path = path / RECORD if path.is_dir() else path
    if not path.is_file():
        raise BadRecord(
            "run record", got=f"no {path}", expected="a finished run", hint="run it again with --run"
        )
    lines = list(_lines(path))
    kinds = [line.get("kind") for line in lines]
    if not lines or kinds[0] != "header" or kinds[-1] != "footer":
        raise BadRecord(f"record {path}", got="no header or no footer", expected="a record of a finished run")
    if lines[0].get("schema_version") != SCHEMA_VERSION:
        raise BadRecord(f"schema of {path}", got=lines[0].get("schema_version"), expected=SCHEMA_VERSION)
    if set(kinds[1:-1]) - {"row"}:
        raise BadRecord(
            f"record {path}", got=f"lines of kind {sorted(map(str, set(kinds[1:-1])))}", expected="rows"
        )
    rows = tuple(line_to_row(line) for line in lines[1:-1])
    _check(path, rows, lines[-1])
    return Record(lines[0], rows, lines[-1])


def _check(path: Path, rows: tuple[Row, ...], footer: Mapping[str, Any]) -> None:
    twice = [key for key, count in Counter(row.key for row in rows).items() if count > 1]
    if twice:
        raise BadRecord(f"record {path}", got=f"{twice[0]} twice", expected="each item once")
    if dict(footer) != footer_of(rows):
        raise BadRecord(
            f"footer of {path}", got=dict(footer), expected=footer_of(rows), hint="truncated or edited"
        )
