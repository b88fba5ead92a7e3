"""The judge's kernels on golden groups and rows: nothing wrong in them, and each single change called what it is.

The rows were written by hand from the specifications; neither writer nor checkpoint takes part.
"""

import numpy as np
import pytest
from numpy.typing import NDArray

from quantkit import judge_groups as groups
from quantkit import judge_rows as rows
from quantkit.formats import FP8, FP8FNUZ, INT8, Scheme
from quantkit.reference import CODEBOOKS
from tests.unit.bits import padded, to_bf16
from tests.unit.golden_codes import FP8_ROWS, FP8FNUZ_ROWS, GROUPS, INT8_ROWS

GOLDEN_ROWS = [(FP8, *row) for row in FP8_ROWS]
GOLDEN_ROWS += [(FP8FNUZ, *row) for row in FP8FNUZ_ROWS]
GOLDEN_ROWS += [(INT8, *row) for row in INT8_ROWS]
by_row = pytest.mark.parametrize(
    ("scheme", "values", "scale", "codes"),
    [(row[0], *row[2:]) for row in GOLDEN_ROWS],
    ids=[f"{row[0].name}-{row[1]}" for row in GOLDEN_ROWS],
)
by_group = pytest.mark.parametrize(
    ("values", "step", "levels"), [row[1:] for row in GROUPS], ids=[row[0] for row in GROUPS]
)


def words_of(levels: list[int]) -> NDArray[np.int32]:
    """Words ``[1, 4]`` of one group that begins with these levels; the rest are 0."""
    nibbles = (np.array([*levels, *[0] * (32 - len(levels))]) + 8).astype(np.uint32)
    words = (nibbles.reshape(1, 4, 8) << np.arange(0, 32, 4, dtype=np.uint32)).sum(axis=2, dtype=np.uint32)
    return np.asarray(words.view(np.int32))


def wrong_in_group(values: list[float], step: float, levels: list[int]) -> set[int]:
    """Faults of one group."""
    found = groups.judge_groups(padded(values), words_of(levels), np.array([[step]], np.float32))[2]
    return set(np.flatnonzero(found[:, 0]).tolist())


@by_group
def test_a_golden_group_is_right(values: list[float], step: float, levels: list[int]) -> None:
    assert wrong_in_group(values, step, levels) == set()


@by_group
@pytest.mark.parametrize("factor", [2, 4])
def test_a_finer_lattice_is_called_so(
    values: list[float], step: float, levels: list[int], factor: int
) -> None:
    finer = [level * factor for level in levels]
    if any(levels) and max(map(abs, finer)) <= 7:
        assert wrong_in_group(values, step / factor, finer) == {groups.GRID_TOO_FINE}


@by_group
def test_a_needless_sign_is_called_so(values: list[float], step: float, levels: list[int]) -> None:
    if any(levels) and min(levels) > -8:
        assert wrong_in_group(values, -step, [-level for level in levels]) == {groups.STEP_SIGN}


@by_group
@pytest.mark.parametrize("wrong", [0.0, np.nan, np.inf, -np.inf])
def test_an_unusable_step_is_called_so(
    values: list[float], step: float, levels: list[int], wrong: float
) -> None:
    assert groups.STEP_UNUSABLE in wrong_in_group(values, wrong, levels)


@by_group
def test_another_step_is_called_so(values: list[float], step: float, levels: list[int]) -> None:
    for other in (step * (1 + 2.0**-7), step * (1 - 2.0**-7)):
        # where the fit itself misses the tolerance and its neighbour stands, the fit is off the grid
        assert wrong_in_group(values, other, levels) & {groups.STEP_NOT_FITTED, groups.OFF_GRID}


@by_group
def test_another_level_is_called_so(values: list[float], step: float, levels: list[int]) -> None:
    for at in range(len(levels)):
        other = list(levels)
        other[at] += 1 if levels[at] < 7 else -1
        assert groups.LEVEL_NOT_NEAREST in wrong_in_group(values, step, other)


def wrong_in_row(scheme: Scheme, values: list[float], scale: float, codes: NDArray[np.uint8]) -> set[int]:
    """Faults of one row."""
    scales, book = np.array([scale], np.float32), CODEBOOKS[scheme.code_dtype]
    found = rows.judge_rows(to_bf16([values]), codes[None, :], scales, scheme.code_max, book)[2]
    return set(np.flatnonzero(found[:, 0]).tolist())


