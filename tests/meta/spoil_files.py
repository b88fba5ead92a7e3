"""Miniatures of wrong structure: tensors, headers, index, config and side files, one named defect each.

A draft spoiler works before it is saved; a folder spoiler on the files. `faults` lists them; nothing else
imports this file.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.meta.spoil_values import PREFIX, TABLE, UP
from tests.meta.toy import Draft, Raw

KEY = f"{PREFIX}layers.0.self_attn.k_proj"
NORM = f"{PREFIX}layers.0.input_layernorm.weight"
INDEX = "model.safetensors.index.json"

FolderSpoiler = Callable[[Path], str]


def tensors_of(draft: Draft, module: str) -> list[str]:
    """Names of all tensors of a module."""
    return [name for name in draft.names() if name.startswith(f"{module}.weight")]


def missing(draft: Draft, source: Draft) -> str:
    """One norm is not there."""
    draft.drop(NORM)
    return NORM


def extra(draft: Draft, source: Draft) -> str:
    """One tensor too many, as the tower of a multimodal source would be."""
    name = "model.vision_tower.patch_embedder.input_proj.weight"
    draft.put(name, Raw("BF16", (2, 2), bytearray(8)))
    return name


def _dense(draft: Draft, source: Draft, module: str) -> None:
    for name in tensors_of(draft, module):
        draft.drop(name)
    draft.put(f"{module}.weight", source[f"{module}.weight"])


def left_dense(draft: Draft, source: Draft) -> str:
    """One linear bf16, and the config does not know."""
    _dense(draft, source, UP)
    return UP


def left_dense_ignored(draft: Draft, source: Draft) -> str:
    """One linear bf16 and ignored, though nothing keeps it from being quantized."""
    _dense(draft, source, UP)
    draft.config["quantization_config"]["ignore"].append(UP)
    return UP


def ignored(draft: Draft, source: Draft) -> str:
    """A quantized linear on the ignore list."""
    draft.config["quantization_config"]["ignore"].append(UP if f"{UP}.weight_scale" in draft else TABLE)
    return UP


def stored_twice(draft: Draft, source: Draft) -> str:
    """A packed module with its dense weight beside it."""
    module = next(module for module in (UP, TABLE) if f"{module}.weight_packed" in draft)
    draft.put(f"{module}.weight", source[f"{module}.weight"])
    return module


def packed_beside_rows(draft: Draft, source: Draft) -> str:
    """An 8-bit module with packed words beside its codes."""
    rows, width = draft[f"{UP}.weight"].shape
    draft.put(f"{UP}.weight_packed", Raw("I32", (rows, width // 8), bytearray(rows * width // 2)))
    return UP


def copied_byte(draft: Draft, source: Draft) -> str:
    """One bit of a copied norm."""
    draft[NORM].data[3] ^= 1
    return NORM


def key_absent(draft: Draft, source: Draft) -> str:
    """k_proj is absent on a layer that has keys of its own."""
    for name in tensors_of(draft, KEY):
        draft.drop(name)
    return KEY


def reshaped(draft: Draft, source: Draft) -> str:
    """A norm with an axis too many."""
    raw = draft[NORM]
    raw.shape = (1, *raw.shape)
    return NORM


def table_dense(draft: Draft, source: Draft) -> str:
    """One of the two packed tables left bf16: a combination that no build has."""
    _dense(draft, source, TABLE)
    return "embed_tokens"


def other_shape(draft: Draft, source: Draft) -> str:
    """A weight_shape tensor that says otherwise."""
    module = next(module for module in (UP, TABLE) if f"{module}.weight_packed" in draft)
    draft[f"{module}.weight_shape"].data[0] ^= 1
    return module


def tied_top(draft: Draft, source: Draft) -> str:
    """Tied at the top level although the embedding is packed."""
    draft.config["tie_word_embeddings"] = True
    return "tie_word_embeddings"


def tied_nested(draft: Draft, source: Draft) -> str:
    """Tied in a nested text config only."""
    draft.config["text_config"] = {"tie_word_embeddings": True}
    return "text_config.tie_word_embeddings"


def untied(draft: Draft, source: Draft) -> str:
    """Untied although no head is stored."""
    draft.config["tie_word_embeddings"] = False
    return "tie_word_embeddings"


def no_head(draft: Draft, source: Draft) -> str:
    """The packed embedding's head is absent."""
    for name in tensors_of(draft, "lm_head"):
        draft.drop(name)
    return "lm_head"


def _groups(draft: Draft) -> dict[str, Any]:
    groups: dict[str, Any] = draft.config["quantization_config"]["config_groups"]
    return groups


def empty_group(draft: Draft, source: Draft) -> str:
    """A config group for modules that do not exist."""
    groups = _groups(draft)
    groups["group_9"] = dict(next(iter(groups.values()))) | {"targets": ["re:.*visual.*"]}
    return "group_9"


def greedy_group(draft: Draft, source: Draft) -> str:
    """A pattern whose end is not anchored, so that embed_tokens hits the per-layer table as well."""
    groups = _groups(draft)
    packed = f"{TABLE}.weight_packed" in draft
    own = "re:.*embed_tokens" if not packed else "re:.*"
    next(iter(groups.values()))["targets"] = [
        "re:.*_proj$",
        "re:.*per_layer_input_gate$",
        "re:.*projection$",
        own,
    ]
    return "embed_tokens"


def unmatched_module(draft: Draft, source: Draft) -> str:
    """No pattern matches up_proj, or the packed table, any more."""
    module = UP if f"{UP}.weight_scale" in draft else TABLE
    for group in _groups(draft).values():
        group["targets"] = [
            t for t in group["targets"] if module.rpartition(".")[2] not in t.replace("\\", "")
        ]
    return module


def checkpoint_names_only(draft: Draft, source: Draft) -> str:
    """Patterns that know the checkpoint's names and not the engine's."""
    for group in _groups(draft).values():
        group["targets"] = [t.replace("re:.*", "re:.*language_model.*", 1) for t in group["targets"]]
    return UP if f"{UP}.weight_scale" in draft else TABLE


def other_arguments(draft: Draft, source: Draft) -> str:
    """A group that gives the weights another number of bits."""
    group = next(iter(_groups(draft).values()))
    group["weights"]["num_bits"] = 6
    return "weights"


def ignores_nothing(draft: Draft, source: Draft) -> str:
    """An entry of the ignore list that names nothing."""
    draft.config["quantization_config"]["ignore"].append("model.no_such_module")
    return "ignore"


def endless_pattern(draft: Draft, source: Draft) -> str:
    """A pattern that backtracks for ever."""
    draft.config["quantization_config"]["ignore"].append("re:(a+)+$")
    return "quantization_config"


def no_quantization_config(draft: Draft, source: Draft) -> str:
    """Nothing tells the engine that the weights are codes."""
    del draft.config["quantization_config"]
    return "quantization_config"


def needless_quantization_config(draft: Draft, source: Draft) -> str:
    """A quantization_config beside weights that are all bf16."""
    draft.config["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": {}}
    return "quantization_config"


def changed_field(draft: Draft, source: Draft) -> str:
    """Another window than the source's."""
    draft.config["sliding_window"] = 256
    return "sliding_window"


def no_side_file(folder: Path) -> str:
    """No chat template."""
    (folder / "chat_template.jinja").unlink()
    return "chat_template.jinja"


def other_side_file(folder: Path) -> str:
    """A tokenizer of one byte more."""
    path = folder / "tokenizer.json"
    path.write_bytes(path.read_bytes() + b"\n")
    return "tokenizer.json"


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
