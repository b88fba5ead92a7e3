"""A toy source on the 4-bit grid, and any of its builds as a draft that can be spoiled and saved again.

Reads and writes safetensors by itself, byte by byte, so that a miniature can hold what no library would write.
Only tests in `meta` import it.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from quantkit.model import Inventory, Role, inventory

GROUP = 32
SIDE_FILES = {
    "tokenizer.json": '{"model": {"type": "BPE"}}',
    "chat_template.jinja": "{{ messages }}",
    "generation_config.json": '{"eos_token_id": 1}',
}
TEXT_CONFIG = {
    "model_type": "gemma4_text",
    "architectures": ["Gemma4ForCausalLM"],
    "vocab_size": 96,
    "vocab_size_per_layer_input": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "hidden_size_per_layer_input": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "global_head_dim": 64,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 512,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}


@dataclass
class Raw:
    """A tensor as bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytearray

    def view(self, dtype: Any) -> NDArray[Any]:
        """The bytes as a writable array of its shape."""
        return np.frombuffer(self.data, dtype=dtype).reshape(self.shape)


@dataclass
class Draft:
    """A checkpoint in memory: file name -> tensors, and the JSON files beside them."""

    files: dict[str, dict[str, Raw]]
    config: dict[str, Any]
    index: dict[str, Any] | None = None
    metadata: dict[str, Any] = field(default_factory=lambda: {"format": "pt"})
    side: dict[str, bytes] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Raw:
        return next(tensors[name] for tensors in self.files.values() if name in tensors)

    def __contains__(self, name: str) -> bool:
        return any(name in tensors for tensors in self.files.values())

    def names(self) -> Iterator[str]:
        """Names of all tensors, in the order of the files."""
        return (name for tensors in self.files.values() for name in tensors)

    def put(self, name: str, raw: Raw) -> None:
        """Replace a tensor, or add one to the last file."""
        home = next((tensors for tensors in self.files.values() if name in tensors), None)
        (home if home is not None else list(self.files.values())[-1])[name] = raw

    def drop(self, name: str) -> Raw:
        """Take a tensor out."""
        return next(tensors.pop(name) for tensors in self.files.values() if name in tensors)

    def save(self, folder: Path) -> Path:
        """Write it; the index, where there is one, is made to agree."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, tensors in self.files.items():
            (folder / name).write_bytes(to_bytes(tensors, self.metadata))
        if self.index is not None:
            size = sum(len(raw.data) for tensors in self.files.values() for raw in tensors.values())
            weight_map = {name: file for file, tensors in self.files.items() for name in tensors}
            self.index = {"metadata": {"total_size": size}, "weight_map": weight_map}
            (folder / "model.safetensors.index.json").write_text(json.dumps(self.index))
        (folder / "config.json").write_text(json.dumps(self.config))
        for name, data in self.side.items():
            (folder / name).write_bytes(data)
        return folder


def to_bytes(tensors: dict[str, Raw], metadata: dict[str, Any]) -> bytes:
    """A safetensors file."""
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name, raw in tensors.items():
        end = at + len(raw.data)
        header[name] = {"dtype": raw.dtype, "shape": list(raw.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(bytes(raw.data) for raw in tensors.values())


def read_draft(folder: Path) -> Draft:
    """Read a checkpoint that is known to be sound."""
    files: dict[str, dict[str, Raw]] = {}
    side: dict[str, bytes] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".safetensors":
            data = path.read_bytes()
            start = 8 + int.from_bytes(data[:8], "little")
            header = json.loads(data[8:start])
            header.pop("__metadata__", None)
            files[path.name] = {
                name: Raw(r["dtype"], tuple(r["shape"]), bytearray(data[start:][slice(*r["data_offsets"])]))
                for name, r in header.items()
            }
        elif path.suffix != ".json" or path.name not in ("config.json", "model.safetensors.index.json"):
            side[path.name] = path.read_bytes()
    index = folder / "model.safetensors.index.json"
    config = json.loads((folder / "config.json").read_text())
    return Draft(files, config, json.loads(index.read_text()) if index.exists() else None, side=side)


def bf16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """bfloat16 bit patterns of values."""
    bits: NDArray[np.uint16] = np.asarray(values, dtype=np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    return bits


def lattice(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.uint16]:
    """Values on the grid: peaks at every level, some steps that must be negative, a zero group and a zero row."""
    groups = shape[0] * shape[1] // GROUP
    peak = rng.integers(3, 9, size=(groups, 1))
    levels = np.rint(rng.normal(size=(groups, GROUP)) * peak / 2.5)
    levels = np.clip(levels, -peak, np.minimum(peak, 7))
    levels[:, 0], levels[:, 1] = np.where(rng.random(groups) < 0.5, -peak[:, 0], levels[:, 0]), 1
    step = np.exp(rng.normal(size=(groups, 1)) * 0.4 - 4).astype(np.float16).astype(np.float64)
    values = (levels * step * np.where(rng.random((groups, 1)) < 0.2, -1, 1)).reshape(shape)
    values[shape[0] // 2] = 0
    values[0, -GROUP:] = 0
    return bf16(values)


def make_toy(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Write a toy source; `changes` go to its config."""
    rng = np.random.default_rng(seed)
    config = TEXT_CONFIG | changes
    implied: Inventory = inventory(config)
    tensors: dict[str, Raw] = {}
    for tensor in implied.tensors:
        if tensor.role is Role.OTHER:
            bits = bf16(1 + 0.1 * rng.normal(size=tensor.shape))
        else:
            bits = lattice(rng, (tensor.shape[0], tensor.shape[1]))
        tensors[tensor.name] = Raw("BF16", tensor.shape, bytearray(bits.tobytes()))
    side = {name: text.encode() for name, text in SIDE_FILES.items()}
    return Draft({"model.safetensors": tensors}, dict(config), side=side).save(folder)


def fresh_copy(build: Path, folder: Path) -> Path:
    """A copy to be spoiled."""
    shutil.copytree(build, folder)
    return folder
