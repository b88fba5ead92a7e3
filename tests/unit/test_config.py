"""config.json of a build: every module in the group of its scheme and no other, ties, ignore list, flat text."""

import re
from typing import Any

import pytest

from benchmarks.shaped import real_config, shrunk
from quantkit.config import build_config, quantization_config
from quantkit.errors import NotEligible
from quantkit.formats import FORMATS, FP8, PLE, Format, format_named
from tests.unit.headers import plan_of

SIZES = ("E2B", "E4B", "12B", "31B")


def matches(target: str, module: str) -> bool:
    """As the engine matches: exact, or a regex from the start."""
    return re.match(target[3:], module) is not None if target.startswith("re:") else target == module


def engine_name(module: str) -> str:
    """The name that vLLM gives a module of the checkpoint."""
    return module.replace("model.language_model.", "model.")


@pytest.mark.parametrize("renamed", [str, engine_name], ids=["checkpoint", "engine"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", SIZES)
def test_targets_match_just_the_modules_of_their_scheme(size: str, name: str, renamed: Any) -> None:
    plan = plan_of(shrunk(real_config(size)), name)
    quantization = quantization_config(plan)
    groups = quantization["config_groups"] if quantization else {}
    assert len(groups) == len(format_named(name).schemes)
    every = plan.schemes | {"lm_head": plan.schemes.get("lm_head")}
    for group, scheme in zip(groups.values(), format_named(name).schemes, strict=True):
        matched = {m for m in every if any(matches(target, renamed(m)) for target in group["targets"])}
        assert matched == {module for module, own in every.items() if own == scheme}
        for target in group["targets"]:
            assert any(matches(target, renamed(module)) for module in matched), f"{target} matches nothing"


def test_a_scheme_that_no_tensor_of_this_model_takes_has_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 12B has no per-layer embeddings, so that such a build of it is one of linears alone."""
    monkeypatch.setitem(FORMATS, "fp8ple4", Format("fp8ple4", FP8, PLE))
    config = shrunk(real_config("12B"))
    assert quantization_config(plan_of(config, "fp8ple4")) == quantization_config(plan_of(config, "fp8"))


def test_a_pattern_names_a_layer_s_own_by_the_layer_and_the_model_s_own_without() -> None:
    found = quantization_config(plan_of(shrunk(real_config("E2B")), "w8a8emb4"))
    assert found is not None
    linears, tables = (group["targets"] for group in found["config_groups"].values())
    assert r"re:.*layers\.\d+\.mlp\.up_proj$" in linears
    assert r"re:.*per_layer_model_projection$" in linears
    assert tables == ["re:.*embed_tokens$", "re:.*lm_head$", "re:.*embed_tokens_per_layer$"]


@pytest.mark.parametrize("name", [name for name, fmt in FORMATS.items() if fmt.schemes])
def test_compressed_tensors_takes_the_config(name: str) -> None:
    from tests.unit.third_opinion import parsed_config  # brings torch

    quantization = quantization_config(plan_of(real_config("E2B"), name))
    assert quantization is not None
    parsed = parsed_config(quantization)
    assert parsed.quantization_status == "compressed"
    assert parsed.kv_cache_scheme is None
    weights = parsed.config_groups["group_0"].weights
    linears = format_named(name).linears
    assert linears is not None
    assert (weights.num_bits, weights.symmetric, weights.dynamic) == (linears.bits, True, False)
    layouts = {scheme.compressor for scheme in format_named(name).schemes}
    assert quantization["format"] == (layouts.pop() if len(layouts) == 1 else "mixed-precision")


def test_ignored_are_the_linears_left_dense_and_a_dense_head() -> None:
    config = shrunk(real_config("E2B"))
    bad = "model.language_model.layers.2.mlp.down_proj"
    for name, kept, expected in [
        ("q4w4a16", frozenset(), ["lm_head"]),
        ("q4w4a16", frozenset({bad}), [bad, "lm_head"]),
        ("q4w4a16emb4", frozenset({bad}), [bad]),
        ("q4w4a16emb4", frozenset(), []),
        ("fp8", frozenset(), ["lm_head"]),
    ]:
        found = quantization_config(plan_of(config, name, kept))
        assert found is not None
        assert found["ignore"] == expected


def test_a_kept_key_that_is_loaded_as_value_too_is_ignored_as_both() -> None:
    config = shrunk(real_config("12B"))
    attention = "layers.5.self_attn."
    found = quantization_config(
        plan_of(config, "q4w4a16", frozenset({f"model.language_model.{attention}k_proj"}))
    )
    assert found is not None
    for part in "qkv":
        names = [f"{prefix}{attention}{part}_proj" for prefix in ("model.language_model.", "model.")]
        exact, engine = ([entry for entry in found["ignore"] if matches(entry, name)] for name in names)
        assert exact, names
        assert engine or not exact[0].startswith("re:")
    assert not [entry for entry in found["ignore"] if matches(entry, "model.layers.15.self_attn.k_proj")]


def test_bf16_has_no_quantization_config_and_an_alien_one_is_dropped() -> None:
    source = shrunk(real_config("E2B")) | {"quantization_config": {"bits": 4}}
    source["text_config"]["quantization_config"] = {"bits": 4}
    config = build_config(plan_of(source, "bf16"), source)
    assert "quantization_config" not in config


@pytest.mark.parametrize("name", FORMATS)
def test_the_text_half_lies_at_the_top(name: str) -> None:
    kept = {"eos_token_id": [1, 106], "bos_token_id": 2, "pad_token_id": 0}
    kept |= {"dtype": "bfloat16", "torch_dtype": "bfloat16", "transformers_version": "5.0"}
    source = shrunk(real_config("E2B")) | {"vision_config": {}, **kept}
    source["text_config"] |= dict.fromkeys((*kept, "model_type", "architectures"), "the towers' own")
    source["text_config"]["text_config"] = {}
    config = build_config(plan_of(source, name), source)
    assert config["model_type"] == "gemma4_text"
    assert config["architectures"] == ["Gemma4ForCausalLM"]
    assert config["tie_word_embeddings"] is not format_named(name).unties_lm_head
    assert config["hidden_size"] == 64
    assert {key: config.get(key) for key in kept} == kept
    assert not {"text_config", "vision_config"} & set(config)


@pytest.mark.parametrize("target", ["re:.*embed_tokens", "re:.*no_such_module$"])
def test_a_pattern_that_matches_too_much_or_nothing_is_refused(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantkit.config._target", lambda plan, kind: target)
    with pytest.raises(NotEligible, match=r"target re:"):
        quantization_config(plan_of(real_config("E2B"), "q4w4a16ple4"))


def test_a_text_only_source_gives_the_same_config() -> None:
    source = shrunk(real_config("E4B"))
    plan = plan_of(source, "fp8")
    flat = build_config(plan_of(source, "bf16"), source)
    assert build_config(plan, flat) == build_config(plan, source)
