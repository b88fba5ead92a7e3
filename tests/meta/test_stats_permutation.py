"""The statistics against values worked out by hand."""

from itertools import product

import numpy as np
import pytest

from tests.support.gate.tolerance import Spread, boot_deviation, padded, tolerances
from tests.support.stats import cv, max_t_p_values, sign_patterns


def test_cv_is_of_the_sample() -> None:
    assert cv([1.0, 3.0]) == pytest.approx(2**0.5 / 2)
    assert cv([5.0]) is None


def test_sign_patterns_are_all_of_them() -> None:
    patterns = sign_patterns(8)
    assert patterns.shape == (256, 8)
    assert len(np.unique(patterns, axis=0)) == 256
    assert (patterns[0] == 1).all()
    for pairs in (0, 13):
        with pytest.raises(ValueError, match="pairs"):
            sign_patterns(pairs)


def test_a_loss_in_every_pair_has_the_least_p_there_is() -> None:
    loss = -0.05 + 0.001 * np.arange(8.0)
    gain = -loss / 2
    assert max_t_p_values(np.stack([loss, gain], axis=-1)).tolist() == [1 / 256, 1.0]


def test_a_cell_that_gains_what_another_loses_counts_too() -> None:
    loss = -0.05 + 0.001 * np.arange(8.0)
    assert max_t_p_values(np.stack([loss, -loss], axis=-1)).tolist() == [2 / 256, 1.0]


def test_p_counts_the_patterns_by_hand() -> None:
    # Two pairs, one cell: t of (-1, -3) is reached by no flip but none; of (1, -3), by itself and by (-1, -3).
    assert max_t_p_values(np.array([[-1.0], [-3.0]])).tolist() == [0.25]
    assert max_t_p_values(np.array([[1.0], [-3.0]])).tolist() == [0.5]


def test_p_is_the_share_of_patterns_whose_worst_cell_is_as_bad() -> None:
    """Counted plainly, one pattern at a time: the cells of a pair flip together, and none is judged by itself."""
    ratios = np.random.default_rng(5).normal(-0.5, 1.0, size=(8, 3)) * (1, 0.5, 5)
    common = np.median((ratios**2).mean(axis=0))  # of the middle cell; it weighs as much as two further pairs

    def loss(cell: int, signs: tuple[int, ...]) -> float:
        flipped = np.array(signs) * ratios[:, cell]
        variance = (((flipped - flipped.mean()) ** 2).sum() + 2 * common) / (7 + 2)
        return float(-flipped.mean() / (variance / 8) ** 0.5)

    worst = [max(loss(cell, signs) for cell in range(3)) for signs in product((1, -1), repeat=8)]
    expected = [np.mean([each >= loss(cell, (1,) * 8) - 1e-9 for each in worst]) for cell in range(3)]
    assert max_t_p_values(ratios) == pytest.approx(expected)


def test_a_cell_without_any_difference_is_no_loss() -> None:
    assert max_t_p_values(np.zeros((8, 2))).tolist() == [1.0, 1.0]


def test_a_tie_counts_however_it_is_rounded() -> None:
    """In tenths many patterns of signs give the same sum, and rounding parts them: integers say how many do."""
    tenths = np.array([-9, -8, -2, 6, -2, 5, -3, -5])
    as_low = (sign_patterns(8) @ tenths <= tenths.sum()).mean()
    assert max_t_p_values(tenths[:, None] / 10) == pytest.approx([as_low])


def test_nan_is_never_significant() -> None:
    pairs = np.full((8, 1), -0.05)
    assert max_t_p_values(pairs)[0] <= 0.01
    pairs[3] = np.nan
    assert max_t_p_values(pairs)[0] == 1


def test_tolerance_by_hand() -> None:
    steady = padded([[[100.0, 100.0, 100.0]] * 3] * 2)
    assert tolerances(steady, provisional=False).tolist() == [0.03, 0.03]
    assert tolerances(steady, provisional=True).tolist() == [0.10, 0.10]
    boots = padded([[[98.0], [100.0], [102.0]]])  # boots' sd 2 %
    assert tolerances(boots, provisional=False) == pytest.approx([0.10])
    assert boot_deviation([boots]) == pytest.approx([0.02])
    boot = padded([[[98.0, 100.0, 102.0]]])  # one boot: its repeats' sd of 2 % is all there is
    assert tolerances(boot, provisional=False) == pytest.approx([0.10])


def test_a_noisy_cell_stays_out_of_the_pool() -> None:
    quiet, wild = [[100.0, 100.1, 99.9]] * 3, [[100.0, 150.0, 60.0]] * 3
    alone = tolerances(padded([quiet]), provisional=False)
    assert tolerances(padded([quiet, wild]), provisional=False)[0] == alone[0]


def test_a_noisy_run_widens_its_own_cell() -> None:
    """A cell whose repeats vary in the run that is judged is noisy, whatever its baseline says."""
    boots = padded([[[100.0, 100.1, 99.9]] * 3] * 2)
    run = padded([[[100.0, 106.0, 94.0]], []])
    noisy, quiet = tolerances(boots, provisional=False, run=run)
    # 6 %: squares 2 x 0.06^2, freedom 6 + 2 + PRIOR_FREEDOM; the rest is a thousandth
    assert noisy == pytest.approx(5 * 0.67 * (2 * 0.06**2 / 10) ** 0.5, rel=0.01)
    assert quiet == 0.03


def test_a_quiet_cell_is_given_what_the_builds_repeats_imply() -> None:
    """Three boots whose medians agree by chance say nothing: the pool's repeats are the least."""
    quiet, noisy = [[100.0, 100.0, 100.0]] * 3, [[94.0, 100.0, 106.0]] * 3
    found = tolerances(padded([quiet, noisy]), provisional=False)
    assert found[0] == pytest.approx(5 * 0.67 * (0.06**2 / 2) ** 0.5)


def test_how_boots_differ_is_pooled_over_steady_cells_and_builds() -> None:
    off, same, wild = [[98.0], [100.0], [102.0]], [[100.0]] * 3, [[100.0], [150.0], [60.0]]
    assert boot_deviation([padded([off, same])]) == pytest.approx([0.02 / 2**0.5])
    assert boot_deviation([padded([off]), padded([same])]) == pytest.approx([0.02 / 2**0.5])
    assert boot_deviation([padded([off, wild])]) == pytest.approx([0.02])


def test_holes_are_no_values() -> None:
    ragged = padded([[[98.0, 100.0, 102.0], [100.0], [103.0, 103.0]], [[50.0]]])
    found = Spread.of(ragged)
    assert [each.tolist() for each in found.within] == [pytest.approx([0.0008, 0.0]), [3, 0]]
    assert [each.tolist() for each in found.between] == [pytest.approx([6 / 101**2, 0.0]), [2, 0]]
    assert np.isfinite(tolerances(ragged, provisional=True)).all()
