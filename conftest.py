"""Joins the workshop's plugins to pytest, and shows the report when a run ends. Holds no default and no test."""

import os
import sys

import pytest

pytest_plugins = [
    "tests.support.plugins.options",
    "tests.support.plugins.recording",
    "tests.support.plugins.collecting",
    "tests.support.plugins.starting",
    "tests.support.plugins.billing",
    "tests.support.plugins.builds",
    "tests.support.plugins.serving",
    "tests.support.plugins.closing",
    "tests.support.plugins.gating",
]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table, and where the record and the page are."""
    # Here, since pytest can no longer rewrite the asserts of a plugin that was imported before it is registered.
    from tests.report.terminal import table, wants_colour
    from tests.report.write import write_report
    from tests.support.plugins.closing import RECORDED, last_words
    from tests.support.plugins.options import SETTINGS

    record = config.stash.get(RECORDED, None)
    if record is None:
        return
    terminalreporter.section("quantkit")
    for line in table(record, colour=wants_colour(sys.stdout, os.environ)):
        terminalreporter.write_line(line)
    for line in last_words(config):
        terminalreporter.write_line(line)
    run = config.stash[SETTINGS].run
    terminalreporter.write_line(f"record: {run / 'record.jsonl'}")
    terminalreporter.write_line(f"report: {write_report(run)}")
