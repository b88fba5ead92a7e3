"""The gate's verdict of each kind of change, whose doing it says it was, and the exit status of a run."""

import pytest

from quantkit.errors import BadRecord
from tests.support.engine.base import (
    CardTaken,
    ForeignServer,
    PortInUse,
    ServerDied,
    ServerLoops,
    ServerSlow,
    ServerUnhealthy,
)
from tests.support.engine.container import DeviceMissing, DockerAbsent, DockerRefused, ImageMissing, NotPinned
from tests.support.gate.verdicts import Baseline, Expected, Seen, Verdict, judge_build, judge_cell, judge_run
from tests.support.load.cellcheck import CellRefused
from tests.support.plugins.gating import Judged

STEADY = ((100.0, 100.3, 99.7), (100.2, 99.9, 100.1), (99.8, 100.0, 100.4))
NOISY = ((100.0, 112.0, 90.0), (106.0, 88.0, 100.0), (95.0, 114.0, 100.0))
QUIET_SMALL = ((2.0, 2.0, 2.0), (2.0, 2.0, 2.0), (2.0, 2.0, 2.0))


def judged(now: Seen | None, boots: tuple[tuple[float, ...], ...] = STEADY, **options: bool) -> Verdict:
    """The verdict of one cell of one build."""
    expected = Expected(boots, (0.8, 0.8, 0.8))
    baseline = Baseline({"8x128": expected}, provisional=options.get("provisional", False))
    seen = {"8x128": now} if now else {}
    (verdict,) = judge_build("fp8", seen, baseline, options.get("enforced", True))
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
    "half speed in a run of cv 9 %": (seen(50.0, 0.4, 0.09), STEADY, "worse", True, "this build moved"),
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


WHOSE = {
    (0.5, 0.5): "this build moved, bf16 did not",
    (0.5, 1.0): "bf16 moved alike: the machine or the engine",
    (0.5, 2.0): "bf16 fell further than this build",
    (1.0, 0.5): "bf16 moved up, this build did not",
    (1.0, 1.0): "",
    (1.0, 2.0): "bf16 moved down, this build did not",
    (2.0, 0.5): "bf16 rose further than this build",
    (2.0, 1.0): "bf16 moved alike: the machine or the engine",
    (2.0, 2.0): "this build moved, bf16 did not",
}


@pytest.mark.parametrize(("moved", "why"), WHOSE.items(), ids=map(str, WHOSE))
def test_whose_doing_it_is(moved: tuple[float, float], why: str) -> None:
    found = judged(seen(100.0 * moved[0], 0.8 * moved[1]))
    assert found.verdict == {0.5: "worse", 1.0: "same", 2.0: "better"}[moved[0]]
    assert (found.why, found.ratio, found.ratio_bf16) == (why, *map(pytest.approx, moved))


def test_a_ratio_that_one_side_lacks_says_nothing() -> None:
    assert (judged(Seen((50.0,) * 3)).ratio_bf16, judged(Seen((50.0,) * 3)).why) == (None, "")
    baseline = Baseline({"8x128": Expected(STEADY)})
    (found,) = judge_build("fp8", {"8x128": seen(50.0)}, baseline, True)
    assert (found.verdict, found.ratio_bf16, found.why) == ("worse", None, "")


def test_a_ratio_may_move_by_the_noise_of_two_cells() -> None:
    """The tolerance is 3 %, so that of a ratio is 4.2 %."""
    assert judged(seen(100.0, 0.8 * 0.959)).why == ""
    assert judged(seen(100.0, 0.8 * 0.957)).why == "bf16 moved up, this build did not"


def test_up_to_half_a_token_a_second_is_no_change() -> None:
    boots = ((2.0, 2.0, 2.0),) * 3
    assert [judged(Seen((now,) * 3), boots).verdict for now in (1.5, 1.49, 2.5, 2.51)] == [
        "same",
        "worse",
        "same",
        "better",
    ]


def test_a_change_as_large_as_the_tolerance_is_none() -> None:
    for now, verdict in ((50.0, "same"), (49.9, "worse"), (150.0, "same"), (150.1, "better")):
        found = judge_cell("fp8", "8x128", Seen((now,) * 3), Expected(STEADY), 0.5, True)
        assert found.verdict == verdict


def test_medians_are_compared_whatever_the_best_repeat_was() -> None:
    expected = Expected(((1.0, 2.0, 9.0), (1.0, 3.0, 9.0), (1.0, 8.0, 9.0)), (0.5, 0.6, 2.0))
    assert (expected.tok_per_s, expected.ratio) == (3.0, 0.6)
    assert expected.cv_between == pytest.approx((31 / 3) ** 0.5 / (13 / 3))  # of 2, 3 and 8
    assert Seen((1.0, 2.0, 9.0)).tok_per_s == 2.0


APART = ((100.0, 100.0, 100.0), (125.0, 125.0, 125.0), (100.0, 100.0, 100.0))


def test_boots_that_differ_too_much_are_reported_only() -> None:
    found = judged(seen(50.0, 0.4), APART)
    assert (found.verdict, found.enforced) == ("worse", False)
    assert found.why == "report only: cv 13%, over 10%; this build moved, bf16 did not"


