"""What is served is what was built: log probabilities against bf16's, and against the decoded weights'."""

from dataclasses import asdict
from typing import Any

import pytest

from tests.support.decoded import decoded_scores
from tests.support.logprobs import Scored, load, save, shift
from tests.support.serving import Server
from tests.support.settings import Boot, Settings

pytestmark = pytest.mark.xdist_group("engine")


@pytest.mark.row("logprobs")
def test_logprobs(
    boot: Boot, served_scores: tuple[Scored, ...], settings: Settings, row: dict[str, Any]
) -> None:
    """How far the build's log probabilities lie from those of bf16 in the same run."""
    kept = settings.run / "logprobs"
    save(kept / f"{boot.build.name}.json", served_scores)
    if not (kept / "bf16.json").exists():
        pytest.skip("bf16 was not served in this run")
    row.update(asdict(shift(load(kept / "bf16.json"), served_scores)))


@pytest.mark.row("served weights")
def test_served_weights(
    boot: Boot, server: Server, served_scores: tuple[Scored, ...], settings: Settings, row: dict[str, Any]
) -> None:
    """How far they lie from those of the same files, decoded by the reference and run in fp32."""
    decoded = decoded_scores(server.checkpoint, [each.tokens for each in served_scores])
    row.update(asdict(shift(decoded, served_scores)))
