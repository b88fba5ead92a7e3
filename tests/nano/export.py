"""Writes a text model as a checkpoint folder named and shaped like Google's QAT exports.

Knows files and names; the values come from `qat.as_exported`.
Imported by `train`, `untrained` and `tests.meta`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Gemma4Config, Gemma4Model

from tests.nano.architecture import config, generation_config
from tests.nano.qat import as_exported

TEXT_PREFIX = "model.language_model."
TOWER_SEED = 4
TOWERS = ("vision_tower.", "embed_vision.")


def text_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A Gemma4ForCausalLM's state under the export's names, bfloat16; the tied head is left out."""
    inner = {name.removeprefix("model."): value for name, value in state.items() if name != "lm_head.weight"}
    return {TEXT_PREFIX + name: as_exported(name, value).contiguous() for name, value in inner.items()}


def tower_tensors() -> dict[str, Tensor]:
    """An untrained vision tower of a few KB from a fixed seed: something a text-only copy must drop."""
    torch.manual_seed(TOWER_SEED)
    state = Gemma4Model(Gemma4Config(**config())).state_dict()
    towers = {name: value for name, value in state.items() if name.startswith(TOWERS)}
    return {f"model.{name}": value.to(torch.bfloat16).contiguous() for name, value in towers.items()}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes an object with sorted keys, so that the same content gives the same bytes."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_checkpoint(state: Mapping[str, Tensor], out: Path) -> None:
    """Writes model.safetensors, config.json and generation_config.json into an existing folder."""
    tensors = {**text_tensors(state), **tower_tensors()}
    save_file(dict(sorted(tensors.items())), out / "model.safetensors", metadata={"format": "pt"})
    write_json(out / "config.json", config())
    write_json(out / "generation_config.json", generation_config())
