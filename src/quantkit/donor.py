"""The finished build that another is made on: its int4 tables are taken over byte for byte.

It proves that both have one source: the hash of each source table, and of the stored bytes, must be those that
the donor's provenance records. `convert` uses it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quantkit.blocks import Block
from quantkit.checkpoint import Checkpoint
from quantkit.errors import NotEligible
from quantkit.formats import INT4
from quantkit.header import read_json_object
from quantkit.model import Role
from quantkit.plan import Decision, Plan
from quantkit.provenance import COUNTS, PROVENANCE, Findings, TensorRecord, check_recorded
from quantkit.writer import Shard


class Donor:
    """An open build with int4 tables.

    Raises
    ------
    NotEligible
        Where it lacks a table that the plan packs, or its provenance.
    """

    def __init__(self, root: Path, plan: Plan) -> None:
        self.root = root
        path = root / PROVENANCE
        if not path.is_file():
            raise NotEligible(
                f"build {root}", expected=f"a {PROVENANCE} in it", hint="name a build made by quantkit"
            )
        recorded = read_json_object(path)
        check_recorded(recorded, str(path))
        self._tables: Mapping[str, Any] = recorded["tables"]
        self._taken = {
            decision.tensor.name: decision
            for decision in plan.decisions
            if decision.tensor.role is Role.TABLE and decision.scheme == INT4
        }
        if not self._taken:
            raise NotEligible(
                f"build {root}", got=f"format {plan.format.name}", expected="a format with int4 tables"
            )
        self.checkpoint = Checkpoint.open(root)
        try:
            for decision in self._taken.values():
                self._check(decision)
        except NotEligible:
            self.close()
            raise

    def _check(self, decision: Decision) -> None:
        recorded = self._tables.get(decision.tensor.module)
        for stored in (stored for module in decision.stored for stored in module):
            entry = self.checkpoint.entries.get(stored.name)
            if recorded is None or entry is None or entry.shape != stored.shape:
                got, expected = f"no int4 {stored.name} of that shape", f"{list(stored.shape)}"
                hint = "name a build of the same source that has this format's int4 tables"
                raise NotEligible(f"build {self.root}", got=got, expected=expected, hint=hint)

    def gives(self, decision: Decision) -> bool:
        """Whether this tensor's codes are taken over."""
        return decision.tensor.name in self._taken

    def read(self, block: Block, room: Sequence[Any]) -> None:
        """Fill arrays with the stored rows of a block."""
        for stored, array in zip(block.decision.stored[0], room, strict=False):
            self.checkpoint.pread_into(stored.name, block.start * stored.row_bytes, array)

    def twins(self, shards: Sequence[Shard]) -> dict[str, Path]:
        """Name of each shard of taken tables, which share none with others -> the donor's file with its first."""
        stored = {s.name for d in self._taken.values() for module in d.stored for s in module}
        firsts = {shard.name: shard.tensors[0].name for shard in shards}
        return {
            name: self.checkpoint.entries[first].file for name, first in firsts.items() if first in stored
        }

    def vouch(self, record: TensorRecord) -> TensorRecord:
        """The record with the donor's findings, once the hashes agree.

        Raises
        ------
        NotEligible
            Where the donor was made from another source, or its bytes have changed since.
        """
        recorded = self._tables[record.decision.tensor.module]
        for key, own in (("source", record.source), ("stored", record.stored)):
            if recorded.get(key) != own:
                what = f"{key} hash of {record.decision.tensor.name} in build {self.root}"
                hint = "build without --on" if key == "source" else "that build is damaged: make it again"
                raise NotEligible(what, got=recorded.get(key), expected=own, hint=hint)
        found = Findings(*(recorded[count] for count in COUNTS))
        return TensorRecord(record.decision, record.source, record.stored, found)

    def close(self) -> None:
        """Close the donor's files."""
        self.checkpoint.close()