def bytes_of(codes: str) -> NDArray[np.uint8]:
    """Codes written in hex."""
    return np.frombuffer(bytes.fromhex(codes), np.uint8).copy()


@by_row
def test_a_golden_row_is_right(scheme: Scheme, values: list[float], scale: float, codes: str) -> None:
    assert wrong_in_row(scheme, values, scale, bytes_of(codes)) == set()


@by_row
def test_every_other_code_is_called_so(scheme: Scheme, values: list[float], scale: float, codes: str) -> None:
    right, hole = bytes_of(codes), np.isnan(CODEBOOKS[scheme.code_dtype].values)
    for at in range(len(right)):
        for other in set(range(256)) - {int(right[at])}:
            spoiled = right.copy()
            spoiled[at] = other
            kind = rows.CODE_FORBIDDEN if hole[other] else rows.CODE_NOT_NEAREST
            assert wrong_in_row(scheme, values, scale, spoiled) == {kind}


@by_row
def test_another_scale_is_called_so(scheme: Scheme, values: list[float], scale: float, codes: str) -> None:
    for beside in (np.nextafter(np.float32(scale), np.float32(side)) for side in (0, 1e9)):
        assert rows.SCALE_NOT_RULE in wrong_in_row(scheme, values, float(beside), bytes_of(codes))
    for unusable in (0.0, -scale, np.nan, np.inf):
        assert wrong_in_row(scheme, values, unusable, bytes_of(codes)) == {rows.SCALE_UNUSABLE}


@pytest.mark.parametrize("scheme", [FP8, FP8FNUZ, INT8], ids=lambda scheme: scheme.name)
def test_the_first_wrong_code_of_a_block_is_named_and_all_are_counted(scheme: Scheme) -> None:
    _, _, values, scale, codes = next(row for row in GOLDEN_ROWS if row[0] is scheme)
    bits, stored = to_bf16([values] * 4), np.stack([bytes_of(codes)] * 4)
    stored[1, 2], stored[3, 0] = 1, 1
    assert stored[1, 2] != bytes_of(codes)[2]
    assert stored[3, 0] != bytes_of(codes)[0]
    scales, book = np.full(4, scale, np.float32), CODEBOOKS[scheme.code_dtype]
    scales[[0, 2]] = np.nan
    found = rows.judge_rows(bits, stored, scales, scheme.code_max, book)[2]
    assert found[rows.CODE_NOT_NEAREST].tolist() == [2, 1, 2]
    assert found[rows.SCALE_UNUSABLE].tolist() == [2, 0, 0]


def test_the_first_wrong_group_of_a_block_is_named_and_all_are_counted() -> None:
    _, values, step, levels = GROUPS[0]
    block = np.tile(words_of(levels), (3, 2))
    steps = np.full((3, 2), step, np.float32)
    steps[0, 1], steps[2, 0] = np.nan, np.inf
    found = groups.judge_groups(np.tile(padded(values), (3, 2)), block, steps)[2]
    assert found[groups.STEP_UNUSABLE].tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("values", "levels", "steps"),  # the fit rounded, its neighbour that fits, and the one after that
    [
        ([3.9375, 1.015625], [4, 1], (0.984375, 0.98828125, 0.9921875)),  # fitted 0.98621
        ([2.0, 0.9765625], [2, 1], (0.99609375, 0.9921875, 0.98828125)),  # fitted 0.99531
    ],
)
def test_where_the_fit_misses_the_tolerance_its_neighbour_may_stand(
    values: list[float], levels: list[int], steps: tuple[float, float, float]
) -> None:
    faults = [{groups.OFF_GRID}, set(), {groups.OFF_GRID, groups.STEP_NOT_FITTED}]
    assert [wrong_in_group(values, step, levels) for step in steps] == faults


