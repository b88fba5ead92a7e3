"""Plans from headers alone: published counts and bytes, refusals, fused layers, and what they predict."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.shaped import real_config, shrunk
from quantkit.eligibility import misfits
from quantkit.errors import NotEligible, TensorSetMismatch, UnknownModel
from quantkit.formats import FORMATS, format_named
from quantkit.machines import machine_named
from quantkit.memory import GIB, KV_OVERHEAD_GIB, UTILIZATION, kv_bytes_per_token, kv_tokens, loaded_gib
from quantkit.model import Role
from quantkit.plan import make_plan
from quantkit.writer import Stored
from tests.unit.headers import headers_of, plan_of

PUBLISHED = Path(__file__).parents[2] / "baselines" / "mi300x" / "published" / "sweep.json"
E2B_TENSOR_BYTES = {  # published for E2B
    "q4w4a16": 6_559_214_470,
    "fp8": 7_384_119_878,
    "fp8fnuz": 7_384_119_878,
    "w8a8": 7_384_119_878,
    "q4w4a16ple4": 3_182_799_766,
    "q4w4a16emb4": 2_830_478_262,
    "fp8emb4": 3_655_383_670,
    "fp8fnuzemb4": 3_655_383_670,
    "w8a8emb4": 3_655_383_670,
}
# size -> linears, groups, tensors of a q4w4a16 build
SIZES = {
    "E2B": (276, 58_650_624, 264 + 3 * 276),
    "E4B": (343, 124_149_760, 1_351),
    "12B": (328, 340_623_360, 1_322),
    "31B": (410, 915_210_240, 1_652),
}


# GiB loaded on one card, published for builds without towers, to two digits
LOADED_GIB = {
    ("E4B", "fp8"): 10.46,
    ("E4B", "q4w4a16"): 8.83,
    ("12B", "fp8"): 12.65,
    ("12B", "q4w4a16"): 8.18,
    ("31B", "fp8"): 30.63,
    ("31B", "q4w4a16"): 18.70,
}


def published_boots() -> dict[str, Any]:
    """Published boot facts by build."""
    rows = json.loads(PUBLISHED.read_text())["rows"]
    return {row["build"]: row["numbers"] for row in rows if row["item"] == "boot"}


@pytest.mark.parametrize("size", SIZES)
def test_published_counts(size: str) -> None:
    plan = plan_of(real_config(size), "q4w4a16")
    linears = [d for d in plan.decisions if d.tensor.role is Role.LINEAR]
    stored = [one for d in plan.decisions for module in d.stored for one in module]
    groups = sum(d.tensor.values for d in linears) // 32
    assert (len(linears), groups, len(stored)) == SIZES[size]


def test_e2b_has_1876819968_values_and_264_copies() -> None:
    plan = plan_of(real_config("E2B"), "fp8")
    assert sum(d.tensor.values for d in plan.decisions if d.scheme) == 1_876_819_968
    assert sum(d.scheme is None for d in plan.decisions) == 264


@pytest.mark.parametrize("name", E2B_TENSOR_BYTES)
def test_published_bytes(name: str) -> None:
    assert plan_of(real_config("E2B"), name).tensor_bytes == E2B_TENSOR_BYTES[name]


@pytest.mark.parametrize("name", E2B_TENSOR_BYTES)
def test_loaded_memory_is_the_published_one(name: str) -> None:
    published = published_boots()[name]["loaded_gib"]
    assert abs(loaded_gib(plan_of(real_config("E2B"), name)) - published) <= 0.015 * published


@pytest.mark.parametrize(("size", "name"), LOADED_GIB)
def test_loaded_memory_of_the_larger_sizes(size: str, name: str) -> None:
    """Half a percent: figures end at 0.01 GiB, and what is left of segments that small ones share is not counted."""
    published = LOADED_GIB[size, name]
    assert abs(loaded_gib(plan_of(real_config(size), name)) - published) <= 0.005 * published


def test_large_tensors_fill_whole_segments_and_keys_that_are_values_count_twice() -> None:
    plan = plan_of(real_config("31B"), "bf16")
    full = [at for at in plan.inventory.config.layers if at.owns_kv and not at.owns_v]
    twice = sum(at.kv_rows * 5376 * 2 for at in full)
    gate_up, down = 2 * 21504 * 5376 * 2, 21504 * 5376 * 2
    partly = sum(-size % (2 << 20) for size in (gate_up, down)) * 60  # attention and tables fill theirs
    expected = plan.tensor_bytes + twice + partly + 262_144 * (256 + 512) * 2
    assert loaded_gib(plan) * GIB == expected


def test_the_kv_constant_is_fitted_on_bf16_alone() -> None:
    boot, card = published_boots()["bf16"], machine_named("mi300x")
    plan = plan_of(real_config("E2B"), "bf16")
    cache = boot["kv_tokens_log"] * kv_bytes_per_token(plan.inventory.config) / GIB
    fitted = card.memory_gib * UTILIZATION - boot["loaded_gib"] - cache
    assert abs(fitted - KV_OVERHEAD_GIB) <= 0.005


@pytest.mark.parametrize("name", E2B_TENSOR_BYTES)
def test_kv_tokens_are_the_published_ones(name: str) -> None:
    published = published_boots()[name]["kv_tokens_log"]
    predicted = kv_tokens(plan_of(real_config("E2B"), name), machine_named("mi300x").memory_gib)
    assert abs(predicted - published) <= 0.03 * published


def test_a_card_too_small_holds_no_token() -> None:
    assert kv_tokens(plan_of(real_config("31B"), "bf16"), memory_gib=24) == 0


def test_kv_bytes_of_a_token() -> None:
    plan = plan_of(real_config("E2B"), "bf16")
    assert kv_bytes_per_token(plan.inventory.config) == 12 * 1_024 + 3 * 2_048


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", SIZES)
def test_every_module_has_one_decision(size: str, name: str) -> None:
    plan = plan_of(shrunk(real_config(size)), name)
    fmt = format_named(name)
    names = [one.name for shard in plan.shards for one in shard.tensors]
    assert len(names) == len(set(names))
    assert {d.scheme for d in plan.decisions if d.tensor.role is Role.LINEAR} == {fmt.linears}
    assert ("lm_head.weight_packed" in names) == fmt.unties_lm_head
    assert not [name for name in names if name == "lm_head.weight"]


def test_the_cut_into_shards_keeps_tables_apart() -> None:
    plan = plan_of(real_config("E2B"), "fp8emb4")
    with_tables = [
        s for s in plan.shards if any("embed_tokens" in t.name or "lm_head" in t.name for t in s.tensors)
    ]
    assert with_tables
    for shard in with_tables:
        assert all("embed_tokens" in t.name or "lm_head" in t.name for t in shard.tensors)


def spoilt(change: str) -> tuple[dict[str, Any], dict[str, Stored]]:
    """A miniature's config and headers with one thing wrong."""
    config = shrunk(real_config("E2B"))
    headers = headers_of(config)
    name = "model.language_model.layers.0.mlp.up_proj.weight"
    if change == "absent":
        del headers[name]
    elif change == "unknown":
        headers["model.language_model.layers.0.mlp.mid_proj.weight"] = headers[name]
    elif change == "shape":
        headers[name] = Stored(name, "BF16", (32, 32))
    else:
        headers[name] = Stored(name, "F16", headers[name].shape)
    return config, headers


