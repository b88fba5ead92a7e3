"""RUN/journal.jsonl: rows as they are measured, one fsynced line each, so that a killed run loses one item.

The record is made from it at the end. Only the controller of a run writes here; it knows no pytest.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantkit.errors import BadRecord
from tests.support.record import Row, line_to_row, row_to_line

JOURNAL = "journal.jsonl"


class Journal:
    """The rows of one run so far.

    Parameters
    ----------
    run
        The run's folder; made with the first row.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / JOURNAL

    def read(self) -> tuple[dict[str, Any], list[Row]]:
        """Header and rows so far; a last line that was cut by a kill is left out."""
        if not self.path.is_file():
            return {}, []
        texts = self.path.read_text(encoding="utf-8").split("\n")[:-1]
        lines = [json.loads(text) for text in texts]
        if not lines or lines[0].get("kind") != "header":
            raise BadRecord(f"journal {self.path}", got="no header", expected="a run of quantkit's suites")
        return lines[0], [line_to_row(line) for line in lines[1:]]

    def begin(self, header: Mapping[str, Any]) -> None:
        """Start the journal, or cut off a half-written last line of an earlier session."""
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"kind": "header", **header})
        elif not (text := self.path.read_text(encoding="utf-8")).endswith("\n"):
            os.truncate(self.path, len(text[: text.rfind("\n") + 1].encode()))

    def add(self, row: Row) -> None:
        """Append one row and see it on the disk."""
        self._append(row_to_line(row))

    def _append(self, line: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
