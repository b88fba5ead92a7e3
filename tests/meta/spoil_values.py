"""Miniatures of wrong values: each function puts one named defect into a draft, and says where.

A defect is put in by arithmetic of its own on raw bytes, never by the writers. `faults` lists them; nothing
else imports this file.
"""

from collections.abc import Callable

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.meta.nibbles import float32, pack, unpack
from tests.meta.toy import GROUP, Draft, Raw, bf16

PREFIX = "model.language_model."
UP = f"{PREFIX}layers.1.mlp.up_proj"
GATE = f"{PREFIX}layers.1.mlp.gate_proj"
TABLE = f"{PREFIX}embed_tokens_per_layer"
NAN_CODE = {"F8_E4M3": 0x7F, "F8_E4M3FNUZ": 0x80, "I8": 0x80}
CODE_MAX = {"F8_E4M3": 448.0, "F8_E4M3FNUZ": 240.0, "I8": 127.0}
FLOAT8 = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz}

Spoiler = Callable[[Draft, Draft], str]


def int4_module(draft: Draft) -> str:
    """A packed module: a linear where there is one, else a table."""
    return next(module for module in (UP, TABLE) if f"{module}.weight_packed" in draft)


def source_values(source: Draft, module: str) -> NDArray[np.float32]:
    """The source's values of a module."""
    return float32(source[f"{module}.weight"].view(np.uint16))


def levels_of(draft: Draft, module: str) -> NDArray[np.int64]:
    """Stored levels of a module."""
    return unpack(draft[f"{module}.weight_packed"].view(np.int32))


def repack(draft: Draft, module: str, data: bytearray) -> None:
    """Replace the words of a module."""
    old = draft[f"{module}.weight_packed"]
    draft.put(f"{module}.weight_packed", Raw(old.dtype, old.shape, data))


def minmax_steps(divisor: float) -> Spoiler:
    """Steps of absmax / divisor, levels rounded to them."""

    def spoil(draft: Draft, source: Draft) -> str:
        module = int4_module(draft)
        values = source_values(source, module)
        groups = values.reshape(len(values), -1, GROUP)
        steps = float32(bf16(np.abs(groups).max(axis=2) / divisor))
        safe = np.where(steps == 0, 1, steps)
        levels = np.clip(np.rint(groups / safe[..., None]), -8, 7).astype(np.int64).reshape(values.shape)
        repack(draft, module, pack(levels))
        draft[f"{module}.weight_scale"].view(np.uint16)[:] = bf16(safe)
        return module

    return spoil


def twos_complement(draft: Draft, source: Draft) -> str:
    """Nibbles without the bias of 8."""
    module = int4_module(draft)
    repack(draft, module, pack(levels_of(draft, module), bias=0))
    return module


def highest_first(draft: Draft, source: Draft) -> str:
    """The first of eight levels in the highest bits."""
    module = int4_module(draft)
    repack(draft, module, pack(levels_of(draft, module), shifts=28 - 4 * np.arange(8)))
    return module


def transposed(draft: Draft, source: Draft) -> str:
    """Levels packed along the output dimension into the same shape."""
    module = int4_module(draft)
    levels = levels_of(draft, module)
    repack(draft, module, pack(np.ascontiguousarray(levels.T).reshape(levels.shape)))
    return module


def swap_scales(module: str) -> Spoiler:
    """Scales of two rows exchanged, or of two groups."""

    def spoil(draft: Draft, source: Draft) -> str:
        own = module if f"{module}.weight_scale" in draft else int4_module(draft)
        raw = draft[f"{own}.weight_scale"]
        flat = raw.view(np.float32 if raw.dtype == "F32" else np.uint16).reshape(-1)
        magnitudes = flat if raw.dtype == "F32" else flat & 0x7FFF
        first, second = int(magnitudes.argmax()), int(magnitudes.argmin())
        flat[[first, second]] = flat[[second, first]]
        return own

    return spoil


def narrow_scales(draft: Draft, source: Draft) -> str:
    """Scales rounded to half precision and stored as before; codes not derived again."""
    scales = draft[f"{UP}.weight_scale"].view(np.float32)
    scales[:] = scales.astype(np.float16)
    return UP


