"""Miniatures of wrong files: truncated, overlapping, misindexed, absent or stray, one named defect each.

Each works on a saved folder. `faults_checkpoint` lists them; nothing else imports this file.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.meta.spoil_tensors import NORM

INDEX = "model.safetensors.index.json"


def no_side_file(folder: Path) -> str:
    """No chat template."""
    (folder / "chat_template.jinja").unlink()
    return "chat_template.jinja"


def other_side_file(folder: Path) -> str:
    """A tokenizer of one byte more."""
    path = folder / "tokenizer.json"
    path.write_bytes(path.read_bytes() + b"\n")
    return "tokenizer.json"


def extra_side_file(folder: Path) -> str:
    """A chat template that the source has not, which loaders prefer to the one in the tokenizer's config."""
    (folder / "chat_template.json").write_text("{}")
    return "chat_template.json"


def extra_folder(folder: Path) -> str:
    """A folder of templates that the source has not."""
    (folder / "additional_chat_templates").mkdir()
    return "additional_chat_templates"


def _first_shard(folder: Path) -> Path:
    return min(folder.glob("*.safetensors"))


def truncated(folder: Path) -> str:
    """The last byte of a shard is not there."""
    path = _first_shard(folder)
    path.write_bytes(path.read_bytes()[:-1])
    return path.name


def header_too_large(folder: Path) -> str:
    """A header longer than the file."""
    path = _first_shard(folder)
    data = path.read_bytes()
    path.write_bytes((len(data) + 1).to_bytes(8, "little") + data[8:])
    return path.name


def edit_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite a header, leaving the data as it is."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[start:])


def overlapping(folder: Path) -> str:
    """A tensor that begins inside the one before."""
    path = _first_shard(folder)

    def change(header: dict[str, Any]) -> None:
        second = sorted(
            (r for n, r in header.items() if n != "__metadata__"), key=lambda r: r["data_offsets"]
        )[1]
        second["data_offsets"] = [offset - 2 for offset in second["data_offsets"]]

    edit_header(path, change)
    return path.name


def out_of_range(folder: Path) -> str:
    """A tensor that ends behind the file."""
    path = _first_shard(folder)

    def change(header: dict[str, Any]) -> None:
        last = max((r for n, r in header.items() if n != "__metadata__"), key=lambda r: r["data_offsets"])
        last["data_offsets"] = [offset + 2 for offset in last["data_offsets"]]

    edit_header(path, change)
    return path.name


def write_index(folder: Path, change: Callable[[dict[str, str]], None]) -> None:
    """Write an index of all shards, spoiled by `change`."""
    weight_map: dict[str, str] = {}
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        weight_map |= {name: path.name for name in header if name != "__metadata__"}
    change(weight_map)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}))


def index_names_absent_shard(folder: Path) -> str:
    """A tensor said to lie in a file that is not there."""
    write_index(folder, lambda weight_map: weight_map.update({NORM: "model-00009-of-00009.safetensors"}))
    return "model-00009-of-00009.safetensors"


def index_names_other_shard(folder: Path) -> str:
    """A tensor said to lie in a shard that does not hold it."""
    (folder / "spare.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    write_index(folder, lambda weight_map: weight_map.update({NORM: "spare.safetensors"}))
    return NORM


def index_lacks_tensor(folder: Path) -> str:
    """A tensor in a shard that the index does not know: an engine would not load it."""

    def forget(weight_map: dict[str, str]) -> None:
        del weight_map[NORM]

    write_index(folder, forget)
    return NORM


def index_total(folder: Path) -> str:
    """An index whose total is wrong."""
    write_index(folder, lambda weight_map: None)
    return INDEX


def stray_weights(folder: Path) -> str:
    """Weights of another kind beside the build's."""
    (folder / "pytorch_model.bin").write_bytes(b"never read")
    return "pytorch_model.bin"


def no_metadata(folder: Path) -> str:
    """A shard that does not say whose tensors it holds."""
    path = _first_shard(folder)
    edit_header(path, lambda header: header.pop("__metadata__", None))
    return path.name
