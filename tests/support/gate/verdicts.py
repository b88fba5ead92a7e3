"""The gate: each cell of a run against its baseline, one verdict a cell. Tolerances come from `tolerance`.

Pure: figures in, verdicts out; reads no file and knows no pytest. Imported by `regen` and `gating`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from types import MappingProxyType

from tests.support.gate.tolerance import REPORT_ONLY_CV, boot_deviation, bounded_tolerance, padded, tolerances
from tests.support.stats import cv

VERDICTS = ("better", "same", "worse", "new", "gone", "not_comparable")

# A ratio carries the noise of two cells.
RATIO_FACTOR = 2**0.5
# Half a token a second is a late stamp or two in a short cell, whatever share of it that is.
FLOOR_TOK_PER_S = 0.5
PUBLISHED = "published figures"


@dataclass(frozen=True)
class Expected:
    """What a baseline says of one cell: tokens a second of each repeat of each boot, and ratios to bf16.

    Attributes
    ----------
    boots
        One tuple of repeats a boot.
    ratios
        Ratio to bf16 in the same run, one a boot; empty for bf16 itself.
    cv_at_most
        A published bound on the repeats' cv, where they themselves are not known.
    """

    boots: tuple[tuple[float, ...], ...]
    ratios: tuple[float, ...] = ()
    cv_at_most: float = 0.0

    @property
    def tok_per_s(self) -> float:
        """Median over boots of each boot's median."""
        return median(median(boot) for boot in self.boots)

    @property
    def ratio(self) -> float | None:
        """Median ratio to bf16; None where there is none."""
        return median(self.ratios) if self.ratios else None

    @property
    def cv_within(self) -> float:
        """The largest cv of a boot's repeats, or the bound on it; 0 where each has but one."""
        return max(self.cv_at_most, *(cv(boot) or 0.0 for boot in self.boots))

    @property
    def cv_between(self) -> float | None:
        """cv of the boots' medians; None for a single boot."""
        return cv([median(boot) for boot in self.boots])


@dataclass(frozen=True)
class Seen:
    """What a run measured for one cell."""

    repeats: tuple[float, ...]
    ratio: float | None = None

    @property
    def tok_per_s(self) -> float:
        """Median of the repeats."""
        return median(self.repeats)


@dataclass(frozen=True)
class Verdict:
    """One cell, judged.

    Attributes
    ----------
    enforced
        Whether the verdict can fail the run.
    ratio
        New over old, of the raw figure; None where there are not two.
    ratio_bf16
        New over old, of the ratio to bf16.
    tolerance
        Relative change within which a cell is the same.
    why
        What moved, or why there is nothing to compare.
    """

    build: str
    cell: str
    verdict: str
    enforced: bool = False
    ratio: float | None = None
    ratio_bf16: float | None = None
    tolerance: float | None = None
    why: str = ""

    @property
    def is_regression(self) -> bool:
        """Whether this cell alone makes the run a regression."""
        return self.enforced and self.verdict == "worse"

    @property
    def is_gap(self) -> bool:
        """Whether this cell alone says that the run could not be judged."""
        return self.enforced and self.verdict in ("gone", "not_comparable")


def tolerance_by_cell(
    baseline: Mapping[str, Expected],
    provisional: bool,
    boot_sd: float = 0.0,
    seen: Mapping[str, Seen] = MappingProxyType({}),
) -> dict[str, float]:
    """The relative change of each cell of a build within which it is the same."""
    boots = padded([expected.boots for expected in baseline.values()])
    run = padded([[seen[cell].repeats] if cell in seen else [] for cell in baseline])
    found = tolerances(boots, provisional, boot_sd, run)
    return dict(zip(baseline, map(float, found), strict=True))


def _moved(change: float, tolerance: float) -> str:
    if change < -tolerance:
        return "worse"
    return "better" if change > tolerance else "same"


# (raw figure, ratio to bf16) -> what moved. The raw figure decides; the ratio says whose doing it is.
SIDES = {
    ("worse", "worse"): "this build moved, bf16 did not",
    ("worse", "same"): "bf16 moved alike: the machine or the engine",
    ("worse", "better"): "bf16 fell further than this build",
    ("same", "worse"): "bf16 moved up, this build did not",
    ("same", "better"): "bf16 moved down, this build did not",
    ("better", "better"): "this build moved, bf16 did not",
    ("better", "same"): "bf16 moved alike: the machine or the engine",
    ("better", "worse"): "bf16 rose further than this build",
}


