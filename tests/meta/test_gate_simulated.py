"""What the gate catches and what it cannot, by simulation with known truth: 2,000 runs of 90 cells each.

Noise is normal. The figures in tests/sweep/README.md are these, and held to them.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.gate.tolerance import REPORT_ONLY_CV, boot_deviation, tolerances
from tests.support.stats import Array, max_t_p_values

RUNS, BUILDS, CELLS, BOOTS, REPEATS, PAIRS = 2000, 10, 9, 3, 3, 8
ALPHA = 0.01

README = (Path(__file__).parents[1] / "sweep" / "README.md").read_text(encoding="utf-8")

Bools = npt.NDArray[np.bool_]


def require_told(cv: float, table: int, column: int, share: float) -> None:
    """Require the figure that the README's table tells of this noise, to the digits that it has."""
    row = [line for line in README.splitlines() if line.startswith(f"| {cv:g} %")][table]
    told = row.split("|")[column + 2].strip(" *%").split(" ")[0]
    assert abs(float(told) - 100 * share) <= (0.1 if "." in told else 0.5), f"{row}, is {share:.2%}"


def spread(values: Array) -> Array:
    """cv over the last axis."""
    return np.asarray(values.std(axis=-1, ddof=1) / values.mean(axis=-1))


def alarms(cv: Array | float, *changes: float, boot_sd: float = 0.0, boots: int = BOOTS) -> list[Bools]:
    """Which cells of which run the gate calls worse, for each change of each build's first: (runs, builds, cells)."""
    rng = np.random.default_rng(7)
    noise = np.broadcast_to(np.asarray(cv), (BUILDS, CELLS))[..., None]
    base = 1 + noise[..., None] * rng.normal(size=(RUNS, BUILDS, CELLS, boots, REPEATS))
    base *= 1 + boot_sd * rng.normal(size=(RUNS, BUILDS, 1, boots, 1))
    new = 1 + noise * rng.normal(size=(RUNS, BUILDS, CELLS, REPEATS))
    new *= 1 + boot_sd * rng.normal(size=(RUNS, BUILDS, 1, 1))
    common = boot_deviation([base[:, build] for build in range(BUILDS)])
    limit = tolerances(base, boots < BOOTS, common[:, None], new[..., None, :])
    ratio = np.median(new, axis=-1) / np.median(np.median(base, axis=-1), axis=-1)
    noisy = np.maximum(spread(new), spread(base).max(axis=-1)) > REPORT_ONLY_CV
    found = []
    for change in changes:
        changed = ratio.copy()
        changed[:, :, 0] *= 1 + change
        found.append((changed - 1 < -limit) & ~noisy)
    return found


def any_of(alarmed: Bools) -> float:
    """Share of runs with an alarm in any of the 90 cells."""
    return float(alarmed.any(axis=(1, 2)).mean())


def first_of(alarmed: Bools) -> float:
    """Share of the cells that changed with an alarm."""
    return float(alarmed[..., 0].mean())


# cv in % -> bounds on the share of runs that alarm: no change (any of 90 cells), then one cell 2, 5, 20 % slower
BASELINE = {
    0.3: ((0, 0.01), (0, 0.05), (0.99, 1), (1, 1)),
    1.0: ((0, 0.01), (0, 0.10), (0.80, 1), (1, 1)),
    3.0: ((0, 0.01), (0, 0.02), (0, 0.05), (0.998, 1)),
    10.0: ((0, 0.01), (0, 0.02), (0, 0.02), (0, 0.05)),
}


@pytest.mark.parametrize("cv", BASELINE)
def test_baseline_gate(cv: float) -> None:
    none, *changed = alarms(cv / 100, 0.0, -0.02, -0.05, -0.20)
    shares = [any_of(none), *map(first_of, changed)]
    for column, (share, (least, most)) in enumerate(zip(shares, BASELINE[cv], strict=True)):
        assert least <= share <= most, f"shares of runs that alarm: {shares}"
        require_told(cv, 0, column, share)


