"""The gate's verdict of each kind of change, whose doing it says it was, and the exit status of a run."""

import pytest

from tests.support.gate import Baseline, Expected, Seen, Verdict, exit_status, judge_build

STEADY = ((100.0, 100.3, 99.7), (100.2, 99.9, 100.1), (99.8, 100.0, 100.4))
NOISY = ((100.0, 112.0, 90.0), (106.0, 88.0, 100.0), (95.0, 114.0, 100.0))
QUIET_SMALL = ((2.0, 2.0, 2.0), (2.0, 2.0, 2.0), (2.0, 2.0, 2.0))


def judged(now: Seen | None, boots: tuple[tuple[float, ...], ...] = STEADY, **options: bool) -> Verdict:
    """The verdict of one cell of one build."""
    expected = Expected(boots, (0.8, 0.8, 0.8))
    baseline = Baseline({"8x128": expected}, provisional=options.get("provisional", False))
    seen = {"8x128": now} if now else {}
    (verdict,) = judge_build("fp8", ["8x128"], seen, baseline, options.get("enforced", True))
    return verdict


def seen(tok_per_s: float, ratio: float = 0.8, spread: float = 0.003) -> Seen:
    """Three repeats about a figure."""
    return Seen((tok_per_s * (1 - spread), tok_per_s, tok_per_s * (1 + spread)), ratio)


# now, baseline -> verdict, enforced, a word of why
CASES = {
    "half speed": (seen(50.0, 0.4), STEADY, "worse", True, "this build moved"),
    "5 % slower at cv 0.3 %": (seen(95.0, 0.76), STEADY, "worse", True, "this build moved"),
    "5 % slower at cv 11 %": (seen(95.0, 0.76), NOISY, "same", False, "report only"),
    "half speed at cv 11 %": (seen(50.0, 0.4), NOISY, "worse", False, "report only"),
    "the run itself is noisy": (seen(95.0, 0.76, 0.2), STEADY, "same", False, "report only"),
    "half speed in a noisy run": (seen(50.0, 0.4, 0.2), STEADY, "worse", False, "report only"),
    "2 % slower": (seen(98.0, 0.784), STEADY, "same", True, ""),
    "faster": (seen(110.0, 0.88), STEADY, "better", True, "this build moved"),
    "bf16 moved up": (seen(100.0, 0.6), STEADY, "same", True, "bf16 moved up, this build did not"),
    "bf16 moved down": (seen(100.0, 1.0), STEADY, "same", True, "bf16 moved down, this build did not"),
    "both moved": (seen(50.0, 0.8), STEADY, "worse", True, "the machine or the engine"),
    "a fraction of a token a second": (seen(1.7), QUIET_SMALL, "same", True, ""),
}


@pytest.mark.parametrize(("now", "boots", "verdict", "enforced", "why"), CASES.values(), ids=CASES)
def test_verdict(
    now: Seen, boots: tuple[tuple[float, ...], ...], verdict: str, enforced: bool, why: str
) -> None:
    found = judged(now, boots)
    assert (found.verdict, found.enforced) == (verdict, enforced)
    assert why in found.why


def test_a_cell_that_is_gone() -> None:
    found = judged(None)
    assert (found.verdict, found.is_gap) == ("gone", True)


def test_a_cell_without_baseline_is_new_and_fails_nothing() -> None:
    baseline = Baseline({"1x128": Expected(STEADY)})
    verdicts = judge_build("fp8", ["8x128"], {"8x128": seen(100.0)}, baseline, True)
    assert [(v.cell, v.verdict) for v in verdicts] == [("8x128", "new"), ("1x128", "gone")]
    (missing,) = judge_build("fp8", ["8x128"], {"8x128": seen(100.0)}, None, True)
    assert missing.verdict == "new"
    assert exit_status(False, [missing], refused=False, infrastructure=False) == 0


def test_another_key_is_not_comparable_and_named() -> None:
    baseline = Baseline({}, differs="driver: 6.1 then, 6.2 now")
    (found,) = judge_build("fp8", ["8x128"], {"8x128": seen(50.0)}, baseline, True)
    assert (found.verdict, found.why) == ("not_comparable", "driver: 6.1 then, 6.2 now")


def test_a_provisional_baseline_is_judged_more_widely() -> None:
    assert judged(seen(95.0, 0.76), STEADY[:1], provisional=True).verdict == "same"
    assert judged(seen(85.0, 0.68), STEADY[:1], provisional=True).verdict == "worse"


def test_on_shared_cores_nothing_is_enforced() -> None:
    found = judged(seen(50.0, 0.4), enforced=False)
    assert (found.verdict, found.is_regression) == ("worse", False)


WORSE = Verdict("fp8", "8x128", "worse", enforced=True)
GONE = Verdict("fp8", "8x128", "gone", enforced=True)
ADVICE = Verdict("fp8", "8x128", "worse")
# failed, verdicts, refused, infrastructure -> status
STATUSES = {
    "all well": ((False, [], False, False), 0),
    "advice only": ((False, [ADVICE], False, False), 0),
    "a test failed": ((True, [WORSE], True, True), 1),
    "regression": ((False, [WORSE, GONE], True, True), 10),
    "a cell is no number": ((False, [], True, True), 11),
    "a cell is gone": ((False, [GONE], False, True), 11),
    "infrastructure": ((False, [], False, True), 12),
}


@pytest.mark.parametrize(("given", "status"), STATUSES.values(), ids=STATUSES)
def test_exit_status(given: tuple[bool, list[Verdict], bool, bool], status: int) -> None:
    assert exit_status(*given) == status
