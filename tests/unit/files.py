"""Folders of checkpoints: built, compared whole as plain bytes, and spoilt in one place. Only unit tests import it."""

from pathlib import Path

from quantkit.checkpoint import Checkpoint
from quantkit.convert import Summary, build
from quantkit.formats import format_named


def made(source: Path, out: Path, name: str, **options: object) -> Summary:
    """A build, by the format's name."""
    return build(source, out, format_named(name), **options)  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file's name and bytes."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def down_proj(layer: int) -> str:
    """Name of one layer's down_proj."""
    return f"model.language_model.layers.{layer}.mlp.down_proj.weight"


def spoil(folder: Path, tensor: str, offset: int, data: bytes = b"\xa7\x5a") -> None:
    """Overwrite bytes of one tensor."""
    with Checkpoint.open(folder) as checkpoint:
        entry = checkpoint.entries[tensor]
    with entry.file.open("r+b") as file:
        file.seek(entry.begin + offset)
        file.write(data)
