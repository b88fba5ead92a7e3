"""pytest plugin: every test of the four suites yields one row of the run record, however it ends.

A test fills the fixture `row`; its outcome, its suite, its build and its item's name are taken from pytest.
Workers send rows with their reports, the controller alone writes. Imports no suite.
"""

import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

import quantkit
from quantkit.machines import Machine
from tests.support.host.machine import facts
from tests.support.journal import Journal
from tests.support.plugins.options import OPTIONS, SETTINGS, records
from tests.support.record import (
    Key,
    Record,
    Row,
    latest,
    line_to_row,
    read_record,
    row_to_line,
    unfit,
    write_record,
)
from tests.support.settings import Boot, Settings
from tests.support.sources.source import pin_of
from tests.support.sources.sourcehash import code_hash, source_hash

# options that the rest of the header tells by a name or in digest alone
GIVEN = ("machines", "source", "bf16_source", "checkpoints", "price")
TESTS = Path(__file__).parents[2]
SUITES = ("quant", "gemm", "serve", "sweep")
ROW = "quantkit_row"
INFEASIBLE = "infeasible: "
KNOWN = "known failure: "
NOT_REACHED = "the run ended before this item"
NUMBERS = pytest.StashKey[dict[str, Any]]()
KEPT = pytest.StashKey[bool]()  # the item was not run: its row of an earlier session stands
LEDGER = pytest.StashKey["Ledger"]()


def infeasible(reason: str) -> NoReturn:
    """End a test whose item cannot exist here, such as a cell longer than the context."""
    pytest.skip(INFEASIBLE + reason)


def suite_of(item: pytest.Item) -> str:
    """The suite a test belongs to, empty for the tests of the package and of the judge."""
    folder = item.path.parent.name
    return folder if folder in SUITES and item.path.parent.parent.name == "tests" else ""


def key_of(item: pytest.Item) -> Key:
    """The row's key: suite, build, and the mark `row`'s name or the function's with its other parameters."""
    callspec = getattr(item, "callspec", None)
    params = dict(callspec.params) if callspec else {}
    boot = params.pop("boot", None)
    build = params.pop("build", None)
    params.pop("machine", None)
    marker = item.get_closest_marker("row")
    name = marker.args[0] if marker else str(getattr(item, "originalname", item.name)).removeprefix("test_")
    name = "-".join([name, *map(str, params.values())]) if name else "-".join(map(str, params.values()))
    if isinstance(boot, Boot):
        return (suite_of(item), boot.build.name, name if boot.nth == 1 else f"{name}@{boot.nth}")
    return (suite_of(item), build.name if build else "", name)


def identity_of(settings: Settings) -> dict[str, Any]:
    """What must not change between the sessions of one run: what is measured, by what code, and on what."""
    host = facts()
    return {
        "source_hash": source_hash(settings.source),
        "bf16_source_hash": source_hash(settings.bf16_source) if settings.bf16_source else "",
        "settings": settings.key,
        "code": code_hash(Path(quantkit.__file__).parent, *(TESTS / part for part in ("support", *SUITES))),
        "host": {name: host[name] for name in ("cpu", "cores", "gpus")} | host["versions"],
    }


def commit() -> str:
    """Of this checkout; with a ``-dirty`` where files differ from it."""
    describe = ["git", "describe", "--match=", "--always", "--abbrev=40", "--dirty"]
    try:
        said = subprocess.run(describe, capture_output=True, text=True, check=False).stdout
    except OSError:  # a host without git
        said = ""
    return said.strip() or "unknown"


def given_of(config: pytest.Config) -> dict[str, str]:
    """Options as they stand on the command line, without those that say what is so by default."""
    defaults = {name[2:].replace("-", "_"): kwargs.get("default") for name, kwargs in OPTIONS}
    defaults["source"] = config.stash[SETTINGS].machine.source or records(config)["cpu"].source
    found = {name: config.getoption(name) for name in GIVEN}
    return {name: str(value) for name, value in found.items() if value != defaults[name]}