def test_the_sums_of_rows_and_groups_by_hand() -> None:
    values, book = to_bf16([[127.0, 1.5, -3.0], [127.0, 0.0, -2.25]]), CODEBOOKS["I8"]
    codes = np.stack([bytes_of("7f 02 fd"), bytes_of("7f 00 fe")])
    sums = rows.judge_rows(values, codes, np.ones(2, np.float32), 127, book)[0]
    by_hand = [0.25 + 0.0625, 2 * 127.0**2 + 1.5**2 + 9 + 2.25**2, 0.5 / 127, float(np.float32(0.5 / 1.5))]
    assert sums.tolist() == [by_hand] * 2
    bits = np.concatenate([padded([7.0, 1 + 2.0**-7]), padded([7.0, 2 + 2.0**-6])])
    words = np.concatenate([words_of([7, 1]), words_of([7, 2])])
    sums = groups.judge_groups(bits, words, np.ones((2, 1), np.float32))[0]
    share = float(np.float32(2.0**-7 / (1 + 2.0**-7)))
    assert sums.tolist() == [5 * 2.0**-14, 2 * 49 + 5 * (1 + 2.0**-7) ** 2, 2.0**-6 / 7, share]


@pytest.mark.parametrize("scheme", [FP8, FP8FNUZ, INT8], ids=lambda scheme: scheme.name)
def test_what_is_served_is_measured_where_it_differs_and_else_what_is_stored(scheme: Scheme) -> None:
    """An FNUZ code at an odd multiple of 2^-10 is no E4M3FN value; all other codes are served as stored."""
    book = CODEBOOKS[scheme.code_dtype]
    values = [scheme.code_max, 2.0**-10] if scheme is FP8FNUZ else [scheme.code_max, 1.0]
    codes = np.array([[int(np.flatnonzero(book.values == value)[0]) for value in values]], np.uint8)
    stored, served = rows.judge_rows(to_bf16([values]), codes, np.ones(1, np.float32), scheme.code_max, book)[
        0
    ]
    assert stored[rows.SIGNAL_ENERGY] == served[rows.SIGNAL_ENERGY] > 0
    assert stored[rows.ERROR_ENERGY] == 0
    assert served[rows.ERROR_ENERGY] == (2.0**-20 if scheme is FP8FNUZ else 0)


IDENTICAL = [  # scheme, values, codes of scale 1: all but two come back
    (INT8, [127.0, -127.0, 0.5, 1.5, -0.0, 3.0], "7f 81 00 02 00 03"),
    (FP8, [448.0, -448.0, 0.1, 8.5, -0.0, 1.0], "7e fe 1d 50 00 38"),
    (FP8FNUZ, [240.0, -240.0, 0.1, 8.5, -0.0, 1.0], "7f ff 25 58 00 40"),
]


@pytest.mark.parametrize(("scheme", "values", "codes"), IDENTICAL, ids=[row[0].name for row in IDENTICAL])
def test_values_that_decode_to_the_source_s_bits_are_counted_once(
    scheme: Scheme, values: list[float], codes: str
) -> None:
    """Zeros of either sign are the same; FNUZ codes are looked at twice, as stored and as served."""
    book, scales = CODEBOOKS[scheme.code_dtype], np.ones(1, np.float32)
    counts = rows.judge_rows(to_bf16([values]), bytes_of(codes)[None, :], scales, scheme.code_max, book)[1]
    assert counts[rows.BIT_IDENTICAL] == 4


def test_a_zero_row_has_no_share_of_its_absmax_whatever_it_holds() -> None:
    values, codes = np.zeros((3, 2)), np.zeros((3, 2), np.uint8)
    values[1], codes[1:] = [127.0, 1.5], [[127, 2], [1, 0]]
    sums = rows.judge_rows(to_bf16(values), codes, np.ones(3, np.float32), 127, CODEBOOKS["I8"])[0]
    assert sums[:, rows.MAX_OVER_ROW].tolist() == [0.5 / 127] * 2


def test_values_of_a_group_that_decode_to_the_source_s_bits_are_counted() -> None:
    values, levels = [7.0, -7.0, -0.0, 1 + 2.0**-7, 2 + 2.0**-6], [7, -7, 0, 1, 2]  # the last two do not
    counts = groups.judge_groups(padded(values), words_of(levels), np.ones((1, 1), np.float32))[1]
    assert counts[groups.BIT_IDENTICAL] == 30


def test_a_zero_row_of_groups_has_no_share_of_its_absmax_whatever_it_holds() -> None:
    bits = np.concatenate([padded([0.0]), padded([7.0, 1 + 2.0**-7]), padded([0.0])])
    words = np.concatenate([words_of(levels) for levels in ([0], [7, 1], [1])])
    sums = groups.judge_groups(bits, words, np.ones((3, 1), np.float32))[0]
    assert sums[groups.MAX_OVER_ROW] == 2.0**-7 / 7
