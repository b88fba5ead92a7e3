"""Joins the workshop's plugins to pytest, and shows the report when a run ends. Holds no default and no test."""

pytest_plugins = [
    "tests.support.options",
    "tests.support.recording",
    "tests.support.collecting",
    "tests.support.builds",
    "tests.support.serving",
    "tests.support.closing",
]
