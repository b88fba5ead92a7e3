"""quantkit.json: where a build came from, beside the config and outside the keys that an engine validates.

Pure: the same source and options give the same bytes, so neither time, path nor number of workers is in it.
`convert` writes it; a build on top of another reads it to know that both have one source.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import xxhash

from quantkit.errors import BadHeader
from quantkit.formats import GROUP_SIZE, INT4
from quantkit.journal import Done
from quantkit.model import Role
from quantkit.plan import Decision, Plan

PROVENANCE = "quantkit.json"
SCHEMA_VERSION = 1


COUNTS = ("groups", "groups_off_grid", "negative_steps", "values_bit_identical")


@dataclass(frozen=True)
class Findings:
    """Groups packed to int4; those off the grid, those with a negative step, values that come back bit by bit."""

    groups: int = 0
    groups_off_grid: int = 0
    negative_steps: int = 0
    values_bit_identical: int = 0

    def __add__(self, other: "Findings") -> "Findings":
        return Findings(*(getattr(self, count) + getattr(other, count) for count in COUNTS))


@dataclass(frozen=True)
class TensorRecord:
    """What was read and written for one tensor: hashes of both, and findings."""

    decision: Decision
    source: str
    stored: str
    found: Findings


def join_hashes(hashes: Sequence[str]) -> str:
    """Hash of a tensor from the hashes of its blocks, in order."""
    return xxhash.xxh3_128("".join(hashes).encode()).hexdigest()


def tensor_record(decision: Decision, blocks: Sequence[Done]) -> TensorRecord:
    """Join the blocks of one tensor, in order."""
    groups = decision.tensor.values // GROUP_SIZE if decision.scheme == INT4 else 0
    counts = [sum(column) for column in zip(*(done.tally for done in blocks), strict=True)]
    source, stored = (
        join_hashes([done.source for done in blocks]),
        join_hashes([done.stored for done in blocks]),
    )
    return TensorRecord(decision, source, stored, Findings(groups, *counts))


def source_hash(hashes: Mapping[Decision, str]) -> str:
    """Hash over name, dtype, shape and bytes of every text tensor of the source."""
    state = hashlib.sha256()
    for decision, found in sorted(hashes.items(), key=lambda item: item[0].tensor.name):
        state.update(f"{decision.tensor.name} {decision.dtype} {decision.tensor.shape} {found}\n".encode())
    return state.hexdigest()


def identity(plan: Plan, config: Mapping[str, Any], off_grid: str) -> dict[str, Any]:
    """What can be said of a build before a weight is read."""
    source = {
        "model_type": config.get("model_type"),
        "architectures": config.get("architectures"),
        "tensors": len(plan.decisions),
        "tensors_left_out": len(plan.dropped),
    }
    if "quantization_config" in config:
        source["quantization_config"] = config["quantization_config"]
    return {
        "schema_version": SCHEMA_VERSION,
        "quantkit": version("quantkit"),
        "format": plan.format.name,
        "off_grid": off_grid,
        "kept": sorted(plan.kept),
        "source": source,
    }


def provenance(facts: Mapping[str, Any], records: Sequence[TensorRecord]) -> dict[str, Any]:
    """The content of ``quantkit.json``: identity, hash of the source, and what was found on the grid."""
    packed = [record for record in records if record.decision.scheme == INT4]
    linears = [record.found for record in packed if record.decision.tensor.role is Role.LINEAR]
    tables = [record for record in packed if record.decision.tensor.role is Role.TABLE]
    found = source_hash({record.decision: record.source for record in records})
    return {
        **facts,
        "source": {**facts["source"], "hash": found},
        "linears": asdict(sum(linears, Findings())),
        "tables": {
            record.decision.tensor.module: {
                "source": record.source,
                "stored": record.stored,
                **asdict(record.found),
            }
            for record in tables
        },
    }


def check_recorded(recorded: Mapping[str, Any], where: str) -> None:
    """Raise BadHeader where the content of a ``quantkit.json`` lacks what is read of it."""
    tables = recorded.get("tables")
    parts = [recorded.get("linears"), *(tables.values() if isinstance(tables, dict) else [None])]
    counted = all(isinstance(part, dict) and all(type(part.get(c)) is int for c in COUNTS) for part in parts)
    if not counted or not isinstance(recorded.get("source"), dict):
        raise BadHeader(where, got="another content", expected="what quantkit build wrote there")


def findings(recorded: Mapping[str, Any]) -> Findings:
    """All groups of a build, from the content of its ``quantkit.json``."""
    parts = [recorded["linears"], *recorded["tables"].values()]
    return sum((Findings(*(part[count] for count in COUNTS)) for part in parts), Findings())
