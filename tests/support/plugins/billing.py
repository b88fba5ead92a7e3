"""pytest plugin: --dry-run, the cost line of a run, --budget, and the reminder that the machine still bills.

The arithmetic is in `cost`. Hours are those of this run's sessions, kept in RUN/cost.json across them.
"""

import json
import time
from collections.abc import Iterator

import pytest

from tests.support.cells import GRIDS
from tests.support.cost import Rates, estimate_lines, expected_s, published_rates
from tests.support.host.preflight import BROKEN
from tests.support.meter import Meter
from tests.support.plugins.options import SETTINGS
from tests.support.plugins.recording import LEDGER, key_of, suite_of
from tests.support.saying import say
from tests.support.settings import Settings

KEPT_IN = "cost.json"
LINE_EVERY_S = 60.0
STARTED = pytest.StashKey[float]()
REFUSED = pytest.StashKey[int]()


def spent_before_s(settings: Settings) -> float:
    """Seconds that earlier sessions of this run took."""
    path = settings.run / KEPT_IN
    return float(json.loads(path.read_text(encoding="utf-8"))["seconds"]) if path.is_file() else 0.0


def rates_of(settings: Settings) -> Rates:
    """What was published for this run's machine and grid."""
    return published_rates(settings.machine.name, GRIDS[settings.grid])


class Billing:
    """Watches the items of one session.

    Parameters
    ----------
    session
        Its items are known.
    """

    def __init__(self, session: pytest.Session) -> None:
        self.config = session.config
        self.settings = settings = self.config.stash[SETTINGS]
        keys = [key_of(item) for item in session.items if suite_of(item)]
        rates = rates_of(settings)
        self.meter = Meter(expected_s(keys, rates), keys, settings.price, settings.budget)
        self.before_s = spent_before_s(settings)
        self.said_at = 0.0

    def spent_s(self) -> float:
        """Seconds of all sessions of this run so far."""
        return self.before_s + time.monotonic() - self.config.stash[STARTED]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Start no item that the budget does not allow."""
        if suite_of(item) and (reason := self.meter.refusal(key_of(item), self.spent_s())):
            self.config.stash[REFUSED] = self.config.stash.get(REFUSED, 0) + 1
            pytest.skip(reason)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Time every item, and say what the run costs every minute."""
        started = time.monotonic()
        outcome = yield
        if suite_of(item):
            self.meter.ended(key_of(item), time.monotonic() - started)
            self.keep()
            self.say()
        return outcome

    def keep(self) -> None:
        """Keep the hours for a session that resumes this run."""
        if self.config.stash[LEDGER].writes:
            kept = {"seconds": round(self.spent_s(), 1), "usd_per_hour": self.settings.price}
            (self.settings.run / KEPT_IN).write_text(json.dumps(kept) + "\n", encoding="utf-8")

    def say(self) -> None:
        """The cost line, where something is billed and it was not just said."""
        now = time.monotonic()
        if self.settings.price and now - self.said_at >= LINE_EVERY_S:
            self.said_at = now
            say(self.config, self.meter.line(self.spent_s()))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Start the clock; a dry run writes nothing into the ledger that is open by now."""
    config.stash[STARTED] = time.monotonic()
    if config.stash[SETTINGS].dry_run:
        config.stash[LEDGER].writes = False


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Say what would run and run nothing, or watch the run."""
    config, items = session.config, [item for item in session.items if suite_of(item)]
    settings = config.stash[SETTINGS]
    if settings.dry_run:
        if getattr(config.option, "numprocesses", None):
            pytest.exit("--dry-run, got -n, expected one process: it counts items here", returncode=4)
        keys = [key_of(item) for item in items]
        say(config, *estimate_lines(settings.machine.name, keys, rates_of(settings), settings.price))
        return True
    if items:
        config.pluginmanager.register(Billing(session), "quantkit-billing")
    return None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that the budget cut short is not a good one: status 11 where nothing else is wrong."""
    if session.config.stash.get(REFUSED, 0) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = BROKEN


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line of a run on a machine that is billed."""
    settings = config.stash.get(SETTINGS, None)
    billing = config.pluginmanager.get_plugin("quantkit-billing")
    if settings is None or not settings.price or hasattr(config, "workerinput"):
        return
    if billing is not None:
        say(config, billing.meter.line(billing.spent_s()))
    if billing is not None or settings.dry_run:
        say(config, f"{settings.machine.name} bills ${settings.price:.2f} an hour until it is destroyed")
