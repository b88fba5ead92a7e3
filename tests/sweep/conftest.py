"""What the sweep's tests share: its grid as parameters, the run's nonce, and one measurement of one cell.

Imports the workshop; no other suite.
"""

import json
import secrets
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.cells import GRIDS, Cell, seed_of
from tests.support.engine.readiness import ask, see_whether_it_died
from tests.support.gate.ab import PAIRS, PHASES
from tests.support.load.cellcheck import judged
from tests.support.load.client import Prompt, Target, measure
from tests.support.load.prompts import random_prompt, usable_ids
from tests.support.load.summary import repeat_numbers, request_rows
from tests.support.plugins.options import SETTINGS
from tests.support.plugins.recording import infeasible
from tests.support.plugins.serving import Server
from tests.support.settings import Settings

HERE, AB = Path(__file__).parent, "test_ab.py"
SHORT_WARM_UP = 16  # tokens: opens the connections again, once the cell's shapes have been run on this server

Measure = Callable[[Server, Cell, int], dict[str, Any]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeats outermost, so that a drift of the machine meets every cell alike."""
    grid = GRIDS[metafunc.config.stash[SETTINGS].grid]
    if "repeat" in metafunc.fixturenames:
        metafunc.parametrize("repeat", range(1, grid.repeats + 1))
    if "phase" in metafunc.fixturenames:
        metafunc.parametrize("phase", PHASES, indirect=True, scope="session")
        metafunc.parametrize("pair", range(1, PAIRS + 1))
    if "cell" in metafunc.fixturenames:
        metafunc.parametrize("cell", grid.cells, ids=list(map(str, grid.cells)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --gate ab the pairs, else the sweep."""
    ab = config.stash[SETTINGS].gate == "ab"
    away = [item for item in items if item.path.parent == HERE and ab != (item.path.name == AB)]
    items[:] = [item for item in items if item not in set(away)]
    config.hook.pytest_deselected(items=away)


@pytest.fixture(scope="session")
def nonce(run_dir: Path) -> str:
    """What makes this run's prompts its own; kept in the run's folder, so that a resumed run has the same."""
    file, new = run_dir / "nonce", run_dir / "nonce.new"
    if not file.exists():
        new.write_text(secrets.token_hex(8))
        new.replace(file)  # whole or not there: an empty one would give every run the same prompts
    return file.read_text()


@cache
def _ids(checkpoint: Path) -> npt.NDArray[np.int64]:
    return usable_ids(checkpoint)


@cache
def _context_tokens(base_url: str) -> int:
    return int(ask(f"{base_url}/v1/models").json()["data"][0]["max_model_len"])


@pytest.fixture(scope="session")
def measure_cell(settings: Settings, run_dir: Path, nonce: str) -> Measure:
    """Measures one repeat of one cell: its numbers, or a refusal; its requests are kept in the run's folder."""
    warmed: set[tuple[str, Cell]] = set()

    def measure_one(server: Server, cell: Cell, repeat: int) -> dict[str, Any]:
        server.alive()
        if reason := cell.infeasible_in(_context_tokens(server.base_url)):
            infeasible(reason)

        def prompts(purpose: str, count: int, tokens: int) -> list[Prompt]:
            seeds = (seed_of(nonce, server.boot, cell, repeat, purpose, index) for index in range(count))
            return [random_prompt(_ids(server.checkpoint), tokens, seed) for seed in seeds]

        first = (server.base_url, cell) not in warmed
        warm_up = prompts("warm-up", cell.concurrency, cell.prompt_tokens if first else SHORT_WARM_UP)
        warmed.add((server.base_url, cell))
        measured = measure(
            Target(server.base_url, server.model),
            cell,
            prompts("load", cell.requests, cell.prompt_tokens),
            warm_up,
        )
        keep_requests(
            run_dir / "requests" / str(server.boot) / f"{cell}-{repeat}.jsonl", request_rows(measured)
        )
        see_whether_it_died(server)
        numbers = repeat_numbers(measured)
        return {**numbers, "advisory": judged(measured, numbers, settings.machine.advisory_speed)}

    return measure_one


def keep_requests(path: Path, rows: list[dict[str, Any]]) -> None:
    """One line a request."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
