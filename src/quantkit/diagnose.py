"""Why values are wrong: other readings of the same bytes, tried on a sample of a module already found faulty.

It names causes and never clears a module. Numpy on a bounded sample, decoders of `reference`; only `verify` and
its parts import it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantkit.as_found import Module
from quantkit.checkpoint import Checkpoint
from quantkit.findings import Finding
from quantkit.formats import FP8, FP8FNUZ
from quantkit.model import Tensor
from quantkit.reference import ANY_VALUES, bf16_to_float32, decode_words, scales_to_float32

Floats = NDArray[np.float32]
SAMPLE_VALUES = 1 << 21
CLOSE = 0.2  # relative RMS error of a right reading: the coarsest format here has 0.03, min-max int4 0.1
ALIKE = 0.95  # mean |cosine| of groups in the right order; 32 values that are not alike have 0.14
UNLIKE = 0.3  # cosine of weights that have nothing to do with each other; two halves of noise have 0.01
ROWS_TRIED = 4
STEP_DIVISORS = (7.0, 7.5, 8.0)
STEP_SHARE = 0.95  # of all groups; on a lattice of mixed peaks at most half agree with any one divisor
OTHER_FLAVOUR = {FP8.code_dtype: FP8FNUZ.code_dtype, FP8FNUZ.code_dtype: FP8.code_dtype}


@dataclass(frozen=True)
class Sample:
    """Rows ``start:`` of a module: the source's values, the decoded ones, and the raw parts of the latter.

    Attributes
    ----------
    codes
        int4 levels, or 8-bit codes, ``[rows, in]``.
    scales
        Steps ``[rows, groups]``, or scales ``[rows, 1]``.
    whole
        Whether these are all rows.
    """

    module: Module
    start: int
    values: Floats
    codes: NDArray[np.int32]
    scales: Floats
    decoded: Floats
    whole: bool


def _take(source: Checkpoint, built: Checkpoint, module: Module, row: int) -> Sample:
    assert module.scheme is not None
    rows, width = module.source.shape
    count = min(rows, max(1, SAMPLE_VALUES // width))
    start = min(row, rows - count)
    values = bf16_to_float32(source.rows(module.source.name, start, start + count))
    name = module.tensor("weight_scale")
    scales = scales_to_float32(built.rows(name, start, start + count), built.entries[name].dtype)
    scales = scales.reshape(count, -1)
    if module.scheme.packed:
        codes = decode_words(built.rows(module.tensor("weight_packed"), start, start + count))
        decoded = codes.astype(np.float32) * np.repeat(scales, width // scales.shape[1], axis=1)
    else:
        codes = built.rows(module.tensor("weight"), start, start + count).view(np.uint8).astype(np.int32)
        decoded = ANY_VALUES[module.scheme.code_dtype][codes] * scales
    decoded = np.nan_to_num(decoded, nan=0.0, posinf=0.0, neginf=0.0)
    return Sample(module, start, values, codes, scales, decoded, count == rows)


def _error(decoded: Floats, values: Floats) -> float:
    signal = float(np.sum(np.square(values, dtype=np.float64)))
    return float(np.sqrt(np.sum(np.square(decoded - values, dtype=np.float64)) / signal)) if signal else 0.0


def _cosine(one: Floats, other: Floats) -> float:
    length = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float(np.vdot(one, other)) / length if length else 0.0


def _group_peaks(values: Floats, groups: int) -> Floats:
    peaks: Floats = np.abs(values.reshape(len(values), groups, -1)).max(axis=2)
    return peaks


def _likeness(levels: NDArray[np.int32], s: Sample) -> float:
    """Mean over groups of |cosine| of levels with the source: blind to the steps, their signs included."""
    ours = levels.reshape(*s.scales.shape, -1).astype(np.float32)
    theirs = s.values.reshape(ours.shape)
    lengths = np.linalg.norm(ours, axis=2) * np.linalg.norm(theirs, axis=2)
    held = lengths > 0
    dots = np.abs((ours * theirs).sum(axis=2))[held]
    return float((dots / lengths[held]).mean()) if held.any() else 0.0


def _nibble_sign(levels: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.where(levels < 0, levels + 8, levels - 8)


def _nibble_order(levels: NDArray[np.int32]) -> NDArray[np.int32]:
    return levels.reshape(len(levels), -1, 8)[:, :, ::-1].reshape(levels.shape)


def _transposed(levels: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.ascontiguousarray(levels.reshape(levels.shape[1], levels.shape[0]).T)


READINGS: dict[str, Callable[[NDArray[np.int32]], NDArray[np.int32]]] = {
    "nibble_sign": _nibble_sign,
    "nibble_order": _nibble_order,
    "packed_transposed": _transposed,
}


def _int4_reading(s: Sample) -> Finding | None:
    if _likeness(s.codes, s) >= ALIKE:
        return _step_rule(s)
    for kind, reading in READINGS.items():
        if (s.whole or kind != "packed_transposed") and _likeness(reading(s.codes), s) >= ALIKE:
            return Finding(kind, s.module.name)
    return None


def _step_rule(s: Sample) -> Finding | None:
    peaks = _group_peaks(s.values, s.scales.shape[1])
    held = peaks > 0
    for divisor in STEP_DIVISORS:
        alike = np.abs(np.abs(s.scales) * divisor - peaks)[held] <= peaks[held] * 2.0**-7
        if alike.size and alike.mean() >= STEP_SHARE:
            return Finding(
                "step_rule", s.module.name, f"absmax / {divisor:g} in {alike.mean():.0%} of the groups"
            )
    return None


def _flavour(s: Sample) -> Finding | None:
    assert s.module.scheme is not None
    other = OTHER_FLAVOUR.get(s.module.scheme.code_dtype)
    if other is None or _error(s.decoded, s.values) < CLOSE:
        return None
    decoded = np.nan_to_num(ANY_VALUES[other][s.codes]) * s.scales
    if _error(decoded, s.values) >= CLOSE:
        return None
    return Finding(
        "fp8_flavour", s.module.name, f"bytes of {other} under the tag {s.module.scheme.code_dtype}"
    )


def _needed_scales(s: Sample) -> Floats:
    """The scale that the rule gives for each row or group, from the source and, for int4, the stored levels."""
    assert s.module.scheme is not None
    if not s.module.scheme.packed:
        peaks = np.abs(s.values).max(axis=1, keepdims=True)
        return np.where(peaks == 0, np.float32(1), peaks / np.float32(s.module.scheme.code_max)).astype(
            np.float32
        )
    levels = s.codes.reshape(*s.scales.shape, -1).astype(np.float64)
    values = s.values.reshape(levels.shape)
    square = (levels * levels).sum(axis=2)
    fit = np.where(square == 0, 1.0, (levels * values).sum(axis=2) / np.where(square == 0, 1.0, square))
    return fit.astype(np.float32)


def _scales_permuted(s: Sample) -> Finding | None:
    needed = _needed_scales(s)
    near = np.float32(2.0**-7 if s.module.scheme and s.module.scheme.packed else 2.0**-20)
    off = np.abs(needed - s.scales) > np.abs(needed) * near
    if not 2 <= off.sum() <= off.size:
        return None
    wanted, stored = np.sort(needed[off]), np.sort(s.scales[off])
    if (np.abs(wanted - stored) <= np.abs(wanted) * near).all():
        return Finding("scales_permuted", s.module.name, f"{int(off.sum())} in places of others")
    return None


def _row_likeness(s: Sample, row: int) -> Floats:
    """Mean |cosine| of a stored row's levels with each row of the source, group by group: blind to the steps."""
    ours = s.codes[row].reshape(s.scales.shape[1], -1).astype(np.float32)
    theirs = s.values.reshape(len(s.values), *ours.shape)
    lengths = np.linalg.norm(theirs, axis=2) * np.linalg.norm(ours, axis=1)
    held = lengths > 0
    cosines = np.abs((theirs * ours).sum(axis=2)) / np.where(held, lengths, 1)
    found: Floats = (cosines * held).sum(axis=1) / np.maximum(held.sum(axis=1), 1)
    return found


