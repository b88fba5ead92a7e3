"""int4 words: golden rows by hand in both directions, all nibbles at all places, any shape."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from quantkit.packing import levels_to_words, words_to_levels
from tests.unit.golden_codes import WORDS


@pytest.mark.parametrize(("levels", "word"), [row[1:] for row in WORDS], ids=[row[0] for row in WORDS])
def test_golden_words(levels: list[int], word: str) -> None:
    packed = np.array([[int(word, 16)]], np.uint32).view(np.int32)
    assert levels_to_words(np.array([levels], np.int8)).tolist() == packed.tolist()
    assert words_to_levels(packed).tolist() == [levels]


@pytest.mark.parametrize("place", range(8))
def test_every_nibble_at_every_place(place: int) -> None:
    levels = np.zeros((16, 8), np.int8)
    levels[:, place] = np.arange(-8, 8)
    words = levels_to_words(levels).view(np.uint32)[:, 0]
    others = int("88888888", 16) & ~(15 << 4 * place)
    assert words.tolist() == [others | nibble << 4 * place for nibble in range(16)]


@given(st.integers(0, 5), st.integers(0, 6), st.data())
def test_words_hold_levels_of_any_shape(rows: int, eights: int, data: st.DataObject) -> None:
    levels = data.draw(arrays(np.int8, (rows, 8 * eights), elements=st.integers(-8, 7)))
    before = levels.copy()
    words = levels_to_words(levels)
    assert words.shape == (rows, eights)
    assert words.dtype == np.int32
    assert (words_to_levels(words) == levels).all()
    assert (levels == before).all()


@pytest.mark.parametrize("level", [-9, 8])
def test_a_level_that_no_nibble_holds_is_refused(level: int) -> None:
    with pytest.raises(AssertionError):
        levels_to_words(np.full((1, 8), level, np.int8))
