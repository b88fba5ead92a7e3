"""What is served is what was built: log probabilities against bf16's, and against the decoded weights'."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from tests.support.answers.decoded import decoded_scores
from tests.support.answers.logprobs import Scored, check_shift, load, save, shift
from tests.support.answers.probes import Probes
from tests.support.plugins.serving import Server
from tests.support.settings import Boot, Settings

pytestmark = pytest.mark.xdist_group("engine")
# A build may lie this much further from its own files, run in fp32, than bf16 does from its, for kernels of other
# number formats round in other places, and no more often; or, where inputs are rounded to 8 bits, than its own
# reference moves when run in bfloat16: that rounding turns a last place into a whole code, whichever the kernel.
SERVED_OVER_ROUNDING = 3.0


@pytest.mark.row("logprobs")
def test_logprobs(
    boot: Boot, served_scores: tuple[Scored, ...], probes: Probes, settings: Settings, row: dict[str, Any]
) -> None:
    """How far the build's log probabilities lie from those of bf16 in the same run."""
    kept = settings.run / "logprobs"
    save(kept / f"{boot.build.name}.json", served_scores)
    if not (kept / "bf16.json").exists():
        pytest.skip("bf16 was not served in this run")
    found = shift(load(kept / "bf16.json"), served_scores)
    row.update(asdict(found))
    copied = settings.bf16_source is None  # from a bf16 that is another model every distance is right
    bounds = probes.bounds.get(boot.build.name, {}) if copied else {}
    check_shift(f"{boot.build.name} against bf16", found, bounds)


@pytest.mark.row("served weights")
def test_served_weights(
    boot: Boot,
    server: Server,
    served_scores: tuple[Scored, ...],
    probes: Probes,
    recorded: Callable[[str, str, str], dict[str, Any] | None],
    row: dict[str, Any],
) -> None:
    """How far they lie from those of the same files, decoded by the reference and run in fp32."""
    decoded = decoded_scores(server.checkpoint, [each.tokens for each in served_scores])
    found = shift(decoded.fp32, served_scores)
    rounding = shift(decoded.fp32, decoded.bf16).mean_abs_dlogprob
    row.update(asdict(found), rounding=rounding)
    if boot.build.name == "bf16":
        check_shift("bf16 as served against its files", found, probes.bounds.get("served", {}))
        return
    own = recorded("serve", "bf16", "served weights")
    if own is None:
        pytest.skip("bf16 was not served, or not as built, in this run")
    limit = {"mean_abs_dlogprob": SERVED_OVER_ROUNDING * max(own["mean_abs_dlogprob"], rounding)}
    check_shift(f"{boot.build.name} as served against its files", found, limit)