@pytest.mark.parametrize("change", ["absent", "unknown", "shape", "dtype"])
def test_a_source_that_is_not_what_its_config_says(change: str) -> None:
    config, headers = spoilt(change)
    with pytest.raises(TensorSetMismatch, match=r"layers\.0\.mlp\."):
        make_plan(config, headers, format_named("fp8"))


def test_a_norm_may_be_of_another_type_and_is_copied_in_it() -> None:
    config = shrunk(real_config("E2B"))
    headers, name = headers_of(config), "model.language_model.norm.weight"
    headers[name] = Stored(name, "F32", headers[name].shape)
    plan = make_plan(config, headers, format_named("fp8"))
    (stored,) = (one for shard in plan.shards for one in shard.tensors if one.name == name)
    assert stored == headers[name]


def test_unread_keys_of_shared_layers_and_towers_are_left_out() -> None:
    config = shrunk(real_config("E2B"))
    towers = ("vision_tower", "vision_embedder", "audio_tower", "embed_vision", "embed_audio")
    unread = ("k_proj", "v_proj", "k_norm")
    extra = [f"model.{tower}.layers.0.self_attn.q_proj.weight" for tower in towers]
    extra += [f"model.language_model.layers.34.self_attn.{part}.weight" for part in unread]
    headers = headers_of(config) | {name: Stored(name, "BF16", (32, 32)) for name in extra}
    assert make_plan(config, headers, format_named("fp8")).dropped == tuple(sorted(extra))


