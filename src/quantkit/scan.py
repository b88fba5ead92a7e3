"""Passes over the weights that write nothing: which linears are off the grid, and the hash of a source.

The first is needed before a plan that keeps such linears bf16, since they change the size of what is written; the
second to know a finished build again. `convert` uses both.
"""

from quantkit.blocks import Block, Workspace, cut, digest, refuse_off_grid
from quantkit.checkpoint import Checkpoint
from quantkit.model import Role
from quantkit.plan import Plan
from quantkit.provenance import join_hashes, source_hash
from quantkit.work import for_each


def off_grid_linears(source: Checkpoint, plan: Plan, workers: int) -> frozenset[str]:
    """Modules that the plan packs to int4 and that have a group off the grid.

    Raises
    ------
    OffGrid
        For a table: those are packed on the grid or not at all.
    """
    packed = [d for d in plan.decisions if d.scheme is not None and d.scheme.packed]
    blocks = tuple(cut(packed))
    found: set[str] = set()

    def look(space: Workspace, block: Block) -> None:
        decision = block.decision
        assert decision.scheme is not None
        source.pread_into(decision.tensor.name, block.start * block.row_bytes, space.source(block))
        _, tally = space.encode(block, decision.scheme)
        if decision.tensor.role is Role.TABLE:
            refuse_off_grid(block, tally)
        elif tally.off_grid:
            found.add(decision.tensor.module)

    largest = max((block.size_bytes for block in blocks), default=0)
    for_each(blocks, workers, lambda: Workspace(largest), look)
    return frozenset(found)


def hash_source(source: Checkpoint, plan: Plan, workers: int) -> str:
    """Hash of every text tensor of the source, as a build's provenance has it."""
    blocks = tuple(cut(plan.decisions))
    hashes = [""] * len(blocks)

    def look(space: Workspace, block: Block) -> None:
        raw = space.source(block)
        source.pread_into(block.decision.tensor.name, block.start * block.row_bytes, raw)
        hashes[block.number] = digest(raw)

    largest = max(block.size_bytes for block in blocks)
    for_each(blocks, workers, lambda: Workspace(largest), look)
    by_tensor: dict[str, list[str]] = {}
    for block in blocks:
        by_tensor.setdefault(block.decision.tensor.name, []).append(hashes[block.number])
    return source_hash({d: join_hashes(by_tensor[d.tensor.name]) for d in plan.decisions})
