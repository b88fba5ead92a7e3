"""What every compiled kernel shares: the numba decorator, typed, and bfloat16 as bits.

Pure. `grid`, `codes` and `packing` build on it; it knows no format, no tensor and no file. Kernels release the
interpreter lock, so that plain threads run them side by side. What keeps a loop on the vector unit: indexes that
cannot be negative, 32-bit operands (numba widens ints to 64), sums in locals, and scratch allocated inside.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

f32, i32, u8, u16, u32, u64 = np.float32, np.int32, np.uint8, np.uint16, np.uint32, np.uint64


def compiled(function: Kernel) -> Kernel:
    """The function as machine code, cached on disk between runs.

    Sums may be reassociated, as vector units do; nothing else of IEEE arithmetic is relaxed, so a kernel that
    sums floats must do so exactly.
    """
    compile_it = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc"})
    return cast(Kernel, compile_it(function))


@compiled
def float_bits(value: np.float32) -> np.uint32:
    """Bit pattern of a float32."""
    return f32(value).view(u32)


@compiled
def bf16_value(bits: np.uint16) -> np.float32:
    """The float32 that a bfloat16 bit pattern stands for; exact."""
    return u32(u32(bits) << u32(16)).view(f32)


@compiled
def rounded_to_bf16(value: np.float32) -> np.uint32:
    """Bits of a finite float32 whose upper half is the nearest bfloat16, ties to even; the lower half is noise."""
    bits = f32(value).view(u32)
    return u32(u32(bits + u32(0x7FFF)) + u32(u32(bits >> u32(16)) & u32(1)))


@compiled
def bf16_nearest(value: np.float32) -> np.uint16:
    """Bit pattern of the bfloat16 nearest to a finite float32, ties to even."""
    return u16(rounded_to_bf16(value) >> u32(16))


@compiled
def nearest_int(value: np.float32) -> np.int32:
    """Nearest integer of a float32 below 2^22 in magnitude, ties to even; a cast would not vectorize."""
    return i32(f32(value + f32(12582912.0)).view(i32) - i32(0x4B400000))  # 1.5 x 2^23: its last place is 1