def test_a_head_of_its_own_is_refused_by_name() -> None:
    config = shrunk(real_config("E2B"))
    text = config["text_config"] | {"tie_word_embeddings": False}
    for untied in ({"tie_word_embeddings": False}, {"text_config": text}):
        with pytest.raises(UnknownModel, match="lm_head"):
            plan_of(config | untied, "fp8")


def test_a_width_that_groups_do_not_divide_is_refused() -> None:
    config = shrunk(real_config("12B"))
    config["text_config"]["intermediate_size"] = 100
    with pytest.raises(NotEligible, match=r"down_proj.*multiple of 32"):
        plan_of(config, "q4w4a16")
    plan_of(config, "fp8")


@pytest.mark.parametrize(
    ("bad", "kept"),
    [
        ("self_attn.v_proj", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}),
        ("mlp.gate_proj", {"mlp.gate_proj", "mlp.up_proj"}),
        ("mlp.down_proj", {"mlp.down_proj"}),
    ],
)
def test_what_the_engine_fuses_is_kept_together(bad: str, kept: set[str]) -> None:
    prefix = "model.language_model.layers.1."
    plan = plan_of(shrunk(real_config("E2B")), "q4w4a16", frozenset({prefix + bad}))
    dense = {d.tensor.module for d in plan.decisions if d.tensor.role is Role.LINEAR and d.scheme is None}
    assert dense == {prefix + module for module in kept}


def test_more_ranks_than_key_heads_hold_whole_heads() -> None:
    found = misfits(plan_of(real_config("31B"), "fp8"), ranks=1024)
    assert {m.module.rpartition(".")[2] for m in found} == {
        "q_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    }


def test_kernels_on_one_card_and_on_ranks() -> None:
    plan = plan_of(real_config("E2B"), "q4w4a16emb4")
    assert not misfits(plan)
    assert not misfits(plan, on_cpu=True)
    assert not misfits(plan, ranks=8)
    split = {
        misfit.module.split("layers.0.")[-1]
        for misfit in misfits(plan, ranks=128)
        if "layers.0." in misfit.module
    }
    assert split == {"self_attn.o_proj", "mlp.down_proj"}
    assert {misfit.kernel for misfit in misfits(plan_of(real_config("E2B"), "fp8"), ranks=512)} == {
        "torch scaled_mm"
    }


@pytest.mark.parametrize(
    ("ranks", "on_cpu", "refused"),
    [
        (32, False, set()),
        (64, False, {"per_layer_model_projection"}),
        (64, True, {"per_layer_model_projection"}),
        (128, False, {"o_proj", "down_proj", "per_layer_model_projection"}),
        (128, True, {"o_proj", "down_proj", "per_layer_model_projection", "q_proj", "gate_proj", "up_proj"}),
        (512, False, {"o_proj", "down_proj", "per_layer_model_projection", "q_proj", "gate_proj", "up_proj"}),
    ],
)
def test_what_does_not_split(ranks: int, on_cpu: bool, refused: set[str]) -> None:
    found = misfits(plan_of(real_config("E2B"), "q4w4a16emb4"), ranks=ranks, on_cpu=on_cpu)
    layers = {
        m.module.rpartition(".")[2] for m in found if ".layers." not in m.module or ".layers.0." in m.module
    }
    assert layers == refused
