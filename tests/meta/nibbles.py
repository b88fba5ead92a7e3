"""Words and bfloat16 patterns to numbers and back, by plain arithmetic; neither writer nor judge takes part.

Only the miniatures in `meta` import it.
"""

import ml_dtypes
import numpy as np
from numpy.typing import NDArray


def float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Values of bfloat16 patterns."""
    return np.asarray(bits.view(ml_dtypes.bfloat16), dtype=np.float32)


def unpack(words: NDArray[np.int32]) -> NDArray[np.int64]:
    """Levels of packed words."""
    shifts = 4 * np.arange(8)
    return ((words.astype(np.int64)[..., None] >> shifts & 15) - 8).reshape(len(words), -1)


def pack(levels: NDArray[np.int64], bias: int = 8, shifts: NDArray[np.int64] = 4 * np.arange(8)) -> bytearray:
    """Words of levels, biased and lowest first unless asked otherwise."""
    nibbles = (levels + bias & 15).reshape(len(levels), -1, 8)
    return bytearray((nibbles << shifts).sum(axis=2).astype(np.uint32).tobytes())
