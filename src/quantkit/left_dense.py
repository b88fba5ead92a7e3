"""Linears that a build left bfloat16: allowed only in int4, and only where the source is off the lattice.

Judges the source's values by a search of its own, from the specification of the q4_0 grid; shares nothing
with the writers'. Only `verify` imports it.
"""

from collections.abc import Iterator

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quantkit.as_found import AsFound, Module
from quantkit.bounds import GRID_TOLERANCE
from quantkit.checkpoint import Checkpoint
from quantkit.findings import Finding
from quantkit.formats import GROUP_SIZE, Scheme
from quantkit.model import Role
from quantkit.reference import bf16_bits, bf16_value
from quantkit.verify_values import block_rows

# Layers of an engine that are fused and must share a scheme: where one is off the lattice, all stay dense.
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@njit(cache=True, nogil=True, error_model="numpy")
def _lattice_error(values, step, negative):  # type: ignore[no-untyped-def]
    """Largest distance from step x level, for levels -8..7, or -7..8 where the step is negative."""
    low, high = (-7.0, 8.0) if negative else (-8.0, 7.0)
    worst = 0.0
    for i in range(GROUP_SIZE):
        level = min(max(np.rint(values[i] / step), low), high)
        worst = max(worst, abs(values[i] - step * level))
    return worst


@njit(cache=True, nogil=True, error_model="numpy")
def _fits(values, peak):  # type: ignore[no-untyped-def]
    """Whether some lattice with the peak at level 1..8 holds the group, its step rounded to bfloat16."""
    for m in range(1, 9):
        moment, square = 0.0, 0.0
        for i in range(GROUP_SIZE):
            level = np.rint(values[i] * m / peak)
            moment += level * values[i]
            square += level * level
        middle = np.int64(bf16_bits(np.float32(moment / square)))
        for beside in (0, 1, -1):
            step = np.float64(bf16_value(np.uint16(middle + beside)))
            for negative in (False, True):
                if step > 0 and _lattice_error(values, step, negative) <= peak * GRID_TOLERANCE:
                    return True
    return False


@njit(cache=True, nogil=True, error_model="numpy")
def _count_off(bits):  # type: ignore[no-untyped-def]
    values, off = np.empty(GROUP_SIZE, np.float64), 0
    for r in range(bits.shape[0]):
        for start in range(0, bits.shape[1], GROUP_SIZE):
            peak = 0.0
            for i in range(GROUP_SIZE):
                values[i] = np.float64(bf16_value(bits[r, start + i]))
                peak = max(peak, abs(values[i]))
            if peak > 0 and not _fits(values, peak):
                off += 1
    return off


def groups_off_lattice(bits: NDArray[np.uint16]) -> int:
    """How many groups of 32 of a block ``[rows, in]`` of bfloat16 patterns no lattice holds."""
    assert bits.dtype == np.uint16
    assert bits.shape[1] % GROUP_SIZE == 0
    return int(_count_off(bits))


def _is_off(source: Checkpoint, module: Module) -> bool:
    rows, width = module.source.shape
    step = block_rows(width)
    blocks = (source.rows(module.source.name, at, min(at + step, rows)) for at in range(0, rows, step))
    return any(groups_off_lattice(block) for block in blocks)


def _partners(module: Module) -> tuple[str, ...]:
    """Names of the modules that an engine fuses with one, itself included."""
    stem, _, last = module.name.rpartition(".")
    group = next((group for group in FUSED if last in group), (last,))
    return tuple(f"{stem}.{part}" for part in group)


def judge_left_dense(source: Checkpoint, found: AsFound) -> Iterator[Finding]:
    """A finding for each dense linear that the build had no reason to leave so."""
    scheme: Scheme | None = found.format.linears
    dense = [m for m in found.of(Role.LINEAR) if m.present and m.scheme is None] if scheme else []
    may_be_off = scheme is not None and scheme.packed
    off = {m.name for m in dense if may_be_off and m.source.shape[1] % GROUP_SIZE == 0 and _is_off(source, m)}
    for module in dense:
        if not off & set(_partners(module)):
            reason = "every group is on the lattice" if may_be_off else "this scheme holds any value"
            yield Finding(
                "left_dense", module.name, "bf16", f"{scheme.name if scheme else ''}, since {reason}"
            )
