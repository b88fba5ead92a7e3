"""pytest plugin: shows where a run stands, and makes its record when it ends. Imports no suite and no report.

The estimate of the time left comes from the items of this run that have ended, by suite and test.
"""

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterator

import pytest

from tests.support.plugins.collecting import PLANNED, RESUMED
from tests.support.plugins.recording import LEDGER, NOT_REACHED, key_of, suite_of
from tests.support.record import Record

RECORDED = pytest.StashKey[Record | None]()

Said = tuple[str, str, str | tuple[str, dict[str, bool]]]  # category, letter, word


def minutes(seconds: float) -> str:
    """``about 3 min`` or ``about 20 s``."""
    return f"about {seconds / 60:.0f} min" if seconds >= 90 else f"about {max(seconds, 1):.0f} s"


class Progress:
    """One line whenever the build or the stage changes: which one, how many items, how long still.

    In a run of suites alone, these lines and those of what failed stand in the place of pytest's file names and
    dots, unless ``-v`` or ``-q`` asks for more or less.
    """

    def __init__(self, reporter: pytest.TerminalReporter, items: list[pytest.Item]) -> None:
        self.reporter = reporter
        self.left = defaultdict[tuple[str, str], int](int)
        for item in items:
            self.left[self._sort(item)] += 1
        self.total, self.done = len(items), 0
        self.spent = defaultdict[tuple[str, str], list[float]](list)
        self.stage = ""
        self.speaks = reporter.verbosity == 0 and all(suite_of(item) for item in items)
        if self.speaks:
            reporter.showfspath = False

    @staticmethod
    def _sort(item: pytest.Item) -> tuple[str, str]:
        return (suite_of(item), str(getattr(item, "originalname", item.name)))

    def _seconds_left(self) -> float | None:
        known = [second for seconds in self.spent.values() for second in seconds]
        if not known:
            return None
        mean = {sort: sum(seconds) / len(seconds) for sort, seconds in self.spent.items()}
        overall = sum(known) / len(known)
        return sum(count * mean.get(sort, overall) for sort, count in self.left.items())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Announce a new stage before its first item, and time every item."""
        suite, build, _ = key_of(item) if suite_of(item) else ("", "", "")
        stage = f"{build} {suite}" if "boot" in getattr(item, "fixturenames", ()) else suite
        if suite and stage != self.stage:
            self.stage = stage
            left = self._seconds_left()
            ahead = f", {minutes(left)} left" if left is not None else ""
            self.reporter.ensure_newline()
            self.reporter.write_line(f"== {stage}: item {self.done + 1} of {self.total}{ahead}", bold=True)
        started = time.monotonic()
        outcome = yield
        self.spent[self._sort(item)].append(time.monotonic() - started)
        self.left[self._sort(item)] -= 1
        self.done += 1
        return outcome

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, Said, Said]:
        """Neither letter nor word, where these lines stand in their place."""
        category, letter, word = yield
        return (category, "", "") if self.speaks else (category, letter, word)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """What failed is said at once, what is known to fail too."""
        if self.speaks and (report.failed or hasattr(report, "wasxfail")):
            outcome = "FAILED" if report.failed else "known failure"
            self.reporter.write_line(f"   {outcome}: {report.nodeid}")


def pytest_configure() -> None:
    """End on SIGTERM as on Ctrl-C: servers stopped, record and report made."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Watch the run where there is a terminal to tell it to, and a suite to tell of."""
    config = session.config
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter and config.stash[LEDGER].writes and any(suite_of(item) for item in session.items):
        config.pluginmanager.register(Progress(reporter, session.items), "quantkit-progress")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Make the record of what this run measured, also after Ctrl-C."""
    ledger = session.config.stash[LEDGER]
    nothing_left = session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.stash.get(
        RESUMED, 0
    )
    if nothing_left:  # the run that is resumed had ended well: an empty selection is no failure here
        session.exitstatus = pytest.ExitCode.OK
    if ledger.writes:
        session.config.stash[RECORDED] = ledger.finish(session.config.stash.get(PLANNED, []))


def last_words(config: pytest.Config) -> Iterator[str]:
    """What a run owes to earlier sessions, and what it leaves to later ones."""
    record = config.stash[RECORDED]
    assert record is not None
    if kept := config.stash.get(RESUMED, 0):
        begun, commit = (str(record.header[name]) for name in ("started", "commit"))
        yield f"{kept} items are of an earlier session of this run, begun {begun} at commit {commit[:12]}"
    if left := sum(row.reason == NOT_REACHED for row in record.rows):
        yield f"{left} items are left: name the run again to go on, --run {config.getoption('run')}"
