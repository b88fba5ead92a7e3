"""The 4-bit lattice: golden groups, every peak level and sign recovered, noise refused, fast path = plain search."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantkit.checkpoint import Checkpoint
from quantkit.grid import Tally, encode_int4_rows, groups_to_steps, levels_to_values
from quantkit.packing import words_to_levels
from tests.unit.bits import from_bf16, padded, to_bf16
from tests.unit.golden_codes import GROUPS, OFF_GRID

NANO = Path(__file__).parents[1] / "nano" / "gemma-4-nano"


def encode(rows: NDArray[np.uint16]) -> tuple[NDArray[np.int8], NDArray[np.uint16], Tally]:
    """Levels, steps and findings; buffers start as garbage."""
    words = np.full((len(rows), rows.shape[1] // 8), -1515870811, np.int32)
    steps = np.full((len(rows), rows.shape[1] // 32), 0x7FC0, np.uint16)
    tally = encode_int4_rows(rows, words, steps)
    return words_to_levels(words), steps, tally


def lattice(count: int, peak: int, step_sign: int, seed: int) -> tuple[NDArray[np.uint16], NDArray[np.int8]]:
    """Groups whose largest magnitude is `peak` levels, in bfloat16 with fp16 steps; and their levels."""
    rng = np.random.default_rng(seed)
    levels = rng.integers(-peak, min(peak, 7) + 1, (count, 32)).astype(np.int8)
    levels[np.arange(count), rng.integers(0, 32, count)] = -peak if peak == 8 else peak
    levels[np.arange(count), rng.integers(0, 32, count)] |= (
        1  # an odd level: no coarser lattice holds the group
    )
    kept = np.abs(levels).max(axis=1) == peak
    levels = levels[kept]
    steps = (rng.uniform(0.001, 0.06, len(levels)) * step_sign).astype(np.float16)
    return to_bf16(levels * steps[:, None].astype(np.float64)), levels


@pytest.mark.parametrize(
    ("values", "step", "levels"), [row[1:] for row in GROUPS], ids=[row[0] for row in GROUPS]
)
def test_golden_groups(values: list[float], step: float, levels: list[int]) -> None:
    found, steps, tally = encode(padded(values))
    assert from_bf16(steps).tolist() == [[step]]
    assert found[0].tolist() == [*levels, *[0] * (32 - len(levels))]
    assert (tally.off_grid, tally.negative_steps) == (0, int(step < 0))


def test_a_fit_that_misses_the_tolerance_leaves_the_step_above() -> None:
    levels, steps, _ = encode(padded([3.9375, 1.015625]))  # fitted 0.98621, nearest 0.984375
    assert from_bf16(steps).tolist() == [[0.98828125]]
    assert levels[0, :2].tolist() == [4, 1]


@pytest.mark.parametrize("values", [row[1] for row in OFF_GRID], ids=[row[0] for row in OFF_GRID])
def test_off_the_grid(values: list[float]) -> None:
    assert groups_to_steps(padded(values)).tolist() == [0]
    assert encode(padded(values))[2] == Tally(off_grid=1, negative_steps=0, bit_identical=0)


@pytest.mark.parametrize("step_sign", [1, -1])
@pytest.mark.parametrize("peak", range(1, 9))
def test_every_peak_level_and_sign_is_recovered(peak: int, step_sign: int) -> None:
    bits, levels = lattice(4000, peak, step_sign, seed=peak)
    found, steps, tally = encode(bits)
    needs_minus = peak == 8 and step_sign < 0  # the peak is then +8 steps, which int4 lacks
    expected = levels if needs_minus else levels * np.int8(step_sign)
    assert len(levels) > 1000
    assert tally.off_grid == 0
    assert int((found != expected).sum()) == 0
    assert tally.negative_steps == (len(levels) if needs_minus else 0)
    served = levels_to_values(found, steps[:, 0]).astype(np.float64)
    rounded, source = from_bf16(to_bf16(served)), from_bf16(bits)
    assert (np.abs(rounded - source) <= 3 * 2.0**-8 * np.abs(source)).all()
    assert tally.bit_identical == int((rounded == source).sum())  # zeros of either sign are equal


def test_noise_is_off_the_grid_group_by_group() -> None:
    noise = to_bf16(np.random.default_rng(5).normal(0, 0.02, (20_000, 32)))
    assert int((groups_to_steps(noise) == 0).sum()) == 20_000


def test_one_noisy_group_among_many_is_found() -> None:
    bits, _ = lattice(500, 7, 1, seed=3)
    bits[137] = to_bf16(np.random.default_rng(6).normal(0, 0.02, 32))
    assert np.flatnonzero(groups_to_steps(bits) == 0).tolist() == [137]
    assert encode(bits.reshape(4, -1) if len(bits) % 4 == 0 else bits)[2].off_grid == 1


def test_a_scale_of_absmax_over_8_would_be_wrong() -> None:
    bits, _ = lattice(1000, 5, 1, seed=9)
    peaks = np.abs(from_bf16(bits)).max(axis=1)
    assert np.allclose(from_bf16(groups_to_steps(bits)), peaks / 5, rtol=2.0**-7)


def plain_rule(group: NDArray[np.uint16]) -> int:
    """The rule of grid.py's docstring in plain float64, every m and neighbour in order; 0 is off the grid."""
    values = from_bf16(group)
    peak = np.abs(values).max()
    if peak == 0:
        return 0x3F80
    for m in range(1, 9):
        levels = np.rint(values * m / peak)
        sign = -1 if m == 8 and levels.max() == 8 else 1
        fitted = int(to_bf16((values * levels).sum() / (levels * levels).sum()))
        for magnitude in (fitted, fitted + 1, fitted - 1):
            step = sign * float(from_bf16(np.array([magnitude], np.uint16))[0])
            again = np.rint(values / step)
            close = np.abs(values - step * again).max() <= peak * 2.0**-7
            if close and again.min() >= -8 and again.max() <= 7:
                return magnitude | (0x8000 if sign < 0 else 0)
    return 0


