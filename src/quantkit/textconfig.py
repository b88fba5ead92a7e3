"""The text half of a config.json as checked, typed records: sizes of the model and of each layer.

Pure, standard library only. `model` turns these into tensors; the GEMM shapes and the memory model read
them too. Sizes come from files that others made, so each is checked before it is used, and none is guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantkit.errors import UnknownModel

MAX_LAYERS = 1000
MAX_SIZE = 1 << 24  # far above any width or vocabulary in use; stops absurd configs from costing memory


@dataclass(frozen=True)
class Layer:
    """Sizes of one decoder layer.

    Attributes
    ----------
    q_rows, kv_rows
        Output rows of q_proj, and of k_proj and v_proj each.
    owns_kv, owns_v
        False where keys and values come from an earlier layer; v also where it equals k.
    """

    index: int
    full_attention: bool
    head_dim: int
    q_rows: int
    kv_rows: int
    owns_kv: bool
    owns_v: bool
    intermediate: int


@dataclass(frozen=True)
class TextConfig:
    """Sizes of a Gemma 4 text model; `ple_width` is 0 where there are no per-layer embeddings."""

    vocab_size: int
    ple_vocab_size: int
    hidden_size: int
    ple_width: int
    tied: bool
    sliding_window: int
    max_positions: int
    layers: tuple[Layer, ...]

    @property
    def ple_total(self) -> int:
        """Width of the per-layer embedding table: all layers side by side."""
        return self.ple_width * len(self.layers)


def _size(text: Mapping[str, Any], key: str, default: int | None = None, least: int = 1) -> int:
    value = text.get(key, default)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_SIZE:
        raise UnknownModel(
            f"{key} in config.json", got=repr(value), expected=f"an integer of {least} or more"
        )
    return value


def _flag(text: Mapping[str, Any], key: str, default: bool = False) -> bool:
    value = text.get(key, default)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise UnknownModel(f"{key} in config.json", got=repr(value), expected="true or false")
    return value


def _layer_types(text: Mapping[str, Any]) -> tuple[str, ...]:
    count = _size(text, "num_hidden_layers")
    types = text.get("layer_types")
    known = ("sliding_attention", "full_attention")
    if count > MAX_LAYERS or not isinstance(types, list) or len(types) != count:
        raise UnknownModel("layer_types in config.json", expected=f"a list of {count} entries, one a layer")
    if not all(kind in known for kind in types):
        raise UnknownModel("layer_types in config.json", expected=f"entries {known[0]} or {known[1]}")
    return tuple(types)


def text_config(config: Mapping[str, Any]) -> TextConfig:
    """Check and type the sizes of ``config.json``.

    Parameters
    ----------
    config
        Parsed ``config.json``; a nested ``text_config`` is used where there is one.

    Raises
    ------
    UnknownModel
        With the key that is absent, of a wrong type or out of range, or for a mixture of experts.
    """
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise UnknownModel("text_config in config.json", got=type(text).__name__, expected="an object")
    if _flag(text, "enable_moe_block"):
        raise UnknownModel("a mixture-of-experts Gemma 4", expected="a dense one: E2B, E4B, 12B or 31B")
    types = _layer_types(text)
    hidden_size = _size(text, "hidden_size")
    first_shared = len(types) - _size(text, "num_kv_shared_layers", 0, least=0)
    if first_shared < 1:
        raise UnknownModel(
            "num_kv_shared_layers in config.json", expected=f"fewer than the {len(types)} layers"
        )
    return TextConfig(
        vocab_size=_size(text, "vocab_size"),
        ple_vocab_size=_size(text, "vocab_size_per_layer_input"),
        hidden_size=hidden_size,
        ple_width=_size(text, "hidden_size_per_layer_input", least=0),
        tied=_flag(text, "tie_word_embeddings", True) and _flag(config, "tie_word_embeddings", True),
        sliding_window=_size(text, "sliding_window"),
        max_positions=_size(text, "max_position_embeddings"),
        layers=tuple(_layer(text, index, kind, first_shared) for index, kind in enumerate(types)),
    )


def _layer(text: Mapping[str, Any], index: int, kind: str, first_shared: int) -> Layer:
    full = kind == "full_attention"
    k_eq_v = full and _flag(text, "attention_k_eq_v")
    head_dim = _size(text, "head_dim")
    kv_heads = _size(text, "num_key_value_heads")
    if full:
        head_dim = _size(text, "global_head_dim")
        kv_heads = _size(text, "num_global_key_value_heads", kv_heads) if k_eq_v else kv_heads
    owns_kv = index < first_shared
    wide = 2 if _flag(text, "use_double_wide_mlp") and not owns_kv else 1
    return Layer(
        index=index,
        full_attention=full,
        head_dim=head_dim,
        q_rows=_size(text, "num_attention_heads") * head_dim,
        kv_rows=kv_heads * head_dim,
        owns_kv=owns_kv,
        owns_v=owns_kv and not k_eq_v,
        intermediate=_size(text, "intermediate_size") * wide,
    )
