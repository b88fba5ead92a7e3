"""What is compared byte for byte: copied tensors, side files, and what the index and shards say of themselves.

Reads both checkpoints by pread, in blocks. Only `verify` imports it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from quantkit.as_found import Module
from quantkit.checkpoint import INDEX, Checkpoint
from quantkit.findings import Finding, each
from quantkit.verify_values import in_order

BLOCK_BYTES = 1 << 20
# Made anew by a build: the model card and the record of where it came from. No loader reads either.
WRITTEN_BY_BUILDS = frozenset({"README.md", "quantkit.json"})
HIDDEN = "."  # what tools keep for themselves, as .gitattributes and .cache: no loader reads it
# What an engine reads beside the weights; others write these anew, in words of their own.
READ_BY_ENGINES = ("tokenizer", "chat_template", "generation_config")


def _same_bytes(
    source: Checkpoint, built: Checkpoint, item: tuple[str, str, int, int]
) -> tuple[str, int, int]:
    """(name, bytes that differ, offset of the first one) of one block."""
    name, origin, start, stop = item
    ours, theirs = bytearray(stop - start), bytearray(stop - start)
    source.pread_into(origin, start, ours)
    built.pread_into(name, start, theirs)
    if ours == theirs:
        return name, 0, 0
    wrong = [at for at, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other]
    return name, len(wrong), start + wrong[0]


def judge_copied(
    source: Checkpoint, built: Checkpoint, names: Sequence[tuple[str, str]]
) -> Iterator[Finding]:
    """One finding for each tensor, named as in the build and as in the source, that is not the source's own."""

    def blocks() -> Iterator[tuple[str, str, int, int]]:
        for name, origin in names:
            size = built.entries[name].size_bytes
            yield from ((name, origin, at, min(at + BLOCK_BYTES, size)) for at in range(0, size, BLOCK_BYTES))

    wrong: dict[str, tuple[int, int]] = {}
    for name, count, first in in_order(lambda item: _same_bytes(source, built, item), blocks()):
        if count:
            known, at = wrong.get(name, (0, first))
            wrong[name] = (known + count, at)
    for name, (count, at) in wrong.items():
        yield Finding("copied_differs", name, f"another byte at offset {at}", count=count)


def _read(path: Path, at: int) -> bytes:
    with path.open("rb") as file:
        file.seek(at)
        return file.read(BLOCK_BYTES)


def _same_file(one: Path, other: Path) -> bool:
    size = one.stat().st_size
    if size != other.stat().st_size:
        return False
    return all(_read(one, at) == _read(other, at) for at in range(0, size, BLOCK_BYTES))


def judge_side_files(source: Checkpoint, built: Checkpoint, foreign: bool) -> Iterator[Finding]:
    """Tokenizer, chat template, generation_config and whatever else lies beside the weights."""
    theirs = {path.name: path for path in built.side_files()}
    for path in source.side_files():
        if path.name in WRITTEN_BY_BUILDS or (foreign and not path.name.startswith(READ_BY_ENGINES)):
            continue
        if path.name not in theirs:
            yield Finding("side_file_missing", path.name)
        elif not foreign and not _same_file(path, theirs[path.name]):
            yield Finding("side_file_differs", path.name)
    if not foreign:
        known = WRITTEN_BY_BUILDS.union(source.beside())
        strange = [name for name in built.beside() if name not in known and not name.startswith(HIDDEN)]
        yield from each("side_file_unexpected", strange)


def judge_weight_shapes(built: Checkpoint, modules: Sequence[Module]) -> Iterator[Finding]:
    """Whether each weight_shape holds the shape of its weight."""
    for module in modules:
        if module.scheme is not None and module.scheme.packed:
            stored = built.rows(module.tensor("weight_shape"), 0, 2).tolist()
            if stored != list(module.source.shape):
                yield Finding(
                    "weight_shape_differs", module.name, str(stored), str(list(module.source.shape))
                )


def judge_shards(built: Checkpoint, foreign: bool) -> Iterator[Finding]:
    """The index's total, each shard's metadata, and files of weights that no index names."""
    total = sum(entry.size_bytes for entry in built.entries.values())
    if built.index is not None and not foreign:
        metadata = built.index.get("metadata")
        declared = metadata.get("total_size") if isinstance(metadata, dict) else None
        if declared != total:
            yield Finding("index_size_differs", INDEX, repr(declared)[:80], f"{total}")
    for name, metadata in built.metadata.items():
        wanted = metadata if foreign else {}
        if metadata != wanted | {"format": "pt"}:
            yield Finding(
                "metadata_differs", name, repr(metadata)[:80], "format pt" if foreign else "format pt alone"
            )
    yield from each("stray_weights", built.stray_weights())
