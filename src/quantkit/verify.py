"""The judge: reopens what was written, decodes it by the reference, compares all of it, and reports.

Joins the parts (as_found, verify_config, verify_fields, verify_files, verify_values) and shares no code with
the writers. `cli` and the suites call `verify`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from quantkit import foreign
from quantkit.as_found import (
    CHECKPOINT_PREFIX,
    ENGINE_PREFIX,
    AsFound,
    Layout,
    Module,
    as_found,
    compare_layout,
    has_engine_names,
    under_source_names,
)
from quantkit.checkpoint import Checkpoint
from quantkit.diagnose import explain
from quantkit.errors import TensorSetMismatch
from quantkit.findings import Finding
from quantkit.left_dense import judge_left_dense
from quantkit.metrics import SERVED, Measure, difference, errors, figures, total
from quantkit.model import Inventory, Role, inventory
from quantkit.unknown_rules import refuse_folded, refuse_unexplained, refuse_unknown
from quantkit.verify_config import judge_quantization
from quantkit.verify_fields import judge_fields, judge_tie
from quantkit.verify_files import judge_copied, judge_shards, judge_side_files, judge_weight_shapes
from quantkit.verify_values import Verdict, as_findings, judge_modules, over_bounds

SCHEMA_VERSION = 1
MAX_EXPLAINED = 32  # modules whose cause is looked for; one cause mostly spoils them all
SERVED_AS = (
    "int4 steps cast to bfloat16; E4M3FN as stored on CPU and CUDA, and on gfx94x reinterpreted as E4M3FNUZ "
    "with a doubled scale, the same values; E4M3FNUZ value-cast to E4M3FN first, on every device"
)


@dataclass(frozen=True)
class Judged:
    """A quantized module and what was measured of it."""

    module: Module
    measure: Measure
    rules: foreign.Rules


@dataclass(frozen=True)
class Report:
    """The verdict on a build.

    Attributes
    ----------
    problems
        Empty for a good build.
    judged
        Quantized modules whose values could be compared.
    copied, copied_identical
        Tensors compared byte for byte, and those that are the source's own.
    size_bytes
        Bytes of all tensors of the build.
    others
        Whether it was judged as a build that others made.
    """

    source: Path
    built: Path
    found: AsFound
    layout: Layout
    others: bool
    problems: tuple[Finding, ...]
    judged: tuple[Judged, ...]
    copied: int
    copied_identical: int
    size_bytes: int

    @property
    def good(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.problems

    def measure(self, role: Role, kind: str | None = None) -> Measure:
        """All modules of a role, or those of one projection kind."""
        chosen = (j for j in self.judged if j.module.source.role is role)
        return total(j.measure for j in chosen if kind is None or j.module.source.kind == kind)

    def _section(self, role: Role) -> dict[str, Any]:
        names = dict.fromkeys(j.module.source.kind for j in self.judged if j.module.source.role is role)
        kinds = {name: self.measure(role, name) for name in names}
        whole = self.measure(role)
        served = {name: errors(measure, SERVED) for name, measure in kinds.items()}
        return {
            **figures(whole),
            "kinds": {name: figures(measure) for name, measure in kinds.items()},
            "as_served": errors(whole, SERVED) | {"kinds": served},
            "served_minus_stored": difference(whole),
        }

    def rules(self) -> dict[str, Any]:
        """For another's build: the rule that made the scales of each scheme, and the share it explains."""
        found: dict[str, Any] = {}
        for scheme in dict.fromkeys(j.module.scheme for j in self.judged if self.others and j.module.scheme):
            chosen = [j.rules for j in self.judged if j.module.scheme == scheme]
            rules = reduce(foreign.Rules.merged, chosen)
            found[scheme.name] = {
                "rule": rules.recognized,
                "scales": rules.scales,
                "explained": dict(rules.explained),
            }
        return found

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of ``quantkit verify --json``: linears at the top, tables beside them."""
        return {
            "schema_version": SCHEMA_VERSION,
            "source": str(self.source),
            "built": str(self.built),
            "build": self.found.format.name,
            "foreign": self.others,
            "good": self.good,
            "size_bytes": self.size_bytes,
            "copied": self.copied,
            "copied_identical": self.copied_identical,
            "missing": list(self.layout.missing),
            "unexpected": list(self.layout.unexpected),
            "served_as": SERVED_AS,
            **self._section(Role.LINEAR),
            "tables": self._section(Role.TABLE),
            "rules": self.rules(),
            "problems": [problem.to_dict() for problem in self.problems],
        }


def _check_source(implied: Inventory, source: Checkpoint) -> None:
    """The source must hold what its config implies, or nothing can be held against it."""
    for tensor in implied.tensors:
        entry = source.entries.get(tensor.name)
        if entry is None:
            raise TensorSetMismatch(f"tensor {tensor.name}", got="none in the source", expected="it there")
        if entry.shape != tensor.shape:
            raise TensorSetMismatch(
                f"shape of {tensor.name} in the source", got=list(entry.shape), expected=list(tensor.shape)
            )
        if tensor.role is not Role.OTHER and entry.dtype != "BF16":
            raise TensorSetMismatch(f"dtype of {tensor.name} in the source", got=entry.dtype, expected="BF16")


def verify(source: Path | str, built: Path | str, *, foreign: bool = False) -> Report:
    """Compare a build with its source, whole, and judge it.

    ``quantkit.json`` and ``README.md`` in it are notes of how it was made, and are not judged: no loader reads them.

    Parameters
    ----------
    source
        The checkpoint it was made from.
    built
        The build.
    foreign
        Whether others made it, by other rules for scales: values are judged by bounds only.

    Raises
    ------
    QuantkitError
        Where either cannot be read at all, or others stored weights by a rule that is not known; a fault in a
        build that can be read is a finding.
    """
    with Checkpoint.open(source) as original, Checkpoint.open(built) as build:
        return _verify(original, build, foreign)


def _verify(source: Checkpoint, built: Checkpoint, others: bool) -> Report:
    implied = inventory(source.config)
    _check_source(implied, source)
    renamed = others and has_engine_names(built.entries)
    if renamed:
        built.entries = under_source_names(implied, built.entries)
    found = as_found(implied, built.entries, others)
    if others:
        refuse_unknown(found, implied, built.entries)
    layout = compare_layout(found, implied, built.entries, source.entries, others)
    problems = [] if found.known or others else [Finding("unknown_build", _combination(found))]
    problems += layout.findings
    problems += judge_quantization(built.config, found, others)
    problems += judge_tie(built.config, found, others)
    problems += [] if others else judge_fields(built.config, source.config)
    problems += judge_shards(built, others)
    problems += judge_side_files(source, built, others)
    problems += judge_weight_shapes(built, layout.sound)
    problems += [] if others else judge_left_dense(source, found)
    copied_wrong = list(judge_copied(source, built, layout.copied))
    judged, faulty = [], []
    for module, verdict in judge_modules(source, built, layout.sound, others=others):
        judged.append(Judged(module, verdict.measure, verdict.rules))
        findings = _value_findings(built, module, verdict, others)
        problems += findings
        if findings:
            faulty.append((module, verdict.faults[0].row if verdict.faults else 0))
    problems += copied_wrong
    if others:
        modules = [j.module for j in judged]
        refuse_folded(source, built, modules, copied_wrong)
        refuse_unexplained(modules, problems)
    problems += _causes(source, built, implied, faulty)
    return Report(
        source=source.root,
        built=built.root,
        found=found,
        layout=layout,
        others=others,
        problems=tuple(_as_stored(problem) if renamed else problem for problem in problems),
        judged=tuple(judged),
        copied=len(layout.copied),
        copied_identical=len(layout.copied) - len(copied_wrong),
        size_bytes=sum(entry.size_bytes for entry in built.entries.values()),
    )


def _value_findings(built: Checkpoint, module: Module, verdict: Verdict, others: bool) -> list[Finding]:
    found = list(as_findings(module, verdict))
    if others:
        scale_dtype = built.entries[module.tensor("weight_scale")].dtype
        return found + list(foreign.over_bounds(module, verdict.measure, verdict.rules, scale_dtype))
    return found + list(over_bounds(module, verdict.measure))


def _causes(
    source: Checkpoint, built: Checkpoint, implied: Inventory, faulty: Sequence[tuple[Module, int]]
) -> list[Finding]:
    """What explains the first faulty modules, where one of the known causes does."""
    tensors = implied.of(Role.LINEAR) + implied.of(Role.TABLE)
    causes = (explain(source, built, module, row, tensors) for module, row in faulty[:MAX_EXPLAINED])
    return [cause for cause in causes if cause is not None]


def _as_stored(problem: Finding) -> Finding:
    """A finding of a tensor under the name that its own file gives it."""
    return replace(problem, where=problem.where.replace(CHECKPOINT_PREFIX, ENGINE_PREFIX))


def _combination(found: AsFound) -> str:
    linears = found.format.linears
    tables: Sequence[str] = sorted(found.format.tables)
    return f"linears {linears.name if linears else 'bf16'}, int4 tables {', '.join(tables) or 'none'}"