def narrow_steps(draft: Draft, source: Draft) -> str:
    """Steps rounded to three bits of mantissa, as in float8; levels not derived again."""
    module = int4_module(draft)
    bits = draft[f"{module}.weight_scale"].view(np.uint16)
    bits[:] = (bits + 8) & np.uint16(0xFFF0)
    return module


def scale_dtype(draft: Draft, source: Draft) -> str:
    """Scales stored in a type of half the width."""
    own = UP if f"{UP}.weight_scale" in draft else int4_module(draft)
    raw = draft[f"{own}.weight_scale"]
    values = raw.view(np.float32) if raw.dtype == "F32" else float32(raw.view(np.uint16))
    tag, data = (
        ("BF16", bf16(values)) if raw.dtype == "F32" else ("F8_E4M3", values.astype(FLOAT8["F8_E4M3"]))
    )
    draft.put(f"{own}.weight_scale", Raw(tag, raw.shape, bytearray(data.tobytes())))
    return f"{own}.weight_scale"


def other_flavour(draft: Draft, source: Draft) -> str:
    """Every float8 tensor labelled as the other flavour, bytes and scales as they were."""
    other = {"F8_E4M3": "F8_E4M3FNUZ", "F8_E4M3FNUZ": "F8_E4M3"}
    for name in list(draft.names()):
        raw = draft[name]
        raw.dtype = other.get(raw.dtype, raw.dtype)
    return UP


def forbidden_code(draft: Draft, source: Draft) -> str:
    """One code that stands for NaN; in int8 the level that symmetric codes leave out."""
    raw = draft[f"{UP}.weight"]
    raw.data[77] = NAN_CODE[raw.dtype]
    return UP


def one_other_flavour(draft: Draft, source: Draft) -> str:
    """One float8 module labelled as the other flavour."""
    raw = draft[f"{UP}.weight"]
    raw.dtype = "F8_E4M3" if raw.dtype == "F8_E4M3FNUZ" else "F8_E4M3FNUZ"
    return UP