def test_groups_of_64_do_not_fit_a_trained_checkpoint() -> None:
    with Checkpoint.open(NANO) as nano:
        rows = nano.rows("model.language_model.layers.1.mlp.down_proj.weight", 0, 32)
    by_32 = sum(plain_rule(group) != 0 for group in rows.reshape(-1, 32))
    by_64 = sum(plain_rule(group) != 0 for group in rows.reshape(-1, 64))
    assert by_32 == rows.size // 32
    assert by_64 <= 0.1 * rows.size / 64


@settings(max_examples=300)
@given(
    peak=st.integers(1, 9),
    step=st.floats(1e-4, 2.0),
    noise=st.sampled_from([0.0, 0.0, 0.002, 0.01, 0.05]),
    sign=st.sampled_from([1, -1]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_fast_path_is_the_plain_rule(peak: int, step: float, noise: float, sign: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    levels = rng.integers(-peak, peak + 1, (8, 32)) * rng.integers(0, 2, (8, 32))
    bits = to_bf16(sign * step * levels * (1 + noise * rng.normal(size=levels.shape)))
    assert groups_to_steps(bits).tolist() == [plain_rule(group) for group in bits]


@given(st.integers(1, 3), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_rows_are_groups_side_by_side(rows: int, groups: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    bits = to_bf16(rng.integers(-7, 8, (rows, groups * 32)) * 0.01)
    before = bits.copy()
    levels, steps, _ = encode(bits)
    assert (bits == before).all()
    assert (steps.reshape(-1) == groups_to_steps(bits.reshape(-1, 32))).all()
    alone = encode(bits.reshape(-1, 32))[0]
    assert (levels.reshape(-1, 32) == alone).all()