def header_of(settings: Settings) -> dict[str, Any]:
    """Who measured what, where: the facts that stand at the head of a record."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": commit(),
        "facts": facts(),
        "source": settings.source.name,
        "source_pin": pin_of(settings.source),
        "bf16_source_pin": pin_of(settings.bf16_source) if settings.bf16_source else {},
        "builds": [build.name for build in settings.builds],
        "usd_per_hour": settings.price,
        **identity_of(settings),
    }


def apart(then: Any, now: Any) -> tuple[Any, Any]:
    """Two values, or of two mappings only what differs."""
    if not (isinstance(then, Mapping) and isinstance(now, Mapping)):
        return then, now
    names = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
    return {name: then.get(name) for name in names}, {name: now.get(name) for name in names}


class Ledger:
    """The rows of a run: those of earlier sessions, and those of this one."""

    def __init__(self, settings: Settings, writes: bool, given: Mapping[str, str] | None = None) -> None:
        self.settings = settings
        self.given = given or {}
        self.journal = Journal(settings.run)
        self.writes = writes
        self.header, earlier = self.journal.read()
        self.rows = latest(earlier)
        if self.header:
            self._same_run()
        self.earlier = dict(self.rows)

    def _same_run(self) -> None:
        for name, now in identity_of(self.settings).items():
            then = self.header.get(name)
            if then != now:
                then, now = apart(then, now)
                raise pytest.UsageError(
                    f"--run {self.settings.run}, got a run whose {name} was {then}, "
                    f"expected {now} (name another folder)"
                )

    def write(self, row: Row) -> None:
        """Put a row into the journal, with the header before the first one."""
        if not self.header:
            self.header = header_of(self.settings) | {"given": dict(self.given)}
        self.journal.begin(self.header)
        self.journal.add(row)
        self.rows[row.key] = row

    def finish(self, planned: list[Key]) -> Record | None:
        """Make the record; items that were planned and never ended are `not_run`."""
        if not self.header:
            return None
        for key in planned:
            self.rows.setdefault(key, Row(*key, outcome="not_run", reason=NOT_REACHED))
        return read_record(write_record(self.settings.run, self.header, self.rows.values()))


def pytest_configure(config: pytest.Config) -> None:
    """Open the run: nothing is written until the first row."""
    writes = not hasattr(config, "workerinput")
    config.stash[LEDGER] = Ledger(config.stash[SETTINGS], writes, given_of(config))


def _row(item: pytest.Item, report: pytest.TestReport) -> Row:
    numbers = item.stash.get(NUMBERS, {})
    key = key_of(item)
    if item.stash.get(KEPT, False):
        return item.config.stash[LEDGER].earlier[key]
    reason = ""
    if report.skipped and hasattr(report, "wasxfail"):
        return Row(*key, outcome="failed", reason=f"{KNOWN}{report.wasxfail}", numbers=numbers)
    if report.skipped:
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = str(text).removeprefix("Skipped: ")
        if reason.startswith(INFEASIBLE):
            return Row(*key, outcome="infeasible", reason=reason.removeprefix(INFEASIBLE), numbers=numbers)
        return Row(*key, outcome="not_run", reason=reason, numbers=numbers)
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = str(crash.message if crash else report.longrepr).strip().splitlines()[0]
    if fault := unfit(numbers):
        return Row(*key, outcome="failed", reason=f"a number that no record may hold: {fault}")
    return Row(*key, outcome="failed" if report.failed else "ok", reason=reason, numbers=numbers)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the row to the report that decides the item: its call, or a setup or teardown that ended badly."""
    report = yield
    if suite_of(item) and (report.when == "call" or not report.passed):
        row = _row(item, report)
        if row.outcome == "failed" and report.passed:
            report.outcome, report.longrepr = "failed", row.reason
        vars(report)[ROW] = row_to_line(row)  # an attribute: xdist carries it to the controller
        item.config.stash[LEDGER].rows[row.key] = row
    return report


def write_row(config: pytest.Config, report: pytest.TestReport) -> None:
    """Write the row that came with a report, in the controller."""
    line = getattr(report, ROW, None)
    ledger = config.stash[LEDGER]
    if line is not None and ledger.writes:
        ledger.write(line_to_row(line))


class Writer:
    """Hooks that need the config: pytest gives a report hook none."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """See each row on the disk before the next item starts."""
        write_row(self.config, report)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Register the writer once the session is there."""
    session.config.pluginmanager.register(Writer(session.config), "quantkit-writer")


@pytest.fixture
def row(request: pytest.FixtureRequest, machine: Machine) -> dict[str, Any]:
    """The numbers of this test's row; what is set before a failure is kept."""
    numbers: dict[str, Any] = request.node.stash.setdefault(NUMBERS, {})
    return numbers


@pytest.fixture(scope="session")
def recorded(pytestconfig: pytest.Config) -> Callable[[str, str, str], dict[str, Any] | None]:
    """Numbers of an item of this run that ended ok, by (suite, build, item); None where there is none."""

    def find(suite: str, build: str, item: str) -> dict[str, Any] | None:
        row = pytestconfig.stash[LEDGER].rows.get((suite, build, item))
        return dict(row.numbers) if row and row.outcome == "ok" else None

    return find


@pytest.fixture(scope="session")
def run_dir(settings: Settings) -> Path:
    """The run's folder, made."""
    settings.run.mkdir(parents=True, exist_ok=True)
    return settings.run
