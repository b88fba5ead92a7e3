"""Published figures as a record: files of `baselines/<machine>/published/` that hold rows, joined into one.

A published row has the shape of a measured one; the header says that it was not measured here, by whom it was,
and what is unknown. Reads files, judges nothing.
"""

import json
from pathlib import Path
from typing import Any

from quantkit.errors import BadRecord
from tests.support.record import Record, footer_of, line_to_row

SCHEMA_VERSION = 1
HEAD = ("machine", "model", "source", "date", "card", "image", "vllm", "what")


def _file(path: Path) -> dict[str, Any]:
    given = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(given, dict) or given.get("kind") != "published":
        raise BadRecord(
            f"baseline {path}", got="no published figures", expected='an object of kind "published"'
        )
    if given.get("schema_version") != SCHEMA_VERSION:
        raise BadRecord(f"schema of {path}", got=given.get("schema_version"), expected=SCHEMA_VERSION)
    return given


def published_record(folder: Path) -> Record:
    """The published rows of one machine as a record.

    Parameters
    ----------
    folder
        For instance ``baselines/mi300x/published``; files without rows are passed over.

    Raises
    ------
    BadRecord
        Where there are none, two files disagree on card, image, source or date, or a row is not a row.
    """
    files = [given for path in sorted(folder.glob("*.json")) if (given := _file(path)).get("rows")]
    if not files:
        raise BadRecord("published figures", got=f"no rows in {folder}", expected="sweep.json and others")
    head = {name: files[0].get(name) for name in HEAD}
    for given in files[1:]:
        other = {name: given.get(name) for name in HEAD}
        if other != head:
            raise BadRecord(f"published figures of {folder}", got=other, expected=head)
    rows = tuple(line_to_row(row) for given in files for row in given["rows"])
    unknown = [each for given in files for each in given.get("unknown", [])]
    speeds: list[str] = []
    others: list[str] = []
    for given in files:
        swept = any(row["suite"] == "sweep" for row in given["rows"])
        (speeds if swept else others).extend(given.get("caveats", []))
    said = {"unknown": unknown, "caveats": speeds, "notes": others}
    settings = {name: value for given in files for name, value in given.get("settings", {}).items()}
    header = {"kind": "header", "origin": "published", **head, **said, "settings": settings}
    return Record(header, rows, footer_of(rows))
