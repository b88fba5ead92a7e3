"""The report: a run's record turned into tables, answers, and one page that opens from disk.

`python -m tests.report RUN` writes it; the end of every run does too. Reads records alone: it measures nothing,
imports no suite, and shows a gap with its reason wherever a figure was not measured.
"""
