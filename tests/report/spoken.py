"""What each build answered: right or not by question, and the words themselves. Pure, like `tables`."""

from collections.abc import Iterable
from typing import Any

from tests.report.run import QUESTIONS, Gap, Run
from tests.report.tables import Column, Table
from tests.report.words import text
from tests.support.record import Row

TOLD = ("prompt", "reasoning", "answer", "tool_call")  # an answer's words, where a row has them


def outcome_word(row: Row) -> str:
    """``right`` for an answer that passed its check; else how its item ended."""
    return "right" if row.outcome == "ok" else row.outcome.replace("_", " ")


def by_question(run: Run) -> Table:
    """A row a build, a column a question."""
    rows = []
    for build in run.builds:
        found = [run.row("serve", build.name, item) for item in QUESTIONS]
        if any(found):
            rows.append((build.name, *(outcome_word(row) if row else Gap("not asked") for row in found)))
    columns = (Column("build"), *(Column(question) for question in QUESTIONS))
    return Table("questions", "Answers by question, each checked for its content", columns, tuple(rows))


def _told(row: Row) -> Iterable[str]:
    for name in TOLD:
        given = row.numbers.get(name)
        for each in given if isinstance(given, list | tuple) else [given]:
            if each is not None:
                yield f"{name.replace('_', ' ')}: {text(each)}"


def said(run: Run) -> Table:
    """The words: a row an answer."""
    rows: list[tuple[Any, ...]] = []
    for build in run.builds:
        for item in QUESTIONS:
            if row := run.row("serve", build.name, item):
                words = "\n".join(_told(row)) or Gap("the answer's text was not recorded")
                rows.append((build.name, item, outcome_word(row), words, row.reason or "–"))
    columns = tuple(Column(name) for name in ("build", "question", "outcome", "answer", "reason"))
    return Table("answers", "What was asked and answered, in full", columns, tuple(rows))