def judge_cell(
    build: str, cell: str, seen: Seen, expected: Expected, tolerance: float, enforced: bool
) -> Verdict:
    """One cell against its baseline; a cell that varies too much is reported and not enforced."""
    ratio = seen.tok_per_s / expected.tok_per_s
    small = abs(seen.tok_per_s - expected.tok_per_s) <= FLOOR_TOK_PER_S
    raw = "same" if small else _moved(ratio - 1, tolerance)
    ratio_bf16, why = None, ""
    if seen.ratio is not None and expected.ratio is not None:
        ratio_bf16 = seen.ratio / expected.ratio
        why = SIDES.get((raw, _moved(ratio_bf16 - 1, RATIO_FACTOR * tolerance)), "")
    spread = max(expected.cv_within, expected.cv_between or 0.0, cv(seen.repeats) or 0.0)
    if spread > REPORT_ONLY_CV:
        enforced, why = (
            False,
            f"report only: cv {spread:.0%}, over {REPORT_ONLY_CV:.0%}" + (f"; {why}" if why else ""),
        )
    return Verdict(build, cell, raw, enforced, ratio, ratio_bf16, tolerance, why)


@dataclass(frozen=True)
class Baseline:
    """A build's baseline as the gate sees it.

    Attributes
    ----------
    cells
        By cell; empty where there is no entry for this run's key.
    differs
        In what the nearest entry's key differs, where none is this run's.
    published
        Whether others measured it: how their boots differ is unknown, so that it can only advise.
    """

    cells: Mapping[str, Expected]
    provisional: bool = False
    differs: str = ""
    published: bool = False

    def tolerances(self, boot_sd: float, seen: Mapping[str, Seen]) -> dict[str, float]:
        """The relative change of each cell within which it is the same, in a run that saw these."""
        if not self.published:
            return tolerance_by_cell(self.cells, self.provisional, boot_sd, seen)
        return {cell: bounded_tolerance(expected.cv_within) for cell, expected in self.cells.items()}


def judge_run(
    seen: Mapping[str, Mapping[str, Seen]], baselines: Mapping[str, Baseline], enforced: bool
) -> list[Verdict]:
    """Every cell of every build, those measured and those its baseline knows.

    Parameters
    ----------
    seen
        By build and cell, what this run measured.
    baselines
        By build; a build that has none is left out.
    enforced
        Whether verdicts can fail the run: not where the client shares the server's cores.
    """
    known = [
        padded([cell.boots for cell in each.cells.values()]) for each in baselines.values() if each.cells
    ]
    boot_sd = float(boot_deviation(known)[0]) if known else 0.0
    return [
        verdict
        for build, cells in seen.items()
        for verdict in judge_build(build, cells, baselines.get(build), enforced, boot_sd)
    ]


def judge_build(
    build: str,
    seen: Mapping[str, Seen],
    baseline: Baseline | None,
    enforced: bool,
    boot_sd: float = 0.0,
) -> list[Verdict]:
    """Every cell of one build.

    Parameters
    ----------
    baseline
        None where the build has no baseline at all.
    boot_sd
        How boots differ on this machine, over all its builds.
    """
    if baseline is None:
        return [Verdict(build, cell, "new", why="no baseline yet") for cell in seen]
    if baseline.published:
        theirs = _against_each(build, seen, baseline, False, boot_sd)
        return [replace(each, why=": ".join(filter(None, (PUBLISHED, each.why)))) for each in theirs]
    return _against_each(build, seen, baseline, enforced, boot_sd)


def _against_each(
    build: str,
    seen: Mapping[str, Seen],
    baseline: Baseline,
    enforced: bool,
    boot_sd: float,
) -> list[Verdict]:
    if baseline.differs:
        return [Verdict(build, cell, "not_comparable", enforced, why=baseline.differs) for cell in seen]
    tolerance = baseline.tolerances(boot_sd, seen)
    found = []
    for cell in dict.fromkeys([*seen, *baseline.cells]):
        expected, now = baseline.cells.get(cell), seen.get(cell)
        if expected and now:
            found.append(judge_cell(build, cell, now, expected, tolerance[cell], enforced))
        elif now:
            found.append(Verdict(build, cell, "new", why="not in the baseline"))
        else:
            why = "in the baseline, not measured in this run"
            found.append(Verdict(build, cell, "gone", enforced, why=why))
    return found
