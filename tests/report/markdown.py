"""The report as Markdown, for a pull request or a job summary. Pure: tables in, text out.

Text from a record is escaped: it can neither break a table nor bring markup.
"""

import html
import re
from collections.abc import Iterable, Sequence

from tests.report.answer import answers
from tests.report.caveats import run_caveats, unfinished
from tests.report.definitions import DEFINITIONS
from tests.report.repeat import commands
from tests.report.run import Gap, Run
from tests.report.sections import Section, sections
from tests.report.standing import Answer
from tests.report.tables import Table
from tests.report.words import written
from tests.support.record import Record

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
SPECIAL = re.compile(r"[\\`*\[\]#|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    text = CONTROL.sub("", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return SPECIAL.sub(r"\\\g<0>", text).replace("\n", "<br>").replace("@", "&#64;")


def _cell(form: str, value: object) -> str:
    if isinstance(value, Gap):
        return "–"
    return escaped(written(form, value)) or " "


def table_lines(table: Table) -> Iterable[str]:
    """A table's caption and rows, and why figures are missing; one line where all are."""
    if table.hollow:
        yield f"{escaped(table.caption)}: {_gaps(table)}"
        yield ""
        return
    yield f"**{escaped(table.caption)}**"
    yield ""
    yield "| " + " | ".join(escaped(column.name) for column in table.columns) + " |"
    yield "|" + "|".join("---:" if column.numeric else "---" for column in table.columns) + "|"
    for row in table.rows:
        cells = (_cell(column.form, value) for column, value in zip(table.columns, row, strict=True))
        yield "| " + " | ".join(cells) + " |"
    if table.gaps:
        yield ""
        yield f"– {_gaps(table)}"
    yield ""


def _gaps(table: Table) -> str:
    reasons = (f"{escaped(reason)} ({escaped(', '.join(who))})" for reason, who in table.gaps)
    return "not measured: " + "; ".join(reasons)


def answer_lines(answer: Answer) -> Iterable[str]:
    """One answer: the pick in bold, then figures and caveats."""
    note = "" if answer.verdict in ("clear", "not measured") else f" ({answer.verdict})"
    yield f"- {answer.asked}: **{escaped(answer.headline)}**{note}"
    for standing in answer.standings[: max(3, len(answer.picks))]:
        yield f"  - {escaped(standing.build)}: {escaped(standing.words)}"
    yield f"  - compared: {escaped(answer.basis)}"
    for caveat in answer.caveats:
        yield f"  - but: {escaped(caveat)}"


def _verbatim(lines: Iterable[str]) -> str:
    """Lines that stand in an HTML block as they are."""
    return (
        html.escape("\n".join(lines), quote=False)
        .replace("@", "&#64;")
        .replace("]", "&#93;")
        .replace("[", "&#91;")
    )


def title_of(run: Run) -> str:
    """What the report is about, in one line."""
    model = run.header.get("model") or run.header.get("source") or "a checkpoint"
    return f"Which format for {model} on {run.machine or 'this machine'}?"


def markdown(record: Record, first: Sequence[Section] = ()) -> str:
    """The whole report.

    Parameters
    ----------
    record
        Of any run.
    first
        Sections that come before all others, such as the differences from another run.
    """
    run = Run(record)
    lines = [f"# {escaped(title_of(run))}", ""]
    if run.published:
        lines += [f"> Published figures, not measured here: {escaped(str(run.header.get('source')))}.", ""]
    if said := unfinished(run):
        lines += [f"> **{escaped(said)}**", ""]
    for answer in answers(run):
        lines += answer_lines(answer)
    lines += ["", *(f"- all of this: {escaped(caveat)}" for caveat in run_caveats(run))]
    for section in (*first, *sections(run)):
        lines += ["", f"## {section.title}", ""]
        lines += [section.lead, ""] if section.lead else []
        shown = section.shown
        lines += [line for table in shown for line in table_lines(table)] if shown else [section.empty]
    lines += ["", "## Definitions", "", *(f"- **{term}**: {meaning}" for term, meaning in DEFINITIONS)]
    lines += ["", "## How to repeat it", "", f"<pre>{_verbatim(commands(run))}</pre>"]
    return "\n".join(lines) + "\n"
