"""What the tests of the matrix products share: what is timed, and one timing of all of it in fresh processes.

Imports the workshop; no other suite. No test here runs a product itself.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantkit.machines import Machine
from quantkit.textconfig import text_config
from tests.support.gemm.backends import Backend
from tests.support.gemm.launch import bundle, command, run_program
from tests.support.gemm.plan import Timing, plan_for, timing_for
from tests.support.gemm.samples import Timed
from tests.support.gemm.shapes import Token, token_of_file
from tests.support.plugins.options import SETTINGS
from tests.support.settings import Settings

STAND_IN = Path(__file__).parents[1] / "configs" / "gemma-4-E2B.json"
LEAST_HIDDEN = 1024  # narrower models' products are launch overhead alone, on any device
PROCESS_DEADLINE_S = 3600.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item a backend and number of rows."""
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", list(Backend), ids=str)
    if "rows" in metafunc.fixturenames:
        metafunc.parametrize("rows", metafunc.config.stash[SETTINGS].rows)


@pytest.fixture(scope="session")
def token(settings: Settings) -> Token:
    """The products of the source's model; of E2B, by its config alone, where the source is a toy."""
    given = settings.source / "config.json"
    if text_config(json.loads(given.read_text(encoding="utf-8"))).hidden_size >= LEAST_HIDDEN:
        return token_of_file(given)
    return token_of_file(STAND_IN)


@pytest.fixture(scope="session")
def timing(machine: Machine, settings: Settings) -> Timing:
    """How long and how often."""
    return timing_for(machine, settings.grid)


def teller(config: pytest.Config, nth: int, processes: int) -> Callable[[dict[str, Any]], None]:
    """Shows on the terminal, where there is one, which cell of which process has just ended."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")

    def tell(line: dict[str, Any]) -> None:
        if reporter and line["kind"] == "token":
            reporter.ensure_newline()
            reporter.write_line(
                f"   process {nth} of {processes}: {line['backend']} at {line['rows']} rows timed"
            )

    return tell


@pytest.fixture(scope="session")
def timed(
    pytestconfig: pytest.Config,
    machine: Machine,
    settings: Settings,
    run_dir: Path,
    token: Token,
    timing: Timing,
) -> Timed:
    """Every product, timed by fresh processes one after the other; those of a resumed run are read again."""
    plan = plan_for(machine, token, settings.rows, timing)
    folder = run_dir / "gemm"
    argv = command(machine, settings.image, bundle(folder / "program.pyz"), plan)
    processes = []
    for nth in range(1, timing.processes + 1):
        kept = folder / f"{machine.name}-{nth}.jsonl"
        tell = teller(pytestconfig, nth, timing.processes)
        processes.append(tuple(run_program(argv, plan, kept, PROCESS_DEADLINE_S, tell)))
    return Timed(plan, tuple(processes))
