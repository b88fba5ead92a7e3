"""A build's weights decoded by the reference decoder and run in fp32 by transformers: what should be served.

Inputs of 8-bit products are rounded per token, as the format says; all else is exact. Shares nothing with the
engine but the files on disk. Imports torch and transformers inside functions, since a run that asks no log
probabilities should not wait for them. Imported by the serving suite.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantkit.checkpoint import Checkpoint
from quantkit.errors import QuantkitError
from quantkit.reference import CODEBOOKS, bf16_to_float32, decode_int4, scales_to_float32
from tests.support.answers.logprobs import TOP_K, Scored

PREFIX = "model.language_model."
SMALLEST_PEAK = 1e-10  # of an input that is all zeros
ABSENT = ("k_proj.weight", "v_proj.weight", "k_norm.weight")  # of KV-shared layers


class CannotRun(QuantkitError):
    """The decoded weights do not make the model that the config describes."""


def _rows(checkpoint: Checkpoint, name: str) -> NDArray[Any]:
    shape = checkpoint.entries[name].shape
    return checkpoint.rows(name, 0, shape[0] if shape else 1)


def _scales(checkpoint: Checkpoint, module: str) -> NDArray[np.float32]:
    name = f"{module}.weight_scale"
    return scales_to_float32(_rows(checkpoint, name), checkpoint.entries[name].dtype)


def decoded_weights(checkpoint: Checkpoint) -> dict[str, NDArray[np.float32]]:
    """Every weight as the engine's loader should see it, float32, under the checkpoint's names."""
    found = {}
    for name, entry in checkpoint.entries.items():
        module = name.rpartition(".")[0]
        if name.endswith(("weight_scale", "weight_shape")):
            continue
        if name.endswith("weight_packed"):
            found[f"{module}.weight"] = decode_int4(_rows(checkpoint, name), _scales(checkpoint, module))
        elif entry.dtype in CODEBOOKS:
            served = CODEBOOKS[entry.dtype].served[_rows(checkpoint, name).view(np.uint8)]
            found[name] = served * _scales(checkpoint, module)
        else:
            found[name] = bf16_to_float32(_rows(checkpoint, name))
    return found


def rounded_input(x: Any, dtype: str) -> Any:
    """The input of an 8-bit product, each token rounded to int8 or E4M3FN with a scale of its own."""
    import torch

    kind, x = x.dtype, x.float()
    highest = 127.0 if dtype == "I8" else 448.0
    scale = x.abs().amax(-1, keepdim=True).clamp_min(SMALLEST_PEAK) / highest
    codes = (x / scale).clamp(-highest, highest)
    rounded = codes.round() if dtype == "I8" else codes.to(torch.float8_e4m3fn).float()
    return (rounded * scale).to(kind)


def _round_inputs(model: Any, dtypes: dict[str, str]) -> None:
    """Put the rounding of inputs before every 8-bit product of a model."""
    for name, dtype in dtypes.items():
        module = model.get_submodule(name.replace(PREFIX, "model.").removesuffix(".weight"))
        module.register_forward_pre_hook(lambda _, inputs, dtype=dtype: (rounded_input(inputs[0], dtype),))


def decoded_model(folder: Path) -> Any:
    """The build's model in fp32, its weights decoded by the reference.

    Raises
    ------
    CannotRun
        Where a tensor is missing or left over.
    """
    import torch
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    with Checkpoint.open(folder) as checkpoint:
        config = {key: value for key, value in checkpoint.config.items() if key != "quantization_config"}
        weights = decoded_weights(checkpoint)
        eight_bit = {
            name: entry.dtype for name, entry in checkpoint.entries.items() if entry.dtype in CODEBOOKS
        }
    model: Any = Gemma4ForCausalLM(Gemma4TextConfig(**{**config, "dtype": "float32"}))
    model = model.float().eval()
    named = {name.replace(PREFIX, "model."): torch.from_numpy(values) for name, values in weights.items()}
    named.setdefault("lm_head.weight", named["model.embed_tokens.weight"])
    keys = model.load_state_dict(named, strict=False)
    missing = [name for name in keys.missing_keys if not name.endswith(ABSENT)]
    if missing or keys.unexpected_keys:
        got = f"missing {missing}, left over {keys.unexpected_keys}"
        raise CannotRun(f"decoded weights of {folder.name}", got=got)
    _round_inputs(model, eight_bit)
    return model


def _scores(model: Any, sequences: Sequence[tuple[int, ...]]) -> tuple[Scored, ...]:
    import torch

    found = []
    with torch.inference_mode():
        for tokens in sequences:
            logits = model(torch.tensor([tokens])).logits[0, :-1].float()
            logprobs = torch.log_softmax(logits, dim=-1)
            own = logprobs[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])]
            values, ids = logprobs.topk(TOP_K, dim=-1)
            tops = tuple(
                dict(zip(i.tolist(), v.tolist(), strict=True)) for i, v in zip(ids, values, strict=True)
            )
            found.append(Scored(tuple(tokens), tuple(own.tolist()), tops))
    return tuple(found)


class Decoded(NamedTuple):
    """Log probabilities of sequences by a build's decoded weights, in fp32 and again in bfloat16 arithmetic."""

    fp32: tuple[Scored, ...]
    bf16: tuple[Scored, ...]


def decoded_scores(folder: Path, sequences: Sequence[tuple[int, ...]]) -> Decoded:
    """What the decoded weights say of sequences; how far the two lie apart is what bfloat16 rounding alone does."""
    model = decoded_model(folder)
    return Decoded(_scores(model, sequences), _scores(model.bfloat16(), sequences))
