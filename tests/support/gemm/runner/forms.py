"""Number formats as the timed kernels take them: codes, random bits turned into values, and error bounds.

Pure torch on tensors; knows no device type beyond where a tensor lies, and no timing.
"""

import math
from dataclasses import dataclass

import torch

EVERY = 1 << 22  # products up to this many weights are checked in every column
TILE = 16  # no matrix unit writes a narrower tile, so one column in each is enough for larger products


POOL = 8_388_593  # random words before they repeat: a prime, so that no row of a large weight equals another
STRIP = 2048  # columns checked at a time: float64 operands of a large product would fill memory


class WrongValues(Exception):
    """A product whose values lie outside their bound; it gets no time."""


@dataclass(frozen=True)
class Form:
    """A number format of weights and activations.

    Attributes
    ----------
    dtype, out
        torch's name of the codes, and of the product's output.
    keep, base
        Masks that turn random bits into values of magnitude 2^-3 to 2, either sign.
    unit
        Relative rounding of the output: 2^-p for p bits of significand.
    weight_unit
        Relative rounding of weights that a kernel dequantizes itself.
    fast_sums
        Rounding of partial sums on a GPU, relative to the sum of magnitudes.
    """

    dtype: str
    keep: int
    base: int
    out: str
    unit: float
    weight_unit: float = 0.0
    fast_sums: float = 0.0


FORMS = {
    # cuBLAS and hipBLASLt may round split-K partial sums to the output's type
    "bf16": Form("bfloat16", 0x81FF, 0x3E00, "bfloat16", 2**-8, fast_sums=2**-8),
    "fp16": Form("float16", 0x8FFF, 0x3000, "float16", 2**-11, fast_sums=2**-11),
    # Hopper sums fp8 with 14 bits and promotes to float32 every 4 steps: 4 x 2^-13, taken twice
    "fp8": Form("float8_e4m3fn", 0x9F, 0x20, "bfloat16", 2**-8, fast_sums=2**-10),
    "fp8fnuz": Form("float8_e4m3fnuz", 0x9F, 0x20, "bfloat16", 2**-8, fast_sums=2**-10),
    "int8": Form("int8", 0xFF, 0x00, "int32", 0.0),  # exact
    # level x step has 12 bits; a kernel may round it to bf16 before it multiplies
    "int4": Form("bfloat16", 0x81FF, 0x3E00, "bfloat16", 2**-8, weight_unit=2**-8, fast_sums=2**-8),
}


def random_codes(shape: tuple[int, ...], form: Form, device: torch.device) -> torch.Tensor:
    """Codes of values around 1 (int8: any byte), from eight random bytes at a time."""
    dtype: torch.dtype = getattr(torch, form.dtype)
    size = math.prod(shape) * dtype.itemsize
    words = -(-size // 8)
    pool = torch.empty(min(words, POOL), dtype=torch.int64, device=device).random_(-(2**63), None)
    integer, bits = (torch.int8, 8) if dtype.itemsize == 1 else (torch.int16, 16)
    keep, base = (mask - (1 << bits) if mask >> (bits - 1) else mask for mask in (form.keep, form.base))
    pool.view(integer).bitwise_and_(keep).bitwise_or_(base)
    codes = torch.empty(words, dtype=torch.int64, device=device)
    for start in range(0, words, len(pool)):
        part = codes[start : start + len(pool)]
        part.copy_(pool[: len(part)])
    return codes.view(torch.uint8)[:size].view(dtype).view(shape)


def random_scales(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """bf16 scales from 0.5 to 1.5: with 8 bits, code x scale is exact in float32."""
    return (torch.rand(shape, device=device) + 0.5).to(torch.bfloat16)


def checked_columns(n: int, k: int) -> torch.Tensor:
    """Output columns to check: all of a small product, one in each tile of a large one, at a random phase."""
    if n * k <= EVERY:
        return torch.arange(n)
    return torch.arange(int(torch.randint(min(n, TILE), ())), n, TILE)


def poison(out: torch.Tensor) -> torch.Tensor:
    """The same tensor filled with NaN, or with the lowest integer: values that no product here has."""
    return out.fill_(math.nan if out.is_floating_point() else torch.iinfo(out.dtype).min)


def error_over_bound(form: Form, got: torch.Tensor, x: torch.Tensor, w: torch.Tensor, on_gpu: bool) -> float:
    """Largest error of a product over its bound; NaN where a value is NaN.

    Parameters
    ----------
    form
        Format of both operands.
    got
        Output [rows, columns], as the kernel wrote it.
    x, w
        float64 [rows, k] and float32 [columns, k]: exactly the values that codes and scales stand for.
    on_gpu
        Whether partial sums may be rounded as `Form.fast_sums` says.

    Notes
    -----
    ``|error| <= unit |y| + (k 2^-24 + weight_unit + fast_sums) sum |x w|``: rounding of the output; float32 sums of k
    terms in any order; rounding of dequantized weights; rounding of partial sums. int8 has to be exact.
    """
    share = x.shape[1] * 2**-24 + form.weight_unit + (form.fast_sums if on_gpu else 0.0)
    worst = []
    for at in range(0, len(w), STRIP):
        strip = w[at : at + STRIP].double().t()
        exact = x @ strip
        error = (got[:, at : at + STRIP].double() - exact).abs()
        if form.unit:
            error /= form.unit * exact.abs() + share * (x.abs() @ strip.abs())
        else:
            error *= 2
        worst.append(error.max())
    return float(torch.stack(worst).max())
