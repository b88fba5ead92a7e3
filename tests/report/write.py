"""Writes a run's report beside its record: cells.csv, summary.json, report.md, report.html. The only file here
that writes."""

import os
from collections.abc import Sequence
from pathlib import Path

from tests.report.compare import against_baselines, against_run, section, verdicts, with_verdicts
from tests.report.csv import cells_csv
from tests.report.markdown import markdown
from tests.report.page import page
from tests.report.published import published_record
from tests.report.run import Run
from tests.report.sections import Section
from tests.report.summary import summary_json
from tests.support.record import RECORD, Record, read_record

PAGE = "report.html"
BASELINE = "baseline"  # what --against calls the committed baselines


def record_of(run: Path) -> Record:
    """The record of a run's folder, or the published figures of a folder that has those instead."""
    if run.is_dir() and not (run / RECORD).exists() and list(run.glob("*.json")):
        return published_record(run)
    return read_record(run)


def _put(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.rename(path)


def _write(out: Path, record: Record, first: Sequence[Section]) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    _put(out / "cells.csv", cells_csv(record))
    _put(out / "summary.json", summary_json(record))
    _put(out / "report.md", markdown(record, first))
    _put(out / PAGE, page(record, first))
    return out / PAGE


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
    return _write(run if out is None else out, record_of(run), ())


def write_comparison(run: Path, against: str, out: Path | None = None) -> Path:
    """Write the report of a run as differences from another, with the gate's verdicts.

    Parameters
    ----------
    run
        A run's folder.
    against
        Another run's folder, a folder of published figures, or ``baseline``: this machine's committed ones.
    out
        Where to write; ``RUN/against-NAME`` if not given.

    Returns
    -------
    Path
        The page.
    """
    record = record_of(run)
    now = Run(record)
    if against == BASELINE:
        old = against_baselines(now)
    else:
        old = against_run(now, record_of(Path(against)), Path(against).name)
    judged = with_verdicts(record, verdicts(now, old))
    where = run / f"against-{old.name.replace(' ', '-')}" if out is None else out
    return _write(where, judged, (section(Run(judged), old),))