def _row_held(s: Sample, row: int) -> int | None:
    """The source's row that a stored row holds, or None where it holds none of the sample."""
    assert s.module.scheme is not None
    if s.module.scheme.packed:
        likeness = _row_likeness(s, row)
        best = int(np.argmax(likeness))
        return best if likeness[best] >= ALIKE else None
    best = int(np.argmin(np.linalg.norm(s.values - s.decoded[row], axis=1)))
    alike = np.any(s.values[best]) and _error(s.decoded[row], s.values[best]) < CLOSE
    return best if alike else None


def _rows_permuted(s: Sample) -> Finding | None:
    wrong = [r for r in range(len(s.values)) if _error(s.decoded[r], s.values[r]) >= CLOSE][:ROWS_TRIED]
    for row in wrong:
        best = _row_held(s, row)
        if best is not None and best != row:
            got = f"row {s.start + row} holds what row {s.start + best} should"
            return Finding("rows_permuted", s.module.name, got)
    return None


def _other_weights(s: Sample, source: Checkpoint, tensors: Sequence[Tensor]) -> Finding | None:
    if _error(s.decoded, s.values) < CLOSE:
        return None
    stop = s.start + len(s.values)
    for tensor in tensors:
        if tensor.shape == s.module.source.shape and tensor.name != s.module.source.name:
            theirs = bf16_to_float32(source.rows(tensor.name, s.start, stop))
            if _error(s.decoded, theirs) < CLOSE:
                return Finding("other_module", s.module.name, f"those of {tensor.module}")
    if abs(_cosine(s.decoded, s.values)) < UNLIKE:
        return Finding("other_source", s.module.name, f"cosine {_cosine(s.decoded, s.values):.3f}", "near 1")
    return None


def is_folded(source: Checkpoint, built: Checkpoint, module: Module, norm: str) -> bool:
    """Whether columns of a module were multiplied by what the norm before it was divided by."""
    ours, theirs = source.entries[norm], built.entries[norm]
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return False
    before, after = (
        scales_to_float32(each.rows(norm, 0, ours.shape[0]), ours.dtype) for each in (source, built)
    )
    with np.errstate(all="ignore"):
        sample = _take(source, built, module, 0)
        folded = _error(sample.decoded * after, sample.values * before)
        return 2 * folded < _error(sample.decoded, sample.values)


def explain(
    source: Checkpoint, built: Checkpoint, module: Module, row: int, tensors: Sequence[Tensor]
) -> Finding | None:
    """The cause of a faulty module's values, where one of the known ones explains them.

    Parameters
    ----------
    row
        The first faulty row.
    tensors
        Tensors of the source whose weights may have been stored instead.
    """
    assert module.scheme is not None
    reading = _int4_reading if module.scheme.packed else _flavour
    with np.errstate(all="ignore"):  # spoiled scales overflow, and that is the finding
        sample = _take(source, built, module, row)
        for test in (reading, _rows_permuted, _scales_permuted):
            found = test(sample)
            if found is not None:
                return found
        return _other_weights(sample, source, tensors)
