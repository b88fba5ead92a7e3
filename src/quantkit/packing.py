"""int4 levels <-> int32 words, as compressed-tensors' pack-quantized layout has them.

Pure. A nibble is level + 8 (biased), element i of each eight lies at bits 4i, lowest first, and words run
along the input dimension. Words are integers throughout: a float32 would lose their low bits.
"""

import numpy as np
from numpy.typing import NDArray

from quantkit.kernels import compiled, i32, u8, u32, u64

PER_WORD = 8
BIAS = 8


@compiled
def nibbles_to_word(eight: np.uint64) -> np.int32:
    """One word from eight nibbles, one a byte, the first in the lowest byte."""
    pairs = u64((eight | (eight >> u64(4))) & u64(0x00FF00FF00FF00FF))
    fours = u64((pairs | (pairs >> u64(8))) & u64(0x0000FFFF0000FFFF))
    return i32(u64(fours | (fours >> u64(16))) & u64(0xFFFFFFFF))


@compiled
def _pack(levels: NDArray[np.int8], words: NDArray[np.int32]) -> None:
    nibbles = np.empty(8, u8)
    for r in range(words.shape[0]):
        for w in range(words.shape[1]):
            for i in range(8):
                nibbles[i] = u8(i32(levels[r, w * 8 + i]) + i32(BIAS))
            words[r, w] = nibbles_to_word(nibbles.view(u64)[0])


@compiled
def _unpack(words: NDArray[np.int32], levels: NDArray[np.int8]) -> None:
    for r in range(words.shape[0]):
        for w in range(words.shape[1]):
            for i in range(8):
                nibble = u32(u32(words[r, w]) >> u32(4 * i)) & u32(15)
                levels[r, w * 8 + i] = np.int8(i32(nibble) - i32(BIAS))


def levels_to_words(levels: NDArray[np.int8]) -> NDArray[np.int32]:
    """Pack levels of -8..7, int8 [n, k], into int32 [n, k / 8]; k is a multiple of 8."""
    assert levels.dtype == np.int8
    assert levels.ndim == 2
    assert levels.shape[1] % PER_WORD == 0
    assert not levels.size or (levels.min() >= -BIAS and levels.max() < BIAS)
    words = np.empty((levels.shape[0], levels.shape[1] // PER_WORD), np.int32)
    _pack(levels, words)
    return words


def words_to_levels(words: NDArray[np.int32]) -> NDArray[np.int8]:
    """Unpack int32 [n, k / 8] into levels of -8..7, int8 [n, k]."""
    assert words.dtype == np.int32
    assert words.ndim == 2
    levels = np.empty((words.shape[0], words.shape[1] * PER_WORD), np.int8)
    _unpack(words, levels)
    return levels
