"""--gate ab: a loss is one that pairs of two boots show; half a session decides nothing."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.gate.ab import PAIRS, PHASES, alarmed, b_goes_first, losses, pairs_of, verdicts
from tests.support.plugins.gating import _require_rivals
from tests.support.record import Row

NOISE = 0.01 * np.random.default_rng(3).normal(size=(PAIRS, 2))


def rows(phase: str, loss: float, pairs: int = PAIRS) -> list[Row]:
    """Rows of a phase in which cell 8x128 changed by `loss` and 1x128 did not."""
    return [
        Row(
            "sweep",
            "fp8",
            f"pair-{phase}-{pair + 1}-{cell}",
            "ok",
            numbers={"log_ratio": float(NOISE[pair, column]) + change},
        )
        for pair in range(pairs)
        for column, (cell, change) in enumerate((("1x128", 0.0), ("8x128", loss)))
    ]


# first phase, fresh phase -> verdict of 8x128
CASES = {
    "no change": (rows("first", 0.0), [], "same"),
    "a loss, confirmed": (rows("first", -0.1), rows("fresh", -0.1), "worse"),
    "a loss that a fresh boot does not show": (rows("first", -0.1), rows("fresh", 0.0), "same"),
    "a loss not looked at again": (rows("first", -0.1), [], "same"),
    "a loss looked at again by half": (rows("first", -0.1), rows("fresh", -0.1, 4), "same"),
    "a gain": (rows("first", 0.1), [], "better"),
    "seven pairs": (rows("first", -0.1, 7), [], "not_comparable"),
}


@pytest.mark.parametrize(("first", "fresh", "verdict"), CASES.values(), ids=CASES)
def test_verdict(first: list[Row], fresh: list[Row], verdict: str) -> None:
    found = {each.cell: each for each in verdicts("fp8", pairs_of([*first, *fresh]), enforced=True)}
    assert found["8x128"].verdict == verdict
    assert found["1x128"].verdict == ("not_comparable" if verdict == "not_comparable" else "same")
    assert all(each.enforced for each in found.values())
    if verdict == "worse":
        assert found["8x128"].is_regression
        assert found["8x128"].ratio == pytest.approx(np.exp(-0.1), 0.01)


def test_only_what_alarmed_is_confirmed() -> None:
    assert alarmed(pairs_of(rows("first", -0.1))["first"]) == ["8x128"]


@pytest.mark.parametrize(("gains", "p"), [(1, 2 / 256), (2, 4 / 256)])
def test_a_cell_alarms_up_to_one_percent(gains: int, p: float) -> None:
    """Each pair in which B gained a little leaves one more pair of patterns that are as bad."""
    pairs = {"8x128": [0.001] * gains + [-1.0] * (PAIRS - gains)}
    assert losses(pairs) == {"8x128": p}
    assert alarmed(pairs) == (["8x128"] if p <= 0.01 else [])


def test_failed_pairs_and_other_rows_are_no_pairs() -> None:
    failed = Row("sweep", "fp8", "pair-first-1-8x128", "failed", "no usage")
    other = Row("sweep", "fp8", "8x128", "ok")
    assert pairs_of([failed, other]) == {phase: {} for phase in PHASES}


def test_both_sides_begin_equally_often() -> None:
    turns = [b_goes_first(pair) for pair in range(1, PAIRS + 1)]
    assert turns.count(True) == turns.count(False)
    assert turns[:4] == [False, True, False, True]


@pytest.mark.parametrize(
    ("builds", "against", "engine"),
    [(2, "fp8", "process"), (1, "", "process"), (1, "fp9", "docker"), (1, "engine@sha256:0", "process")],
)
def test_a_comparison_that_is_none_is_refused(builds: int, against: str, engine: str) -> None:
    settings = SimpleNamespace(
        builds=("b",) * builds, against=against, machine=SimpleNamespace(engine=engine)
    )
    with pytest.raises(pytest.UsageError, match="expected --builds B --against A"):
        _require_rivals(settings)  # type: ignore[arg-type]
