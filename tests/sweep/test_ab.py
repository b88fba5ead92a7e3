"""--gate ab: one build against another, or one engine against another, in one session.

Both servers stay up and take turns. Runs only with --gate ab, and the rest of the sweep only without.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from math import log
from pathlib import Path
from typing import Any

import pytest

from quantkit.formats import FORMATS, Format
from tests.support.cells import Cell
from tests.support.engine.base import Engine
from tests.support.gate.ab import PHASES, alarmed, b_goes_first, pairs_of
from tests.support.plugins.recording import LEDGER, infeasible
from tests.support.plugins.serving import Server, card_let_go, engine_for, launch_for, serve
from tests.support.settings import Boot, Settings

pytestmark = pytest.mark.xdist_group("engine")


@dataclass
class Rivals:
    """A, what --against names, and B, the build of --builds: booted when first asked for, and kept up."""

    settings: Settings
    engine: Engine
    built: Callable[[Format], Path]
    phase: str
    stack: ExitStack = field(default_factory=ExitStack)
    servers: list[Server] = field(default_factory=list)

    def up(self, build: Format) -> list[Server]:
        """A and B, ready."""
        if not self.servers:
            against = self.settings.against
            other = FORMATS.get(against, build)
            engine = self.engine if against in FORMATS else self._engine_of(against)
            self.servers = [self._start("A", other, engine), self._start("B", build, self.engine)]
        return self.servers

    def _engine_of(self, image: str) -> Engine:
        return self.stack.enter_context(closing(engine_for(replace(self.settings, image=image))))

    def _start(self, side: str, build: Format, engine: Engine) -> Server:
        boot = Boot(build)
        name = f"{boot}-{side}-{self.phase}"
        launch = launch_for(boot, self.built(build), self.settings)
        launch = replace(launch, name=name, log=launch.log.with_name(f"{name}.log"))
        return self.stack.enter_context(serve(engine, launch, boot))


@pytest.fixture(scope="session")
def phase(request: pytest.FixtureRequest) -> str:
    """``first``, or ``fresh`` with both servers started anew."""
    return str(request.param)


@pytest.fixture(scope="session")
def rivals(
    phase: str, settings: Settings, engine: Engine, built: Callable[[Format], Path]
) -> Iterator[Rivals]:
    """The two servers of a phase."""
    both = Rivals(settings, engine, built, phase)
    with card_let_go(settings), both.stack:
        yield both


def test_pair(
    phase: str,
    pair: int,
    cell: Cell,
    build: Format,
    rivals: Rivals,
    row: dict[str, Any],
    measure_cell: Callable[[Server, Cell, int], dict[str, Any]],
    pytestconfig: pytest.Config,
) -> None:
    """Both sides of one pair are numbers."""
    first = pairs_of(pytestconfig.stash[LEDGER].rows.values())["first"]
    if phase == "fresh" and str(cell) not in alarmed(first):
        infeasible("no loss that a fresh boot should confirm")
    servers = rivals.up(build)
    order = (1, 0) if b_goes_first(pair) else (0, 1)
    numbers = {side: measure_cell(servers[side], cell, pair + 100 * PHASES.index(phase)) for side in order}
    a, b = (numbers[side]["tok_per_s"] for side in (0, 1))
    row.update(
        against=rivals.settings.against,
        a_tok_per_s=a,
        b_tok_per_s=b,
        log_ratio=log(b / a),
        a=numbers[0],
        b=numbers[1],
    )