def nan_scale(draft: Draft, source: Draft) -> str:
    """0 / 0: the scale of a zero row is NaN."""
    scales = draft[f"{UP}.weight_scale"].view(np.float32)
    scales[len(scales) // 2] = np.nan  # the toy's zero row
    return UP


def nan_step(draft: Draft, source: Draft) -> str:
    """0 / 0: the steps of a row of zero groups are NaN."""
    module = int4_module(draft)
    bits = draft[f"{module}.weight_scale"].view(np.uint16)
    bits[len(bits) // 2] = 0x7FC0
    return module


def _row_tensors(draft: Draft, module: str) -> list[Raw]:
    names = ("weight", "weight_packed", "weight_scale")
    return [draft[f"{module}.{name}"] for name in names if f"{module}.{name}" in draft]


def swap_gate_up(draft: Draft, source: Draft) -> str:
    """gate_proj and up_proj exchanged, scales and all."""
    for one, other in zip(_row_tensors(draft, GATE), _row_tensors(draft, UP), strict=True):
        one.data, other.data = other.data, one.data
    return UP


def reverse_rows(draft: Draft, source: Draft) -> str:
    """Rows of gate_proj in reversed order, scales and all."""
    for raw in _row_tensors(draft, GATE):
        rows = raw.view(
            np.uint8 if raw.dtype.startswith(("F8", "I8")) else {"BF16": "u2"}.get(raw.dtype, "u4")
        )
        raw.data = bytearray(rows[::-1].tobytes())
    return GATE


def roll_rows(draft: Draft, source: Draft) -> str:
    """Rows of down_proj rolled by one, scales left where they are."""
    module = f"{PREFIX}layers.0.mlp.down_proj"
    raw = _row_tensors(draft, module)[0]
    size = len(raw.data) // raw.shape[0]
    raw.data = raw.data[-size:] + raw.data[:-size]
    return module


def scale_times_16(draft: Draft, source: Draft) -> str:
    """All scales of one down_proj 16 times too large."""
    module = f"{PREFIX}layers.0.mlp.down_proj"
    own = module if f"{module}.weight_scale" in draft else int4_module(draft)
    raw = draft[f"{own}.weight_scale"]
    values = raw.view(np.float32) if raw.dtype == "F32" else float32(raw.view(np.uint16))
    data = values * 16 if raw.dtype == "F32" else bf16(values * 16)
    raw.data = bytearray(data.tobytes())
    return own


def step_ulp(draft: Draft, source: Draft) -> str:
    """The lowest bit of one step."""
    module = int4_module(draft)
    draft[f"{module}.weight_scale"].data[4] ^= 1
    return module


def scale_ulp(draft: Draft, source: Draft) -> str:
    """The lowest bit of one scale."""
    draft[f"{UP}.weight_scale"].data[4] ^= 1
    return UP


def level_by_one(draft: Draft, source: Draft) -> str:
    """One level one too low."""
    module = int4_module(draft)
    levels = levels_of(draft, module)
    row, column = np.argwhere(levels > 0)[0]
    levels[row, column] -= 1
    repack(draft, module, pack(levels))
    return module


def code_by_one(draft: Draft, source: Draft) -> str:
    """One code one too low."""
    data = np.frombuffer(draft[f"{UP}.weight"].data, np.uint8)
    data[np.argmax((data > 8) & (data < 0x70))] -= 1
    return UP


def _regroup(draft: Draft, factor: int, most: int) -> str:
    """Scale the levels of the first group that allows it, and its step the other way."""
    module = int4_module(draft)
    levels = levels_of(draft, module)
    groups = levels.reshape(-1, GROUP)
    peaks = np.abs(groups).max(axis=1)
    steps = draft[f"{module}.weight_scale"].view(np.uint16).reshape(-1)
    at = np.argmax((peaks > 0) & (peaks <= most) & (steps < 0x8000))
    assert 0 < peaks[at] <= most
    groups[at] *= factor
    steps[at] = bf16(float32(steps[at : at + 1]) / factor)[0]
    repack(draft, module, pack(levels))
    return module


def finer_grid(draft: Draft, source: Draft) -> str:
    """A group on half its step, all levels doubled: the same values."""
    return _regroup(draft, 2, 3)


def needless_sign(draft: Draft, source: Draft) -> str:
    """A group on its negated step, all levels negated: the same values."""
    return _regroup(draft, -1, 7)


def _refill(draft: Draft, source: Draft, module: str, values: NDArray[np.float32]) -> None:
    """Store other values in the scheme of a module, by its rule."""
    if f"{module}.weight_packed" in draft:
        old = levels_of(draft, module)
        repack(draft, module, pack(np.random.default_rng(5).permutation(old.reshape(-1)).reshape(old.shape)))
        return
    raw = draft[f"{module}.weight"]
    peak = np.abs(values).max(axis=1, keepdims=True)
    scales = np.where(peak == 0, 1, peak / np.float32(CODE_MAX[raw.dtype])).astype(np.float32)
    quotient = np.clip(values / scales, -CODE_MAX[raw.dtype], CODE_MAX[raw.dtype])
    codes = np.rint(quotient).astype(np.int8) if raw.dtype == "I8" else quotient.astype(FLOAT8[raw.dtype])
    raw.data = bytearray(codes.tobytes())
    draft[f"{module}.weight_scale"].data = bytearray(scales.tobytes())


def other_weights(draft: Draft, source: Draft) -> str:
    """The weights of another source: right shapes and rules, wrong values."""
    module = UP if f"{UP}.weight_scale" in draft else int4_module(draft)
    rng = np.random.default_rng(5)
    values = source_values(source, module)
    _refill(draft, source, module, float32(bf16(rng.normal(size=values.shape) * values.std())))
    return module


def other_norms(draft: Draft, source: Draft) -> str:
    """The norm of another source."""
    name = f"{PREFIX}norm.weight"
    draft[name].data = bytearray(bf16(np.full(draft[name].shape, 3.0)).tobytes())
    return name
