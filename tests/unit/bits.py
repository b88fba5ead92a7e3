"""bfloat16 patterns for tests, through ml_dtypes: arithmetic that quantkit's kernels share nothing with.

Only unit tests import it.
"""

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray


def to_bf16(values: ArrayLike) -> NDArray[np.uint16]:
    """Patterns of the bfloat16 nearest to each value."""
    return np.asarray(values, np.float64).astype(ml_dtypes.bfloat16).view(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float64]:
    """Values of patterns."""
    return np.asarray(bits.view(ml_dtypes.bfloat16), np.float64)


def padded(values: list[float]) -> NDArray[np.uint16]:
    """One group of 32 that begins with these values."""
    return to_bf16([*values, *[0.0] * (32 - len(values))])[None, :]
