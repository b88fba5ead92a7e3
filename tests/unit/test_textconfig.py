"""The sizes in a config.json: what each must be, what may be absent, and that nothing is guessed."""

from typing import Any

import pytest

from benchmarks.shaped import real_config
from quantkit.errors import UnknownModel
from quantkit.model import inventory
from quantkit.textconfig import text_config

SIZES = (
    "vocab_size", "vocab_size_per_layer_input", "hidden_size", "intermediate_size", "head_dim", "global_head_dim",
    "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "sliding_window", "max_position_embeddings",
)  # fmt: skip
MAY_BE_ZERO = ("hidden_size_per_layer_input", "num_kv_shared_layers")
FLAGS = ("tie_word_embeddings", "enable_moe_block", "attention_k_eq_v", "use_double_wide_mlp")
WRONG: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(SIZES, (0, -1, 1.0, "1", True, [], (1 << 24) + 1)),
    **dict.fromkeys(MAY_BE_ZERO, (-1, 0.0, "0", False, (1 << 24) + 1)),
    **dict.fromkeys(FLAGS, (0, 1, "true", [])),
    "layer_types": (
        None,
        "full_attention",
        [],
        ["full_attention"] * 34,
        ["full_attention"] * 34 + ["conv"],
        [1] * 35,
    ),
}


def changed(**keys: object) -> dict[str, Any]:
    """E2B's config with other keys in its text half."""
    config = real_config("E2B")
    return config | {"text_config": config["text_config"] | keys}


@pytest.mark.parametrize("key", WRONG)
def test_a_wrong_value_is_refused_by_its_key(key: str) -> None:
    for value in WRONG[key]:
        with pytest.raises(UnknownModel, match=f"^{key} in config"):
            text_config(changed(**{key: value}))


@pytest.mark.parametrize("key", [*SIZES, "hidden_size_per_layer_input"])
def test_a_size_that_is_absent_is_not_guessed(key: str) -> None:
    config = changed()
    del config["text_config"][key]
    for absent in (config, changed(**{key: None})):
        with pytest.raises(UnknownModel, match=f"^{key} .*got None"):
            text_config(absent)


def test_what_may_be_absent_is_as_the_architecture_has_it() -> None:
    full = real_config("31B")["text_config"]
    for key, default in [
        *((flag, flag == "tie_word_embeddings") for flag in FLAGS),
        ("num_kv_shared_layers", 0),
    ]:
        without = {other: value for other, value in full.items() if other != key}
        for absent in (without, without | {key: None}):
            assert text_config(absent) == text_config(full | {key: default}), key


def test_kv_heads_of_full_layers() -> None:
    """A number of their own counts where keys are values too; elsewhere, or without one, the layers' common one."""
    text = real_config("31B")["text_config"]
    for k_eq_v, own, rows in ((True, 4, 4), (True, None, 16), (False, 4, 16)):
        layers = text_config(text | {"attention_k_eq_v": k_eq_v, "num_global_key_value_heads": own}).layers
        assert {layer.kv_rows for layer in layers if layer.full_attention} == {rows * 512}
        assert {layer.kv_rows for layer in layers if not layer.full_attention} == {16 * 256}
        assert [layer.owns_v for layer in layers] == [
            not (k_eq_v and layer.full_attention) for layer in layers
        ]


def test_a_thousand_layers_and_no_more() -> None:
    for count, known in ((1000, True), (1001, False)):
        config = changed(
            num_hidden_layers=count, layer_types=["full_attention"] * count, num_kv_shared_layers=0
        )
        if known:
            assert len(text_config(config).layers) == count
        else:
            with pytest.raises(UnknownModel, match=r"^layer_types"):
                text_config(config)


@pytest.mark.parametrize("text", [[], "x", None])
def test_a_text_half_that_is_no_object(text: object) -> None:
    with pytest.raises(UnknownModel, match=r"^text_config"):
        text_config({"text_config": text})


@pytest.mark.parametrize("model_type", ["llama", None, 1, ["gemma4"], {}])
def test_a_model_type_that_nobody_described_is_named_with_what_is_known(model_type: object) -> None:
    with pytest.raises(
        UnknownModel, match=r"^model_type of config\.json, got .*, expected one of gemma4, gemma4_text"
    ):
        inventory({"model_type": model_type})


def test_layers_that_all_share_the_keys_of_none() -> None:
    text_config(changed(num_kv_shared_layers=34))
    for shared in (35, 36):
        with pytest.raises(UnknownModel, match=r"^num_kv_shared_layers"):
            text_config(changed(num_kv_shared_layers=shared))
