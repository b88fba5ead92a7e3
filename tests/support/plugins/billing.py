"""pytest plugin: --dry-run, the cost line of a run, --budget, and the reminder that the machine still bills.

The arithmetic is in `cost`. Hours are those of this run's sessions, kept in RUN/cost.json across them.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cells import GRIDS
from tests.support.cost import Rates, estimate_lines, expected_s, published_rates
from tests.support.host.preflight import BROKEN
from tests.support.meter import Meter
from tests.support.plugins.options import SETTINGS
from tests.support.plugins.recording import LEDGER, key_of, suite_of
from tests.support.record import Key
from tests.support.saying import say
from tests.support.settings import Settings

KEPT_IN = "cost.json"
LINE_EVERY_S = 60.0
STARTED = pytest.StashKey[float]()
REFUSED = pytest.StashKey[int]()


def spent_before_s(run: Path) -> float:
    """Seconds that earlier sessions of this run took."""
    path = run / KEPT_IN
    return float(json.loads(path.read_text(encoding="utf-8"))["seconds"]) if path.is_file() else 0.0


def keep_spent(run: Path, seconds: float, price: float) -> None:
    """Keep the hours for a session that resumes this run, whole or as they were."""
    kept = {"seconds": round(seconds, 1), "usd_per_hour": price}
    half = run / f".{KEPT_IN}"
    half.write_text(json.dumps(kept) + "\n", encoding="utf-8")
    half.replace(run / KEPT_IN)


def rates_of(settings: Settings) -> Rates:
    """What was published for this run's machine and grid."""
    return published_rates(settings.machine.name, GRIDS[settings.grid])


def estimate(config: pytest.Config, keys: list[Key]) -> list[str]:
    """What a dry run says: of what and with what it would measure, the table, and whether the budget is enough."""
    settings, rates = config.stash[SETTINGS], rates_of(config.stash[SETTINGS])
    other = config.getoption("bf16_source")
    lines = estimate_lines(settings.machine.name, keys, rates, settings.price)
    lines[1:1] = [
        f"  source {config.getoption('source')}" + (f", for bf16 {other}" if other else ""),
        f"  builds {', '.join(build.name for build in settings.builds)}",
        f"  engine {settings.image or 'vLLM on this host'}, grid {settings.grid}",
    ]
    meter = Meter(expected_s(keys, rates), keys, settings.price, settings.budget)
    return [*lines, *meter.foreseen(spent_before_s(settings.run))]


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
        self.before_s = spent_before_s(settings.run)
        self.said_at = 0.0

    def spent_s(self) -> float:
        """Seconds of all sessions of this run so far."""
        return self.before_s + time.monotonic() - self.config.stash[STARTED]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Start no item that the budget does not allow."""
        if reason := self.meter.refusal(key_of(item), self.spent_s()):
            self.config.stash[REFUSED] = self.config.stash.get(REFUSED, 0) + 1
            pytest.skip(reason)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Time every item, and say what the run costs every minute."""
        started = time.monotonic()
        outcome = yield
        if suite_of(item):
            self.meter.ended(key_of(item), time.monotonic() - started)
            keep_spent(self.settings.run, self.spent_s(), self.settings.price)
            self.say()
        return outcome

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
    """Say what would run and run nothing, or watch the run; workers are not watched."""
    config = session.config
    settings = config.stash[SETTINGS]
    if getattr(config.option, "numprocesses", None) and (settings.dry_run or settings.budget is not None):
        pytest.exit(
            "--dry-run or --budget, got -n, expected one process: items are counted here", returncode=4
        )
    if settings.dry_run:
        keys = [key_of(item) for item in session.items if suite_of(item)]
        say(config, *estimate(config, keys))
        return True
    if not hasattr(config, "workerinput"):
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
    say(config, f"{settings.machine.name} bills ${settings.price:.2f} an hour until it is destroyed")
