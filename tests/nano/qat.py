"""The fake quantizer: what a weight becomes on the q4_0 grid, in the forward pass and in the export alike.

Groups of 32 along the input dimension; value = bf16(step x level), level in -8..7, step an fp16 number.
Knows tensors and names, no files. Imported by `train`, `export`, `untrained` and `tests.meta`.
"""

import zlib

import torch
from torch import Tensor

GROUP = 32
PEAKS = (8, 7, 6, 5, 4, 3, 2, 1)
PEAK_WEIGHTS = (30.0, 26.0, 20.0, 12.0, 6.0, 3.0, 2.0, 1.0)
"""How often a group's largest magnitude sits at each level, in percent: real exports peak below 8 too."""

_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_PER_LAYER = ("per_layer_input_gate", "per_layer_projection", "per_layer_model_projection")
_TABLES = ("embed_tokens", "embed_tokens_per_layer")
QUANTIZED = frozenset(f"{module}.weight" for module in (*_LINEARS, *_PER_LAYER, *_TABLES))


def is_quantized(name: str) -> bool:
    """Whether a text tensor's values lie on the grid: every linear and both tables."""
    return ".".join(name.split(".")[-2:]) in QUANTIZED


def peak_levels(name: str, n_groups: int) -> Tensor:
    """The level at which each group of a tensor peaks, drawn from its name: float32 [n_groups, 1]."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    drawn = torch.multinomial(torch.tensor(PEAK_WEIGHTS), n_groups, True, generator=generator)
    return torch.tensor(PEAKS, dtype=torch.float32)[drawn].unsqueeze(1)


def to_grid(groups: Tensor, peaks: Tensor) -> Tensor:
    """Values moved to the nearest level of their group's step.

    Parameters
    ----------
    groups : float32 [n_groups, 32]
    peaks : float32 [n_groups, 1], in 1..8. A peak at level 8 is stored at -8: its step takes the
        opposite sign of the group's largest value, so that about half of these steps are negative.

    Returns
    -------
    bfloat16 [n_groups, 32]
    """
    index = groups.abs().argmax(dim=1, keepdim=True)
    largest = groups.gather(1, index)
    signed = torch.where(peaks == 8, -largest, largest.abs())
    steps = (signed / peaks).to(torch.float16).float()
    divisors = torch.where(steps == 0, torch.ones_like(steps), steps)
    levels = torch.round(groups / divisors).clamp(-8, 7)
    return (steps * levels).to(torch.bfloat16)


def as_exported(name: str, weight: Tensor) -> Tensor:
    """A text tensor as the checkpoint stores it: on the grid where quantized, else rounded; bfloat16."""
    if not is_quantized(name):
        return weight.to(torch.bfloat16)
    groups = weight.reshape(-1, GROUP)
    return to_grid(groups, peak_levels(name, len(groups))).reshape(weight.shape)


def straight_through(name: str, weight: Tensor) -> Tensor:
    """The exported value in the forward pass, the identity in the backward pass; float32."""
    return weight + (as_exported(name, weight.detach()).float() - weight.detach())
