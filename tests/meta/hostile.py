"""The smallest checkpoint, byte by byte, for tests that make it hurt. Only `test_hostile` and its links import it."""

import json
from pathlib import Path
from typing import Any

WEIGHTS = "model.safetensors"


def raw_file(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file of that header, or one that claims another length."""
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def tensor(**changes: Any) -> bytes:
    """A header of one tensor of four bytes."""
    record = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]} | changes
    return json.dumps({"a": record}).encode()


def one_tensor(root: Path) -> Path:
    """Write a checkpoint of one tensor."""
    root.mkdir()
    (root / "config.json").write_text("{}")
    (root / WEIGHTS).write_bytes(raw_file(tensor(), b"\0" * 4))
    return root