def test_another_builds_boots_widen_this_ones_tolerance() -> None:
    """How boots differ is of the machine: three boots of one build say too little."""
    steady, apart = (
        Baseline({"8x128": Expected(STEADY)}),
        Baseline({"8x128": Expected(((98.0,) * 3, (100.0,) * 3, (102.0,) * 3))}),
    )
    seen_cells = {"fp8": {"8x128": seen(95.0)}, "w8a8": {"8x128": seen(100.0)}}
    alone = judge_run(seen_cells, {"fp8": steady}, enforced=True)
    assert [(each.build, each.verdict) for each in alone] == [("fp8", "worse"), ("w8a8", "new")]
    both = judge_run(seen_cells, {"fp8": steady, "w8a8": apart}, enforced=True)
    assert [each.verdict for each in both] == ["same", "same"]
    assert both[0].tolerance == pytest.approx(5 * 0.02 / 2**0.5, rel=0.02)
    advice = judge_run(seen_cells, {"fp8": steady}, enforced=False)
    assert [(each.verdict, each.enforced) for each in advice] == [("worse", False), ("new", False)]
    assert [each.verdict for each in judge_run(seen_cells, {}, enforced=True)] == ["new", "new"]
    unlike = judge_run(seen_cells, {"fp8": steady, "w8a8": Baseline({}, differs="driver")}, enforced=True)
    assert [each.verdict for each in unlike] == ["worse", "not_comparable"]


def test_a_cell_that_is_gone() -> None:
    found = judged(None)
    assert (found.verdict, found.is_gap) == ("gone", True)


def test_a_cell_without_baseline_is_new_and_fails_nothing() -> None:
    baseline = Baseline({"1x128": Expected(STEADY)})
    verdicts = judge_build("fp8", {"8x128": seen(100.0)}, baseline, True)
    assert [(v.cell, v.verdict, v.enforced) for v in verdicts] == [
        ("8x128", "new", False),
        ("1x128", "gone", True),
    ]
    (missing,) = judge_build("fp8", {"8x128": seen(100.0)}, None, True)
    assert missing.verdict == "new"
    assert not missing.enforced


def test_another_key_is_not_comparable_and_named() -> None:
    baseline = Baseline({}, differs="driver: 6.1 then, 6.2 now")
    (found,) = judge_build("fp8", {"8x128": seen(50.0)}, baseline, True)
    assert (found.verdict, found.why) == ("not_comparable", "driver: 6.1 then, 6.2 now")
    assert found.is_gap


def test_a_provisional_baseline_is_judged_more_widely() -> None:
    assert judged(seen(95.0, 0.76), STEADY[:1], provisional=True).verdict == "same"
    assert judged(seen(85.0, 0.68), STEADY[:1], provisional=True).verdict == "worse"


def test_on_shared_cores_nothing_is_enforced() -> None:
    found = judged(seen(50.0, 0.4), enforced=False)
    assert (found.verdict, found.is_regression) == ("worse", False)


def verdict(name: str, enforced: bool = True) -> Verdict:
    """A cell of that verdict."""
    return Verdict("fp8", "8x128", name, enforced)


# verdicts, what failed -> status
STATUSES: dict[str, tuple[list[Verdict], tuple[str, ...], int]] = {
    "all well": ([verdict("same"), verdict("better"), verdict("new")], (), 0),
    "advice only": ([verdict(name, False) for name in ("worse", "gone", "not_comparable")], (), 0),
    "a test failed": ([verdict("worse")], ("failed", "slower", "refused", "infrastructure"), 1),
    "a regression": ([verdict("worse"), verdict("gone")], ("refused", "infrastructure"), 10),
    "a regression of a matrix product": ([verdict("gone")], ("slower", "refused", "infrastructure"), 10),
    "a cell is no number": ([], ("refused", "infrastructure"), 11),
    "a cell is gone": ([verdict("gone")], (), 11),
    "a cell is not comparable": ([verdict("not_comparable")], ("infrastructure",), 11),
    "a cell is gone, and its server": ([verdict("gone")], ("infrastructure",), 12),
    "a server died": ([], ("infrastructure",), 12),
    "new baselines": ([], ("look",), 11),
    "new baselines of a run that failed": ([], ("failed", "look"), 1),
}


@pytest.mark.parametrize(("verdicts", "failures", "status"), STATUSES.values(), ids=STATUSES)
def test_exit_status(verdicts: list[Verdict], failures: tuple[str, ...], status: int) -> None:
    judged = Judged()
    judged.verdicts = verdicts
    for failure in failures:
        setattr(judged, failure, True)
    assert judged.status == status


INFRASTRUCTURE = (
    PortInUse,
    CardTaken,
    ForeignServer,
    ServerDied,
    ServerSlow,
    ServerLoops,
    ServerUnhealthy,
    DockerAbsent,
    DockerRefused,
)
BROKEN = (CellRefused, BadRecord, NotPinned, ImageMissing, DeviceMissing)
SORTED = {
    "failed": (
        "AssertionError: 1 == 2",
        "tests.support.answers.checkers.WrongAnswer: text, got 'x'",
        "MyCellRefused: x",
    ),
    "slower": ("tests.support.gemm.baseline.RatioWorse: int4-1",),
    "refused": tuple(f"{each.__module__}.{each.__name__}: x" for each in BROKEN),
    "infrastructure": (
        *(f"{each.__module__}.{each.__name__}: x" for each in INFRASTRUCTURE),
        "tests.support.load.cellcheck.CellRefused: repeat 1, got tests.support.engine.base.ServerDied: x",
    ),
}


@pytest.mark.parametrize(("kind", "said"), [(kind, said) for kind, given in SORTED.items() for said in given])
def test_a_failure_is_sorted_by_its_error(kind: str, said: str) -> None:
    judged = Judged()
    judged.see(said)
    assert [name for name in SORTED if getattr(judged, name)] == [kind]
