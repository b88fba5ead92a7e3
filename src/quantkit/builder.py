"""What a worker does with one block: read, encode or take over, write, journal; and what came of all of them.

It joins source, encoders, donor and output for `convert`, which decides what is built and when it is published.
"""

from collections.abc import Sequence

from quantkit.blocks import NO_TALLY, Array, Block, Workspace, cut, digest, raw_bytes, refuse_off_grid
from quantkit.checkpoint import Checkpoint
from quantkit.donor import Donor
from quantkit.errors import OutputNotUsable
from quantkit.grid import Tally
from quantkit.journal import Done
from quantkit.output import Output
from quantkit.plan import Plan
from quantkit.provenance import TensorRecord, tensor_record


class Builder:
    """One build under way: what a worker does with one block."""

    def __init__(self, source: Checkpoint, plan: Plan, output: Output, donor: Donor | None = None) -> None:
        self.source, self.plan, self.output, self.donor = source, plan, output, donor
        self.blocks = tuple(cut(plan.decisions))
        self.done: dict[int, Done] = {}
        self.reused: set[int] = set()

    def workspace(self) -> Workspace:
        """Buffers for one worker."""
        return Workspace(max(block.size_bytes for block in self.blocks))

    def carry_out(self, space: Workspace, block: Block) -> None:
        """Read, encode and write one block, unless the journal vouches for it."""
        known = self.output.journal.done.get(block.number)
        if known is not None and self._on_disk(space, block) == known.stored:
            self.done[block.number] = known
            self.reused.add(block.number)
            return
        read, arrays, tally = self.encode(space, block)
        self._write(block, arrays)
        stored = read if block.decision.scheme is None else digest(*arrays)
        self._check_published(space, block, stored)
        done = Done(read, stored, tuple(tally))
        self.output.journal.add(block.number, done)
        self.done[block.number] = done

    def encode(self, space: Workspace, block: Block) -> tuple[str, list[Array], Tally]:
        """Hash of the source bytes, arrays to be stored, and findings."""
        decision, raw = block.decision, space.source(block)
        self.source.pread_into(decision.tensor.name, block.start * block.row_bytes, raw)
        read = digest(raw)
        if decision.scheme is None:
            return read, [raw], NO_TALLY
        if self.donor is not None and self.donor.gives(decision):
            room = space.room(block)
            self.donor.read(block, room)
            return read, room, NO_TALLY
        arrays, tally = space.encode(block, decision.scheme)
        refuse_off_grid(block, tally)
        return read, arrays, tally

    def _write(self, block: Block, arrays: Sequence[Array]) -> None:
        for module in block.decision.stored:
            for stored, array in zip(module, arrays, strict=False):
                file = self.output.file_of(stored)
                if not file.read_only:
                    file.write_rows(stored, block.start, raw_bytes(array))

    def _check_published(self, space: Workspace, block: Block, expected: str) -> None:
        """Raise where a file that has its final name holds other bytes than these, which are not written there."""
        files = [self.output.file_of(stored) for module in block.decision.stored for stored in module]
        whole = [file.path for file in files if file.whole]
        if whole and self._on_disk(space, block) != expected:
            hint = "it was changed after it was published: delete the folder and build again"
            raise OutputNotUsable(f"bytes of {whole[0]}", got="others than the source gives", hint=hint)

    def _on_disk(self, space: Workspace, block: Block) -> str:
        """Hash of what is stored for a block; empty where the modules that store it differ, or a file ends."""
        hashes = set()
        for module in block.decision.stored:
            room = space.room(block)
            for stored, array in zip(module, room, strict=False):
                if not self.output.file_of(stored).read_rows(stored, block.start, raw_bytes(array)):
                    return ""
            hashes.add(digest(*room))
        return hashes.pop() if len(hashes) == 1 else ""

    def records(self) -> list[TensorRecord]:
        """One record a tensor, once every block is done."""
        by_tensor: dict[str, list[Done]] = {}
        for block in self.blocks:
            by_tensor.setdefault(block.decision.tensor.name, []).append(self.done[block.number])
        records = [tensor_record(d, by_tensor[d.tensor.name]) for d in self.plan.decisions]
        donor = self.donor
        return [donor.vouch(r) if donor and donor.gives(r.decision) else r for r in records]