def test_boots_that_differ_by_1_percent_do_not_alarm() -> None:
    none, some, fifth = alarms(0.003, 0.0, -0.05, -0.20, boot_sd=0.01)
    assert any_of(none) <= 0.01
    assert first_of(fifth) == 1
    told = f"cv 0.3 %: {100 * first_of(some):.0f} %) and bring no alarm ({100 * any_of(none):.1f} % of runs)"
    assert told in README


def test_one_boot_does_not_alarm_and_sees_a_fifth() -> None:
    none, fifth = alarms(0.01, 0.0, -0.20, boots=1)
    assert any_of(none) <= 0.01
    assert first_of(fifth) == 1


MIXED = {
    "most alike, two differ": [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 4, 4],
    "one differs by a factor of 15": [0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 5],
    "all differ": [0.3, 0.5, 1, 1, 1, 2, 3, 3, 5],
}


@pytest.mark.parametrize("percent", MIXED.values(), ids=MIXED)
def test_cells_of_very_different_noise_do_not_alarm(percent: list[float]) -> None:
    rng = np.random.default_rng(3)
    cv = np.array([rng.permutation(percent) for _ in range(BUILDS)]) / 100  # other cells in each build
    none, fifth = alarms(cv, 0.0, -0.20)
    (most,) = re.findall(r"up to ([0-9.]+) % of runs alarm by chance", README)
    assert 100 * any_of(none) <= float(most) <= 1
    assert first_of(fifth) >= 0.98  # what is missed is in the cells of 4 and 5 %


def ab_alarms(effects: Sequence[float], runs: int = RUNS, scale: float = 1.0) -> Bools:
    """Which of 90 cells a session of 8 pairs calls worse, shape (runs, 90).

    Parameters
    ----------
    effects
        True log ratio of the first cells, in units of the cells' cv; the rest did not change.
    scale
        The cells' cv.
    """
    rng = np.random.default_rng(11)
    found = []
    for _ in range(0, runs, 50):  # in blocks: one run is 256 patterns x 90 cells
        pairs = rng.normal(size=(50, PAIRS, BUILDS * CELLS)) * 2**0.5
        pairs[..., : len(effects)] += effects
        found.append(max_t_p_values(pairs * scale) <= ALPHA)
    return np.concatenate(found)


def confirmed(effects: Sequence[float]) -> Bools:
    """Of each changed cell alone, alarmed before: whether 8 pairs of a fresh boot say the same."""
    rng = np.random.default_rng(13)
    pairs = rng.normal(size=(RUNS, len(effects), PAIRS, 1)) * 2**0.5 + np.array(effects)[:, None, None]
    return np.asarray(max_t_p_values(pairs)[..., 0] <= ALPHA)


def test_ab_false_alarms() -> None:
    alarmed = ab_alarms([])
    assert alarmed.any(axis=1).mean() <= 0.01  # and then a fresh boot would have to repeat it
    for cv in BASELINE:  # the test has no scale: the same noise, larger, alarms the same
        assert (ab_alarms([], 100, cv / 100) == alarmed[:100]).all()
        require_told(cv, 1, 0, alarmed.any(axis=1).mean())


# cv in %, change -> bounds on the share of runs in which the loss is caught and confirmed
AB = {
    (0.3, -0.02): (0.95, 1),
    (1.0, -0.05): (0.95, 1),
    (3.0, -0.20): (0.95, 1),
    (1.0, -0.02): (0, 0.45),
    (3.0, -0.05): (0, 0.25),
    (10.0, -0.05): (0, 0.01),
}


COLUMNS = (0.0, -0.02, -0.05, -0.20)


def test_ab_catches() -> None:
    effects = [float(np.log1p(change)) / (cv / 100) for cv, change in AB]
    shares = (ab_alarms(effects)[:, : len(effects)] & confirmed(effects)).mean(axis=0)
    for (cv, change), share in zip(AB, shares, strict=True):
        least, most = AB[cv, change]
        assert least <= share <= most, f"{change:+.0%} at cv {cv} %: caught in {share:.4f} of runs"
        require_told(cv, 1, COLUMNS.index(change), share)
