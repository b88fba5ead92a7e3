"""Build a checkpoint in another weight format. The only place that joins source, plan, blocks and output.

Streams by blocks of rows on plain threads; whatever stops it, a second call takes up where it ended.
`cli` and the suites call `build`; nothing below imports this.
"""

import hashlib
import json
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit.builder import Builder
from quantkit.checkpoint import Checkpoint
from quantkit.config import build_config
from quantkit.donor import Donor
from quantkit.errors import NotEligible, OffGrid
from quantkit.finished import check_hash, read_finished
from quantkit.formats import Format
from quantkit.journal import JOURNAL
from quantkit.output import Output, prepare_folder
from quantkit.plan import Plan, make_plan
from quantkit.provenance import PROVENANCE, Findings, findings, identity, provenance
from quantkit.scan import hash_source, off_grid_linears
from quantkit.work import for_each
from quantkit.writer import json_bytes

DEFAULT_WORKERS = 2
REFUSE, KEEP = OFF_GRID_CHOICES = ("refuse", "keep")


@dataclass(frozen=True)
class Summary:
    """What a build did.

    Attributes
    ----------
    modules, copied
        Modules stored as codes, and tensors copied byte for byte.
    found
        What was found about the groups packed to int4.
    kept
        Linears left bf16 because they are off the grid, or fused with one that is.
    blocks, blocks_reused
        Blocks in all, and those that an earlier call had already written.
    """

    format: str
    out: Path
    modules: int
    copied: int
    file_bytes: int
    found: Findings
    kept: tuple[str, ...]
    blocks: int
    blocks_reused: int


def _key(source: Checkpoint, plan: Plan, facts: dict[str, Any], on: Path | None) -> str:
    """Stands for all that decides the bytes of a build, as far as can be told without reading weights."""
    files = sorted({entry.file for entry in source.entries.values()})
    key = {
        "facts": facts,
        "on": on is not None,
        "files": [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files],
        "shards": [hashlib.sha256(shard.header).hexdigest() for shard in plan.shards],
    }
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


def _summary(plan: Plan, out: Path, recorded: dict[str, Any], blocks: int = 0, reused: int = 0) -> Summary:
    coded = [decision for decision in plan.decisions if decision.scheme]
    return Summary(
        format=plan.format.name,
        out=out,
        modules=sum(len(decision.modules) for decision in coded),
        copied=len(plan.decisions) - len(coded),
        file_bytes=plan.file_bytes,
        found=findings(recorded),
        kept=tuple(sorted(plan.kept)),
        blocks=blocks,
        blocks_reused=reused,
    )


def build(
    source: Path,
    out: Path,
    fmt: Format,
    *,
    on: Path | None = None,
    workers: int = DEFAULT_WORKERS,
    off_grid: str = REFUSE,
) -> Summary:
    """Write a build of a checkpoint; called again after a kill, finish it; called again after that, do nothing.

    Parameters
    ----------
    source
        Folder of a bfloat16 Gemma 4 checkpoint, multimodal or text-only.
    out
        Folder that is new, empty, or holds an unfinished or finished build of the same source and options.
    fmt
        What to make.
    on
        A finished build of the same source, whose int4 tables are taken over byte for byte.
    workers
        Threads.
    off_grid
        ``refuse`` raises where a linear would go to int4 and is off the grid; ``keep`` leaves it bf16 and ignored.

    Raises
    ------
    QuantkitError
        One of its leaves; nothing half-written then stands under a final name.
    """
    with ExitStack() as stack:
        reader = stack.enter_context(Checkpoint.open(source))
        plan = make_plan(reader.config, reader.entries, fmt)
        if off_grid == KEEP:
            kept = off_grid_linears(reader, plan, workers)
            plan = make_plan(reader.config, reader.entries, fmt, kept)
        config = json_bytes(build_config(plan, reader.config))
        facts = identity(plan, reader.config, off_grid)
        side_files = [path for path in reader.side_files() if path.name not in (JOURNAL, PROVENANCE)]
        donor = stack.enter_context(closing(Donor(on, plan))) if on else None
        if prepare_folder(reader.root, out, plan.file_bytes):
            recorded = read_finished(out, plan.shards, config, facts)
            check_hash(out, recorded, hash_source(reader, plan, workers))
            return _summary(plan, out, recorded)
        output = stack.enter_context(Output(out, plan.shards, _key(reader, plan, facts, on)))
        builder = Builder(reader, plan, output, donor)
        recorded = _carry_out(builder, facts, workers)
        output.publish(side_files, json_bytes(recorded), config)
        return _summary(plan, out, recorded, len(builder.blocks), len(builder.reused))


def _carry_out(builder: Builder, facts: dict[str, Any], workers: int) -> dict[str, Any]:
    """Write all weights under names that are not final; the content of quantkit.json is the result."""
    output = builder.output
    try:
        twins = builder.donor.twins(output.shards) if builder.donor else {}
        output.prepare(twins)
        for_each(builder.blocks, workers, builder.workspace, builder.carry_out)
        return provenance(facts, builder.records())
    except (OffGrid, NotEligible):
        output.discard()
        raise
