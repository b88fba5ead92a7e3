"""Other people's builds: values measured and bounded, and the rule recognized that made their scales.

Published checkpoints divide a row's or group's absmax by 127, 127.5, 448, 7, 7.5 or 8 and round the scale to
bfloat16. Numpy and the decoders of `reference`; only `verify` and its parts import it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantkit.as_found import Module
from quantkit.bounds import FP32_SLACK, GRID_TOLERANCE, NARROW_SCALE
from quantkit.checkpoint import Checkpoint
from quantkit.findings import Finding
from quantkit.formats import Scheme
from quantkit.metrics import Measure
from quantkit.reference import (
    ANY_VALUES,
    CODEBOOKS,
    bf16_to_float32,
    decode_int4,
    float32_to_bf16,
    scales_to_float32,
)

Floats = NDArray[np.float32]
LATTICE = "lattice"
SIGNED = "signed absmax / -8"  # GGUF's Q4_0: the value of largest magnitude is level -8, whatever its sign
DIVISORS = {  # dtype of the codes -> rule -> divisor of the absmax
    "I8": {"absmax / 127": 127.0, "absmax / 127.5": 127.5, "absmax / 128": 128.0},
    "F8_E4M3": {"absmax / 448": 448.0},
    "F8_E4M3FNUZ": {"absmax / 240": 240.0, "absmax / 224": 224.0},
    "I32": {"absmax / 7": 7.0, "absmax / 7.5": 7.5, "absmax / 8": 8.0, SIGNED: 8.0},
}
HALF_STEP = {"I8": 0.5, "I32": 0.5, "F8_E4M3": 16.0, "F8_E4M3FNUZ": 8.0}  # between the largest codes
SCALE_ROUNDING = {"BF16": NARROW_SCALE, "F16": 2.0**-11, "F32": FP32_SLACK}
RECOGNIZED = 0.99  # share of rows or groups that one rule must explain


@dataclass(frozen=True)
class Rules:
    """How many scales of a block or build each rule explains, and how far values lie off.

    Attributes
    ----------
    scales
        Scales of rows or groups that hold any value.
    explained
        Rule -> number of scales.
    worst
        Largest |error| / absmax of the row or group that shares the scale.
    """

    scales: int
    explained: Mapping[str, int]
    worst: float

    def merged(self, other: "Rules") -> "Rules":
        """Both together."""
        explained = Counter(self.explained) + Counter(other.explained)
        worst = float(np.maximum(self.worst, other.worst))  # NaN stays NaN
        return Rules(self.scales + other.scales, explained, worst)

    @property
    def recognized(self) -> str | None:
        """The rule that explains nearly all scales; the lattice first, since its peaks satisfy others too."""
        if not self.scales:
            return None
        for rule, count in sorted(self.explained.items(), key=lambda item: (item[0] != LATTICE, -item[1])):
            if count >= RECOGNIZED * self.scales:
                return rule
        return None


NO_RULES = Rules(0, {}, 0.0)


def _per_group(values: Floats, groups: int) -> Floats:
    return values.reshape(len(values), groups, -1)


def _decode(codes: NDArray[np.generic], scales: Floats, dtype: str, served: bool) -> Floats:
    """Values ``[rows, in]``; `scales` ``[rows, groups]``."""
    if dtype == "I32":
        return decode_int4(codes.view(np.int32), float32_to_bf16(scales) if served else scales)
    table = CODEBOOKS[dtype].served if served and dtype != "I8" else ANY_VALUES[dtype]
    return table[codes.view(np.uint8)] * scales


def _sums(values: Floats, decoded: Floats) -> tuple[list[float], int]:
    with np.errstate(all="ignore"):
        error = np.abs(decoded - values, dtype=np.float64)
        peak = np.abs(values).max(axis=1)
        rounded = float32_to_bf16(decoded)
        relative = np.abs(rounded - values) / np.abs(values)
        held = peak > 0
        over = (error.max(axis=1)[held] / peak[held]).max(initial=0.0)
        element = np.where(rounded == values, 0.0, relative).max(initial=0.0)
        energies = [float(np.square(error).sum()), float(np.square(values, dtype=np.float64).sum())]
    return [*energies, float(over), float(element)], int((rounded == values).sum())


def _is_rounded(exact: Floats, stored: Floats, dtype: str) -> NDArray[np.bool_]:
    """Whether stored scales are the exact ones in their dtype; in some order of float32 operations."""
    rounded = exact
    if dtype != "F32":
        rounded = float32_to_bf16(exact) if dtype == "BF16" else exact.astype(np.float16).astype(np.float32)
    return np.asarray(np.abs(stored - rounded) <= rounded * np.float32(FP32_SLACK))


def _rules(values: Floats, decoded: Floats, scales: Floats, dtype: str, scale_dtype: str) -> Rules:
    groups = _per_group(values, scales.shape[1])
    errors = np.abs(_per_group(decoded, scales.shape[1]) - groups).max(axis=2)
    peaks = np.abs(groups).max(axis=2)
    held = peaks > 0
    at_peak = np.where(scales > 0, groups.min(axis=2) == -peaks, groups.max(axis=2) == peaks)
    fits = {
        rule: _is_rounded(peaks / np.float32(divisor), np.abs(scales), scale_dtype)
        & (at_peak if rule == SIGNED else scales > 0)
        for rule, divisor in DIVISORS[dtype].items()
    }
    if dtype == "I32":
        fits[LATTICE] = errors <= peaks * GRID_TOLERANCE
    over = np.where(held, errors / peaks, np.where(errors == 0, 0.0, np.inf))
    explained = {rule: int(fit[held].sum()) for rule, fit in fits.items()}
    return Rules(int(held.sum()), explained, float(over.max(initial=0.0)))


def judge_block(
    source: Checkpoint, built: Checkpoint, module: Module, start: int, stop: int
) -> tuple[Measure, dict[str, tuple[int, int]], Rules]:
    """Measure rows ``start:stop``: figures, unusable scales and codes (count, first row), and scale rules."""
    assert module.scheme is not None
    dtype = module.scheme.code_dtype
    stored = module.tensor("weight_packed" if module.scheme.packed else "weight")
    scale_name = module.tensor("weight_scale")
    scale_dtype = built.entries[scale_name].dtype
    values = bf16_to_float32(source.rows(module.source.name, start, stop))
    codes = built.rows(stored, start, stop)
    scales = scales_to_float32(built.rows(scale_name, start, stop), scale_dtype).reshape(stop - start, -1)
    with np.errstate(all="ignore"):
        decoded, served = (_decode(codes, scales, dtype, view) for view in (False, True))
        sums, identical = _sums(values, decoded)
        rules = _rules(values, decoded, scales, dtype, scale_dtype)
    measure = Measure(
        values=values.size,
        bit_identical=identical,
        groups=scales.size if module.scheme.packed else 0,
        negative_steps=int((scales < 0).sum()),
        sums=np.array([sums, _sums(values, served)[0]]),
    )
    if module.scheme.packed:
        measure.groups_off_grid = rules.scales - rules.explained[LATTICE]
    return measure, _unusable(scales, codes, module.scheme, start), rules


def _unusable(
    scales: Floats, codes: NDArray[np.generic], scheme: Scheme, start: int
) -> dict[str, tuple[int, int]]:
    bad = ~np.isfinite(scales) | ((scales == 0) if scheme.packed else (scales <= 0))
    tests = {"step_unusable" if scheme.packed else "scale_unusable": bad.any(axis=1)}
    if not scheme.packed:
        tests["nan_code"] = np.isnan(ANY_VALUES[scheme.code_dtype][codes.view(np.uint8)]).any(axis=1)
    return {
        kind: (int(rows.sum()), start + int(np.argmax(rows))) for kind, rows in tests.items() if rows.any()
    }


def bound_over_absmax(scheme: Scheme, rules: Rules, scale_dtype: str) -> float:
    """Largest |error| / absmax that the recognized rule explains; twice the widest known where none is.

    Half a step between the largest codes, or what is clipped above them, in units of the rule's divisor; and the
    rounding of the scale, which moves every value by that share of itself.
    """
    rounding = SCALE_ROUNDING[scale_dtype] + FP32_SLACK
    if rules.recognized == LATTICE:
        return GRID_TOLERANCE + rounding
    half, divisors = HALF_STEP[scheme.code_dtype], DIVISORS[scheme.code_dtype]
    shares = {rule: max(half, d - scheme.code_max) / d for rule, d in divisors.items()}
    share = 2 * max(shares.values()) if rules.recognized is None else shares[rules.recognized]
    return share * (1 + rounding) + rounding


def over_bounds(module: Module, measure: Measure, rules: Rules, scale_dtype: str) -> Iterator[Finding]:
    """Errors that no rule of others explains; NaN counts as beyond."""
    assert module.scheme is not None
    if not measure.relative_rms() < 1:
        yield Finding(
            "decoder_fault", module.name, f"relative RMS error {measure.relative_rms():.4g}", "below 1"
        )
    bound = bound_over_absmax(module.scheme, rules, scale_dtype)
    if not rules.worst <= bound:
        got = f"{rules.worst:.6g} of the absmax that shares a scale"
        expected = f"at most {bound:.6g} by {rules.recognized or 'no known rule'}"
        yield Finding("error_over_bound", module.name, got, expected)
