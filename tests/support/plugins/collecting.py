"""pytest plugin: what is collected for which machine and build, in which order, and what a resumed run leaves out.

Parametrises by `machine`, `build` and `boot`; keeps the items of this machine unless -m names another.
"""

from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from quantkit.machines import Machine
from tests.support.gate.known import known_failure, known_failures
from tests.support.host.machine import detected, present
from tests.support.plugins.options import SETTINGS, demanded, records
from tests.support.plugins.recording import KEPT, KNOWN, LEDGER, SUITES, TESTS, key_of, suite_of
from tests.support.record import Key, Row
from tests.support.settings import Settings

RESUMED = pytest.StashKey[int]()
PLANNED = pytest.StashKey[list[Key]]()
INDEX = pytest.StashKey[int]()
LAST_PASS = ("sweep",)  # suites in which bf16 is started a second time


def _suite(metafunc: pytest.Metafunc) -> str:
    path = metafunc.definition.path
    return path.parent.name if path.parent.name in SUITES else ""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item per machine record, and per build or server start where a test asks for one."""
    settings = metafunc.config.stash[SETTINGS]
    names = metafunc.fixturenames
    if "machine" in names and _suite(metafunc):
        params = [
            pytest.param(record, id=name, marks=getattr(pytest.mark, name))
            for name, record in records(metafunc.config).items()
        ]
        metafunc.parametrize("machine", params, scope="session")
    if "build" in names:
        metafunc.parametrize(
            "build", settings.builds, ids=[build.name for build in settings.builds], scope="session"
        )
    if "boot" in names:
        boots = [boot for boot in settings.boots if boot.nth == 1 or _suite(metafunc) in LAST_PASS]
        metafunc.parametrize("boot", boots, ids=list(map(str, boots)), scope="session")


def _param(item: pytest.Item, name: str) -> Any:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get(name) if callspec else None


def _foreign(item: pytest.Item, settings: Settings) -> bool:
    machine = _param(item, "machine")
    return isinstance(machine, Machine) and machine.name != settings.machine.name


def _order(item: pytest.Item, settings: Settings) -> tuple[int, int, int]:
    suite, index = suite_of(item), item.stash[INDEX]
    if suite not in ("serve", "sweep"):
        return (SUITES.index(suite) if suite else -1, 0, index)
    boot = _param(item, "boot")
    turn = settings.boots.index(boot) * 2 + (suite == "sweep") if boot in settings.boots else -1
    return (len(SUITES), turn, index)


class Numbering:
    """Remembers the order of the files before pytest regroups items by the parameters they share."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Number the items as they were collected."""
        for index, item in enumerate(items):
            item.stash[INDEX] = index


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where -m asks for a machine, leave out what is no machine's: ten thousand tests of the package and the judge."""
    if collection_path.name not in ("unit", "meta") or collection_path.parent != TESTS:
        return None
    return True if demanded(config.getoption("markexpr"), records(config)) else None


def pytest_configure(config: pytest.Config) -> None:
    """Number first, sort last: the two hooks below stand on either side of pytest's own."""
    config.pluginmanager.register(Numbering(), "quantkit-numbering")


def _mark_known(items: list[pytest.Item], settings: Settings) -> None:
    """What is known to fail must fail, with the error that is known; anything else is news."""
    entries = known_failures()
    for item in items:
        entry = known_failure(entries, settings.machine.name, key_of(item))
        if entry is not None:
            raises = resolve_name(entry.error)
            item.add_marker(pytest.mark.xfail(reason=entry.reason, raises=raises, strict=True))


def _done(row: Row) -> bool:
    return row.outcome in ("ok", "infeasible") or row.reason.startswith(KNOWN)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep this machine's items, in the order that boots each server once, less those already measured."""
    settings, ledger = config.stash[SETTINGS], config.stash[LEDGER]
    away = [item for item in items if _foreign(item, settings)]
    kept = sorted((item for item in items if item not in set(away)), key=lambda item: _order(item, settings))
    suite_items = [item for item in kept if suite_of(item)]
    config.stash[PLANNED] = [key_of(item) for item in suite_items]
    _mark_known(suite_items, settings)
    done = {key for key, row in ledger.earlier.items() if _done(row)}
    resumed = {item for item in suite_items if key_of(item) in done}
    items[:] = [item for item in kept if item not in resumed]
    config.stash[RESUMED] = len(resumed)
    config.hook.pytest_deselected(items=[*away, *resumed])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """What failed in the run that is resumed stays failed until it is asked for again; a missing card fails."""
    config = item.config
    settings, ledger = config.stash[SETTINGS], config.stash[LEDGER]
    if suite_of(item):
        earlier = ledger.earlier.get(key_of(item))
        if earlier is not None and earlier.outcome == "failed" and not settings.retry_failed:
            item.stash[KEPT] = True
            pytest.fail(
                f"failed earlier in this run: {earlier.reason} (--retry-failed measures it again)",
                pytrace=False,
            )
        wanted = demanded(config.getoption("markexpr"), records(config))
        if wanted is not None and not present(wanted):
            pytest.fail(
                f"machine, got {detected().name}, expected {wanted.name}: -m asks for it", pytrace=False
            )
    return (yield)
