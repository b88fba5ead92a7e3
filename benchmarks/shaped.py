"""Checkpoints with real names and shapes and random weights on the 4-bit grid, at any scale.

The config decides the tensors; the values are step x level in bfloat16 with an fp16 step a group, every peak level
and both signs of step, from a seed. Written by rows, so that a 9 GB checkpoint takes a few MB of memory.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.kernels import bf16_nearest, compiled, f32, i32, u32, u64
from quantkit.model import Role, Tensor, inventory
from quantkit.writer import ShardFile, Stored, index_bytes, json_bytes, make_shards

CONFIGS = Path(__file__).parents[1] / "tests" / "configs"
ROWS_AT_ONCE_BYTES = 1 << 22
SIDE_FILES = {
    "tokenizer.json": b"{}\n",
    "chat_template.jinja": b"{{ messages }}\n",
    "generation_config.json": b"{}\n",
}


def real_config(size: str) -> dict[str, Any]:
    """The published config of a size: E2B, E4B, 12B or 31B."""
    found: dict[str, Any] = json.loads((CONFIGS / f"gemma-4-{size}.json").read_text())
    return found


def shrunk(config: Mapping[str, Any], layers: int | None = None) -> dict[str, Any]:
    """The same layer pattern, names and ratios at widths of a few dozen; the first `layers` only, if given."""
    text = dict(config["text_config"])
    few = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "head_dim": 32,
        "global_head_dim": 64,
        "vocab_size": 96,
    }
    text |= few | {"vocab_size_per_layer_input": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    if text.get("num_global_key_value_heads"):
        text["num_global_key_value_heads"] = 1
    if text.get("hidden_size_per_layer_input"):
        text["hidden_size_per_layer_input"] = 32
    return fewer_layers({**config, "text_config": text}, layers or text["num_hidden_layers"])


def fewer_layers(config: Mapping[str, Any], layers: int, vocabulary: int | None = None) -> dict[str, Any]:
    """The same widths with fewer layers, the same share of them KV-shared, and a smaller vocabulary if given."""
    text = dict(config["text_config"])
    shared = round(text.get("num_kv_shared_layers", 0) * layers / text["num_hidden_layers"])
    text |= {"num_hidden_layers": layers, "layer_types": text["layer_types"][:layers]}
    text["num_kv_shared_layers"] = shared
    if vocabulary:
        text |= {"vocab_size": vocabulary, "vocab_size_per_layer_input": vocabulary}
    return {**config, "text_config": text}


@compiled
def _mixed(state: np.uint64) -> np.uint64:
    """splitmix64: a well-mixed number of a counter, so that every value depends on its place alone."""
    z = u64(state * u64(0x9E3779B97F4A7C15))
    z = u64((z ^ (z >> u64(30))) * u64(0xBF58476D1CE4E5B9))
    z = u64((z ^ (z >> u64(27))) * u64(0x94D049BB133111EB))
    return u64(z ^ (z >> u64(31)))


@compiled
def _fill_group(group: NDArray[np.uint16], levels: NDArray[np.int8], step: np.float32) -> None:
    for i in range(32):
        group[i] = bf16_nearest(f32(f32(levels[i]) * step))


@compiled
def _draw_levels(levels: NDArray[np.int8], seed: np.uint64, peak: np.int32) -> None:
    """Bell-shaped levels of -peak..peak with the peak present once at least."""
    for i in range(32):
        bits = _mixed(u64(seed + u64(i)))
        three = (
            i32(bits & u64(0xFFFF))
            + i32((bits >> u64(16)) & u64(0xFFFF))
            + i32((bits >> u64(32)) & u64(0xFFFF))
        )
        level = i32((three - i32(98304)) * (2 * peak + 1) // i32(196608))
        levels[i] = np.int8(max(min(level, peak), -peak))
    place = _mixed(u64(seed + u64(32))) & u64(31)
    levels[place] = np.int8(peak)


@compiled
def _fill(rows: NDArray[np.uint16], seed: np.uint64) -> None:
    levels = np.empty(32, np.int8)
    for g in range(rows.shape[0]):
        at = _mixed(u64(seed + u64(g) * u64(64)))
        peak = i32(at & u64(7)) + i32(1) if (at >> u64(8)) & u64(3) == u64(0) else i32(8)
        _draw_levels(levels, at, peak)
        step = f32(u32(at >> u64(40)) & u32(1023)) + f32(1024.0)  # an fp16 significand
        step = f32(step * f32(2.0**-18))
        if peak < 8 and (at >> u64(16)) & u64(1):
            step = f32(-step)
        if peak == 8:  # -8 exists, +8 does not: the step takes the sign, as GGUF's does
            for i in range(32):
                levels[i] = np.int8(-8) if levels[i] == 8 else levels[i]
            step = f32(-step) if (at >> u64(17)) & u64(1) else step
        _fill_group(rows[g], levels, step)


def grid_rows(rows: int, width: int, seed: int) -> NDArray[np.uint16]:
    """bfloat16 patterns [rows, width] on the 4-bit grid; width is a multiple of 32."""
    found = np.empty((rows * width // 32, 32), np.uint16)
    _fill(found, np.uint64(seed))
    return found.reshape(rows, width)


def _small(tensor: Tensor) -> NDArray[np.uint16]:
    """Norm weights and scalars around 1."""
    count = np.arange(tensor.values, dtype=np.float32)
    return ((1.0 + 0.25 * np.sin(count)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _write(file: ShardFile, stored: Stored, tensor: Tensor | None, seed: int) -> None:
    if tensor is None or tensor.role is Role.OTHER:
        values = _small(tensor) if tensor else np.zeros(stored.size_bytes // 2, np.uint16)
        file.write_rows(stored, 0, values.view(np.uint8).data)
        return
    step = max(1, ROWS_AT_ONCE_BYTES // stored.row_bytes)
    for start in range(0, stored.rows, step):
        rows = min(step, stored.rows - start)
        values = grid_rows(rows, tensor.shape[1], seed + start * tensor.shape[1])
        file.write_rows(stored, start, values.reshape(-1).view(np.uint8).data)


def make_checkpoint(
    folder: Path, config: Mapping[str, Any], *, seed: int = 1, towers: int = 3, shard_bytes: int = 1 << 62
) -> Path:
    """Write a checkpoint that this config describes.

    Parameters
    ----------
    towers
        Tensors of a vision tower to add, which a text-only build leaves out.
    shard_bytes
        Largest shard; by default all in one file.
    """
    implied = inventory(config)
    tensors = {tensor.name: tensor for tensor in implied.tensors}
    stored = [Stored(tensor.name, "BF16", tensor.shape) for tensor in implied.tensors]
    prefix = "model.vision_tower.encoder.layers"
    stored += [Stored(f"{prefix}.{n}.self_attn.q_proj.weight", "BF16", (32, 32)) for n in range(towers)]
    numbers = {one.name: number for number, one in enumerate(stored)}
    shards = make_shards([stored], shard_bytes)
    folder.mkdir(parents=True, exist_ok=True)
    for shard in shards:
        with ShardFile(folder, shard) as file:
            file.prepare()
            for one in shard.tensors:
                _write(file, one, tensors.get(one.name), (seed << 40) + (numbers[one.name] << 48))
            file.publish()
    for name, data in SIDE_FILES.items():
        (folder / name).write_bytes(data)
    (folder / "model.safetensors.index.json").write_bytes(index_bytes(shards))
    (folder / "config.json").write_bytes(json_bytes(dict(config)))
    return folder
