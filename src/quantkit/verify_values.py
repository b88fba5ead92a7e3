"""Every stored value against the source's, in blocks of rows: decode, measure, judge.

Reads both checkpoints by pread on two threads; the unit of memory is a block. It decodes by `reference` and
its kernels alone. Only `verify` imports it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit import foreign, judge_groups, judge_rows
from quantkit.as_found import Module
from quantkit.bounds import INT4_PER_ELEMENT, OVER_ROW_ABSMAX, relative_rms_bound
from quantkit.checkpoint import Checkpoint
from quantkit.errors import TensorSetMismatch
from quantkit.findings import Finding
from quantkit.metrics import MAX_OVER_ROW, MAX_PER_ELEMENT, SIGNAL_ENERGY, STORED, Measure
from quantkit.reference import CODEBOOKS, bf16_to_float32

WORKERS = 2
BLOCK_VALUES = 1 << 19  # 1 MB of source
GROUP_KINDS = (
    "step_unusable",
    "off_grid",
    "level_not_nearest",
    "step_not_fitted",
    "grid_too_fine",
    "step_sign",
)
ROW_KINDS = ("scale_unusable", "nan_code", "code_not_nearest", "scale_not_rule")


@dataclass(frozen=True)
class Faults:
    """Faults of one kind in one block or tensor: how often, and where first."""

    kind: str
    count: int
    row: int
    column: int


@dataclass(frozen=True)
class Verdict:
    """What was found of a block, or of a whole module.

    Attributes
    ----------
    rules
        Of another's build: which rules explain its scales.
    """

    measure: Measure
    faults: tuple[Faults, ...]
    rules: foreign.Rules = foreign.NO_RULES


def block_rows(width: int) -> int:
    """Rows of a block of about BLOCK_VALUES values."""
    return max(1, BLOCK_VALUES // max(1, width))


def in_order(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """Results of a function over items, on all workers, in the order of the items."""
    pool = ThreadPoolExecutor(WORKERS)
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)


def _listed(kinds: Sequence[str], table: NDArray[np.int64], start: int) -> tuple[Faults, ...]:
    rows = zip(kinds, table.tolist(), strict=True)
    return tuple(Faults(kind, count, start + row, column) for kind, (count, row, column) in rows if count)


def judge_int4(source: Checkpoint, built: Checkpoint, module: Module, start: int, stop: int) -> Verdict:
    """Judge rows ``start:stop`` of a packed module."""
    bits = source.rows(module.source.name, start, stop)
    words = built.rows(module.tensor("weight_packed"), start, stop)
    steps = bf16_to_float32(built.rows(module.tensor("weight_scale"), start, stop))
    sums, counts, faults = judge_groups.judge_groups(bits, words, steps)
    measure = Measure(
        values=bits.size,
        bit_identical=int(counts[judge_groups.BIT_IDENTICAL]),
        groups=steps.size,
        groups_off_grid=int(counts[judge_groups.GROUPS_OFF]),
        negative_steps=int(counts[judge_groups.NEGATIVE_STEPS]),
        sums=np.stack(
            [sums, sums]
        ),  # steps are stored in the model's dtype: the loader's cast changes nothing
    )
    return Verdict(measure, _listed(GROUP_KINDS, faults, start))


def judge_8bit(source: Checkpoint, built: Checkpoint, module: Module, start: int, stop: int) -> Verdict:
    """Judge rows ``start:stop`` of a module with one scale an output row."""
    scheme = module.scheme
    assert scheme is not None
    bits = source.rows(module.source.name, start, stop)
    codes = built.rows(module.tensor("weight"), start, stop).view(np.uint8)
    scales = built.rows(module.tensor("weight_scale"), start, stop).reshape(-1)
    book = CODEBOOKS[scheme.code_dtype]
    sums, counts, faults = judge_rows.judge_rows(bits, codes, scales, scheme.code_max, book)
    measure = Measure(values=bits.size, bit_identical=int(counts[judge_rows.BIT_IDENTICAL]), sums=sums)
    return Verdict(measure, _listed(ROW_KINDS, faults, start))


def judge_foreign(source: Checkpoint, built: Checkpoint, module: Module, start: int, stop: int) -> Verdict:
    """Measure rows ``start:stop`` of a module that others made."""
    measure, unusable, rules = foreign.judge_block(source, built, module, start, stop)
    return Verdict(measure, tuple(Faults(kind, n, row, 0) for kind, (n, row) in unusable.items()), rules)


def _blocks(modules: Sequence[Module]) -> Iterator[tuple[Module, int, int]]:
    for module in modules:
        rows, width = module.source.shape
        step = block_rows(width)
        yield from ((module, start, min(start + step, rows)) for start in range(0, rows, step))


def _joined(blocks: Sequence[Verdict]) -> Verdict:
    measure, faults, rules = Measure(), dict[str, Faults](), foreign.NO_RULES
    for block in blocks:
        measure.add(block.measure)
        rules = rules.merged(block.rules)
        for fault in block.faults:
            known = faults.get(fault.kind, Faults(fault.kind, 0, fault.row, fault.column))
            faults[fault.kind] = Faults(fault.kind, known.count + fault.count, known.row, known.column)
    return Verdict(measure.close_tensor(), tuple(faults.values()), rules)


def as_findings(module: Module, verdict: Verdict) -> Iterator[Finding]:
    """One finding for each kind of fault in a module."""
    unit = "group" if module.scheme is not None and module.scheme.packed else "column"
    for fault in verdict.faults:
        at = f"first in row {fault.row}"
        if "scale" not in fault.kind:
            at += f", {unit} {fault.column}"
        yield Finding(fault.kind, module.name, at, count=fault.count)


def over_bounds(module: Module, measure: Measure) -> Iterator[Finding]:
    """Errors beyond the format's own; NaN counts as beyond.

    Raises
    ------
    TensorSetMismatch
        Where the source's own values cannot be measured against.
    """
    scheme = module.scheme
    assert scheme is not None
    if not np.isfinite(measure.sums[STORED, SIGNAL_ENERGY]):
        raise TensorSetMismatch(
            f"values of {module.source.name} in the source",
            got="infinity, NaN or a square beyond float32",
            expected="finite weights below 2^63",
        )
    rms, rms_bound = measure.relative_rms(), relative_rms_bound(scheme, module.source.shape[1])
    if not rms < 1:
        yield Finding("decoder_fault", module.name, f"relative RMS error {rms:.4g}", "below 1")
    if not rms <= rms_bound:
        yield Finding("error_over_bound", module.name, f"relative RMS {rms:.6g}", f"at most {rms_bound:.6g}")
    if scheme.packed:
        worst, bound, unit = measure.sums[STORED, MAX_PER_ELEMENT], INT4_PER_ELEMENT, "of a value"
    else:
        worst, bound = measure.sums[STORED, MAX_OVER_ROW], OVER_ROW_ABSMAX[scheme.code_dtype]
        unit = "of the row's absmax"
    if not worst <= bound:
        yield Finding("error_over_bound", module.name, f"{worst:.6g} {unit}", f"at most {bound:.6g}")


def judge_modules(
    source: Checkpoint, built: Checkpoint, modules: Sequence[Module], *, others: bool
) -> Iterator[tuple[Module, Verdict]]:
    """The verdict on every quantized module, in order; `others` judges by bounds alone."""

    def work(item: tuple[Module, int, int]) -> tuple[Module, Verdict]:
        module, start, stop = item
        ours = judge_int4 if module.scheme is not None and module.scheme.packed else judge_8bit
        return module, (judge_foreign if others else ours)(source, built, module, start, stop)

    collected: list[Verdict] = []
    for module, verdict in in_order(work, _blocks(modules)):
        collected.append(verdict)
        if sum(block.measure.values for block in collected) == module.source.values:
            yield module, _joined(collected)
            collected = []
