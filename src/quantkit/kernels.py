"""What every compiled kernel shares: the numba decorator, typed, and bfloat16 as bits.

Pure. `grid`, `codes` and `packing` build on it; it knows no format, no tensor and no file. Kernels release
the interpreter lock, so that plain threads run them side by side.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(function: Kernel) -> Kernel:
    """The function as machine code, cached on disk between runs.

    Sums may be reassociated, as vector units do; nothing else of IEEE arithmetic is relaxed, so a kernel
    that sums must do so exactly.
    """
    compile_it = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc"})
    return cast(Kernel, compile_it(function))


@compiled
def float_bits(value: np.float32) -> np.int32:
    """Bit pattern of a float32."""
    return np.float32(value).view(np.int32)


@compiled
def bf16_value(bits: np.uint16) -> np.float32:
    """The float32 that a bfloat16 bit pattern stands for; exact."""
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@compiled
def bf16_nearest(value: np.float32) -> np.uint16:
    """Bit pattern of the bfloat16 nearest to a finite float32, ties to even."""
    bits = np.float32(value).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


@compiled
def nearest_int(value: np.float32) -> np.int32:
    """Nearest integer of a float32 below 2^22 in magnitude, ties to even; vectorizes, unlike a cast."""
    shifted = np.float32(value + np.float32(12582912.0))  # 1.5 x 2^23: the unit in the last place is 1
    return np.int32(shifted.view(np.int32) - np.int32(0x4B400000))
