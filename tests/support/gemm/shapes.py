"""Which matrix products one token runs, from config.json alone, fused as the engine fuses them.

Pure; knows no device, no format and no timing. The suite, the plan and the report may import it.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit.model import Role, inventory
from quantkit.textconfig import Layer, TextConfig

LM_HEAD = "lm_head"
# A fused product's first part stands for it where it runs; the other parts run nothing of their own.
FUSED_AWAY = frozenset({"self_attn.k_proj", "self_attn.v_proj", "mlp.up_proj"})


@dataclass(frozen=True)
class Shape:
    """One product ``[rows, k] @ [n, k].T`` and how often a token runs it.

    Attributes
    ----------
    kind
        The engine's name for the layer, such as ``qkv_proj``.
    count
        Times per token.
    """

    kind: str
    n: int
    k: int
    count: int = 1

    @property
    def name(self) -> str:
        """``kind NxK``: unique within a model, since layers of one kind differ in size."""
        return f"{self.kind} {self.n}x{self.k}"

    @property
    def weights(self) -> int:
        """Weights of one such product."""
        return self.n * self.k


@dataclass(frozen=True)
class Token:
    """All products of one token.

    Attributes
    ----------
    model
        What is timed, for the record.
    order
        One entry a product, in the order a forward pass runs them; counts are 1.
    """

    model: str
    order: tuple[Shape, ...]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The distinct shapes with their counts, smallest first."""
        counts = Counter(self.order)
        found = (Shape(shape.kind, shape.n, shape.k, count) for shape, count in counts.items())
        return tuple(sorted(found, key=lambda shape: (shape.weights, shape.name)))

    @property
    def weights(self) -> int:
        """Weights that one token reads."""
        return sum(shape.weights for shape in self.order)


def _fused(c: TextConfig, at: Layer | None, kind: str, n: int, k: int) -> Shape:
    if at is None:
        return Shape(kind, n, k)
    if kind == "self_attn.q_proj":  # v has a slot of its own also where it equals k
        return Shape("qkv_proj", at.q_rows + 2 * at.kv_rows, k) if at.owns_kv else Shape("q_proj", n, k)
    if kind == "mlp.gate_proj":
        return Shape("gate_up_proj", 2 * n, k)
    return Shape(kind.rsplit(".", 1)[-1], n, k)


def token_of(config: Mapping[str, Any], model: str) -> Token:
    """The products one token runs in vLLM, head included.

    Parameters
    ----------
    config
        Parsed ``config.json`` of a dense Gemma 4.
    model
        Name for the record.

    Raises
    ------
    quantkit.errors.UnknownModel
        For an architecture without a record.

    Notes
    -----
    vLLM 0.32 (``models/gemma4.py``) has one ``qkv_proj`` on layers that own their keys and values, a lone
    ``q_proj`` on KV-shared layers, ``gate_up_proj``, and the per-layer-embedding projections unfused.
    """
    found = inventory(config)
    layers = {f".layers.{at.index}.": at for at in found.config.layers}
    first: list[Shape] = []
    rest: list[Shape] = []
    for tensor in found.of(Role.LINEAR):
        if tensor.kind in FUSED_AWAY:
            continue
        at = next((layer for mark, layer in layers.items() if mark in tensor.module), None)
        shape = _fused(found.config, at, tensor.kind, tensor.shape[0], tensor.shape[1])
        (first if at is None else rest).append(shape)
    head = Shape(LM_HEAD, found.config.vocab_size, found.config.hidden_size)
    return Token(model, (*first, *rest, head))


def token_of_file(path: Path) -> Token:
    """The products of the model whose ``config.json`` this is; the file's name, or its folder's, names it."""
    name = path.parent.name if path.name == "config.json" else path.stem
    return token_of(json.loads(path.read_text()), name)


def published_token(published: Mapping[str, Any]) -> Token:
    """The products of a published list (``shapes``: name, n, k, count), omissions and all.

    It is kept to reproduce published sums; a token of the model itself comes from `token_of`.
    """
    order = [
        Shape(entry["name"], entry["n"], entry["k"])
        for entry in published["shapes"]
        for _ in range(entry["count"])
    ]
    return Token(str(published["model"]), tuple(order))
