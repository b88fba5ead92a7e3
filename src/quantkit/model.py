"""Which tensors a config.json implies, and what each one is. The next model is one more record in FAMILIES.

Pure: no file is opened here. It knows architectures, not formats: `plan` decides how a tensor is stored,
`verify` asks for the same inventory to judge the result.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from quantkit.errors import UnknownModel
from quantkit.textconfig import Layer, TextConfig, text_config


class Role(Enum):
    """What a tensor is, and therefore what may be done to it."""

    LINEAR = "linear"
    TABLE = "table"
    OTHER = "other"


@dataclass(frozen=True)
class Tensor:
    """One tensor that the config implies.

    Attributes
    ----------
    name
        Full name in the checkpoint, prefix and ``.weight`` included.
    module
        The same without ``.weight``: what an engine calls the layer.
    kind
        Projection kind that reports group by, such as ``mlp.down_proj``.
    shape
        ``(out, in)`` of a linear, ``(rows, width)`` of a table, else as stored.
    """

    name: str
    module: str
    kind: str
    role: Role
    shape: tuple[int, ...]

    @property
    def values(self) -> int:
        """Number of values."""
        count = 1
        for length in self.shape:
            count *= length
        return count


@dataclass(frozen=True)
class Inventory:
    """All text tensors of a checkpoint, and the names that a text-only copy leaves out.

    Attributes
    ----------
    config
        The checked text config.
    tensors
        In the order of the model.
    dropped_prefixes
        Towers of a multimodal source.
    dropped_names
        Tensors that some releases ship and no engine reads: k and v of KV-shared layers.
    """

    config: TextConfig
    tensors: tuple[Tensor, ...]
    dropped_prefixes: tuple[str, ...]
    dropped_names: frozenset[str]

    def of(self, role: Role) -> tuple[Tensor, ...]:
        """Tensors of one role, in the order of the model."""
        return tuple(tensor for tensor in self.tensors if tensor.role is role)

    def drops(self, name: str) -> bool:
        """Whether a text-only build leaves this tensor out on purpose."""
        return name in self.dropped_names or name.startswith(self.dropped_prefixes)


Shape = Callable[[TextConfig, Layer], tuple[int, ...]]
When = Callable[[TextConfig, Layer], bool]


@dataclass(frozen=True)
class Row:
    """One line of a family's table: a tensor of every layer (or of the model) for which ``when`` holds."""

    name: str
    role: Role
    shape: Shape
    when: When = lambda c, at: True


@dataclass(frozen=True)
class Family:
    """An architecture: its tensors as a table, its prefix and its towers."""

    name: str
    prefix: str
    layer_rows: tuple[Row, ...]
    model_rows: tuple[Row, ...]
    towers: tuple[str, ...]


LINEAR, TABLE, OTHER = Role.LINEAR, Role.TABLE, Role.OTHER


def _has_ple(c: TextConfig, at: Layer) -> bool:
    return c.ple_width > 0


def _hidden(c: TextConfig, at: Layer) -> tuple[int, ...]:
    return (c.hidden_size,)


def _head(c: TextConfig, at: Layer) -> tuple[int, ...]:
    return (at.head_dim,)


GEMMA4_LAYER = (
    Row("self_attn.q_proj.weight", LINEAR, lambda c, at: (at.q_rows, c.hidden_size)),
    Row(
        "self_attn.k_proj.weight", LINEAR, lambda c, at: (at.kv_rows, c.hidden_size), lambda c, at: at.owns_kv
    ),
    Row(
        "self_attn.v_proj.weight", LINEAR, lambda c, at: (at.kv_rows, c.hidden_size), lambda c, at: at.owns_v
    ),
    Row("self_attn.o_proj.weight", LINEAR, lambda c, at: (c.hidden_size, at.q_rows)),
    Row("mlp.gate_proj.weight", LINEAR, lambda c, at: (at.intermediate, c.hidden_size)),
    Row("mlp.up_proj.weight", LINEAR, lambda c, at: (at.intermediate, c.hidden_size)),
    Row("mlp.down_proj.weight", LINEAR, lambda c, at: (c.hidden_size, at.intermediate)),
    Row("per_layer_input_gate.weight", LINEAR, lambda c, at: (c.ple_width, c.hidden_size), _has_ple),
    Row("per_layer_projection.weight", LINEAR, lambda c, at: (c.hidden_size, c.ple_width), _has_ple),
    Row("self_attn.q_norm.weight", OTHER, _head),
    Row("self_attn.k_norm.weight", OTHER, _head, lambda c, at: at.owns_kv),
    Row("input_layernorm.weight", OTHER, _hidden),
    Row("post_attention_layernorm.weight", OTHER, _hidden),
    Row("pre_feedforward_layernorm.weight", OTHER, _hidden),
    Row("post_feedforward_layernorm.weight", OTHER, _hidden),
    Row("post_per_layer_input_norm.weight", OTHER, _hidden, _has_ple),
    Row("layer_scalar", OTHER, lambda c, at: (1,)),
)
GEMMA4_MODEL = (
    Row("embed_tokens.weight", TABLE, lambda c, at: (c.vocab_size, c.hidden_size)),
    Row("embed_tokens_per_layer.weight", TABLE, lambda c, at: (c.ple_vocab_size, c.ple_total), _has_ple),
    Row("per_layer_model_projection.weight", LINEAR, lambda c, at: (c.ple_total, c.hidden_size), _has_ple),
    Row("per_layer_projection_norm.weight", OTHER, lambda c, at: (c.ple_width,), _has_ple),
    Row("norm.weight", OTHER, _hidden),
)
GEMMA4 = Family(
    name="gemma4",
    prefix="model.language_model.",
    layer_rows=GEMMA4_LAYER,
    model_rows=GEMMA4_MODEL,
    towers=tuple(
        f"model.{tower}."
        for tower in ("vision_tower", "vision_embedder", "audio_tower", "embed_vision", "embed_audio")
    ),
)
FAMILIES: dict[str, Family] = {"gemma4": GEMMA4, "gemma4_text": GEMMA4}

_UNREAD_ON_SHARED = ("self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.k_norm.weight")


def _tensor(prefix: str, row: Row, shape: tuple[int, ...]) -> Tensor:
    module = row.name.removesuffix(".weight")
    return Tensor(f"{prefix}{row.name}", f"{prefix}{module}", module, row.role, shape)


def inventory(config: Mapping[str, Any]) -> Inventory:
    """The tensors that a checkpoint's ``config.json`` implies.

    Parameters
    ----------
    config
        Parsed ``config.json``, multimodal (nested ``text_config``) or text-only.

    Raises
    ------
    UnknownModel
        For an architecture without a record, a mixture of experts, or sizes that contradict each other.
    """
    model_type = config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        known = ", ".join(FAMILIES)
        raise UnknownModel("model_type of config.json", got=repr(model_type), expected=f"one of {known}")
    c = text_config(config)
    tensors, unread = [], set()
    for at in c.layers:
        prefix = f"{family.prefix}layers.{at.index}."
        tensors += [_tensor(prefix, row, row.shape(c, at)) for row in family.layer_rows if row.when(c, at)]
        if not at.owns_kv:
            unread |= {prefix + name for name in _UNREAD_ON_SHARED}
    last = c.layers[-1]
    tensors += [
        _tensor(family.prefix, row, row.shape(c, last)) for row in family.model_rows if row.when(c, last)
    ]
    return Inventory(c, tuple(tensors), family.towers, frozenset(unread))
