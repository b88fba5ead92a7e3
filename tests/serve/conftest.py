"""What the serving tests share: the questions for the model under test, and what its builds must show."""

import pytest

from quantkit.checkpoint import Checkpoint
from quantkit.memory import GIB
from tests.support.answers.logprobs import Scored, scored, token_ids
from tests.support.answers.probes import Probes, probes_for
from tests.support.boot.contract import Expected, expected_of
from tests.support.plugins.serving import KV_POOL, Server
from tests.support.settings import Settings


@pytest.fixture(scope="session")
def probes(server: Server) -> Probes:
    """The questions for this model."""
    with Checkpoint.open(server.checkpoint) as checkpoint:
        return probes_for(checkpoint.config.get("text_config", checkpoint.config))


@pytest.fixture(scope="session")
def expected(server: Server, settings: Settings) -> Expected:
    """What this boot must show on this machine."""
    pool = server.running.launch.env.get(KV_POOL)
    with Checkpoint.open(server.checkpoint) as checkpoint:
        return expected_of(server.boot.build, settings.machine, checkpoint, int(pool or 0) * GIB)


@pytest.fixture(scope="session")
def sequences(server: Server, probes: Probes) -> tuple[tuple[int, ...], ...]:
    """Token ids of the fixed sequences."""
    return tuple(token_ids(server.base_url, server.model, text) for text in probes.sequences)


@pytest.fixture(scope="session")
def served_scores(server: Server, sequences: tuple[tuple[int, ...], ...]) -> tuple[Scored, ...]:
    """The sequences' log probabilities, as this boot serves them."""
    return tuple(scored(server.base_url, server.model, tokens) for tokens in sequences)
