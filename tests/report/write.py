"""Writes a run's report beside its record: cells.csv, summary.json, report.md, report.html. The only file here
that writes."""

import os
from pathlib import Path

from tests.report.csv import cells_csv
from tests.report.markdown import markdown
from tests.report.page import page
from tests.report.published import published_record
from tests.report.summary import summary_json
from tests.support.record import RECORD, Record, read_record

FORMS = (
    ("cells.csv", cells_csv),
    ("summary.json", summary_json),
    ("report.md", markdown),
    ("report.html", page),
)


def record_of(run: Path) -> Record:
    """The record of a run's folder, or the published figures of a folder that has those instead."""
    if run.is_dir() and not (run / RECORD).exists() and list(run.glob("*.json")):
        return published_record(run)
    return read_record(run)


def _put(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.rename(path)


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write all four forms of the report.

    Parameters
    ----------
    run
        A run's folder, with its record; or a folder of published figures.
    out
        Where to write; the run's own folder if not given.

    Returns
    -------
    Path
        The page.
    """
    record = record_of(run)
    out = run if out is None else out
    out.mkdir(parents=True, exist_ok=True)
    for name, make in FORMS:
        _put(out / name, make(record))
    return out / FORMS[-1][0]
