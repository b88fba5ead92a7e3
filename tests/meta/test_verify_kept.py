"""Linears that lie off the grid and stay bf16: right where the source gives the reason, wrong anywhere else.

Real builds of toy sources with noise in one linear, and configs spoiled by hand.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantkit.as_found import AsFound, Module
from quantkit.checkpoint import Checkpoint
from quantkit.convert import build
from quantkit.errors import TensorSetMismatch
from quantkit.formats import FORMATS
from quantkit.left_dense import judge_left_dense
from quantkit.model import Role, Tensor
from quantkit.verify import Report, verify
from tests.meta.spoil_values import PREFIX
from tests.meta.toy import bf16, make_toy, read_draft

LAYER = f"{PREFIX}layers.1."
KEYS_AS_VALUES: dict[str, Any] = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}


def noisy(folder: Path, module: str, **sizes: Any) -> Path:
    """A toy source with noise in one linear."""
    draft = read_draft(make_toy(folder / "clean", seed=3, **sizes))
    raw = draft[f"{module}.weight"]
    raw.data = bytearray(bf16(np.random.default_rng(3).normal(size=raw.shape) * 0.02).tobytes())
    return draft.save(folder / "source")


def kept(source: Path, out: Path, name: str = "q4w4a16") -> Report:
    """The verdict on a build that leaves dense what is off the grid."""
    build(source, out, FORMATS[name], off_grid="keep")
    return verify(source, out)


@pytest.mark.parametrize("name", ["q4w4a16", "q4w4a16ple4", "q4w4a16emb4"])
@pytest.mark.parametrize(
    ("part", "dense"),
    [
        ("mlp.down_proj", {"mlp.down_proj"}),
        ("mlp.gate_proj", {"mlp.gate_proj", "mlp.up_proj"}),
        ("self_attn.k_proj", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}),
    ],
)
def test_what_is_off_the_grid_may_stay_dense(part: str, dense: set[str], name: str, tmp_path: Path) -> None:
    report = kept(noisy(tmp_path, LAYER + part), tmp_path / "built", name)
    assert [str(problem) for problem in report.problems] == []
    assert {m.name for m in report.found.modules if m.scheme is None and m.name.startswith(LAYER)} == {
        LAYER + each for each in dense
    }


def test_a_key_that_is_a_value_too_may_stay_dense(tmp_path: Path) -> None:
    source = noisy(tmp_path, f"{LAYER}self_attn.k_proj", **KEYS_AS_VALUES)
    report = kept(source, tmp_path / "built")
    assert [str(problem) for problem in report.problems] == []


@pytest.mark.parametrize("drop", ["k_proj", "v_proj"])
def test_keys_and_values_are_ignored_together(drop: str, tmp_path: Path) -> None:
    source = noisy(tmp_path, f"{LAYER}self_attn.k_proj", **KEYS_AS_VALUES)
    kept(source, tmp_path / "built")
    draft = read_draft(tmp_path / "built")
    section = draft.config["quantization_config"]
    section["ignore"] = [f"{LAYER}self_attn.{p}_proj" for p in "qkv" if f"{p}_proj" != drop] + ["lm_head"]
    found = verify(source, draft.save(tmp_path / "spoiled")).problems
    assert ("config_dense_not_ignored", f"{LAYER}self_attn.{drop}") in {(p.kind, p.where) for p in found}


def test_keys_and_values_may_be_ignored_by_name(tmp_path: Path) -> None:
    """The values' name too, though no tensor has it: the engine asks for it."""
    source = noisy(tmp_path, f"{LAYER}self_attn.k_proj", **KEYS_AS_VALUES)
    kept(source, tmp_path / "built")
    draft = read_draft(tmp_path / "built")
    draft.config["quantization_config"]["ignore"] = [f"{LAYER}self_attn.{p}_proj" for p in "qkv"] + [
        "lm_head"
    ]
    assert verify(source, draft.save(tmp_path / "renamed")).good


def test_values_made_of_quantized_keys_are_not_ignored(tmp_path: Path) -> None:
    source = make_toy(tmp_path / "source", seed=3, **KEYS_AS_VALUES)
    build(source, tmp_path / "built", FORMATS["q4w4a16"])
    draft = read_draft(tmp_path / "built")
    draft.config["quantization_config"]["ignore"].append(f"{LAYER}self_attn.v_proj")
    found = verify(source, draft.save(tmp_path / "spoiled")).problems
    assert ("config_ignored_but_quantized", f"{LAYER}self_attn.v_proj") in {(p.kind, p.where) for p in found}


def test_a_partner_of_nothing_off_the_grid_may_not_stay_dense(tmp_path: Path) -> None:
    source = noisy(tmp_path, f"{LAYER}mlp.down_proj")
    kept(source, tmp_path / "built")
    draft, original = read_draft(tmp_path / "built"), read_draft(source)
    for suffix in ("weight_packed", "weight_scale", "weight_shape"):
        draft.drop(f"{LAYER}mlp.up_proj.{suffix}")
    draft.put(f"{LAYER}mlp.up_proj.weight", original[f"{LAYER}mlp.up_proj.weight"])
    draft.config["quantization_config"]["ignore"].append(f"{LAYER}mlp.up_proj")
    found = verify(source, draft.save(tmp_path / "spoiled")).problems
    assert [(p.kind, p.where) for p in found] == [("left_dense", f"{LAYER}mlp.up_proj")]


def test_noise_is_no_reason_in_a_scheme_that_holds_any_value(tmp_path: Path) -> None:
    module = f"{LAYER}mlp.down_proj"
    source = noisy(tmp_path, module)
    build(source, tmp_path / "built", FORMATS["fp8"])
    draft = read_draft(tmp_path / "built")
    draft.drop(f"{module}.weight_scale")
    draft.put(f"{module}.weight", read_draft(source)[f"{module}.weight"])
    draft.config["quantization_config"]["ignore"].append(module)
    found = verify(source, draft.save(tmp_path / "spoiled")).problems
    assert [(p.kind, p.where) for p in found] == [("left_dense", module)]


def test_a_width_that_groups_do_not_divide_is_no_reason_either(tmp_path: Path) -> None:
    """No build of ours has one; its values are not even read."""
    tensor = Tensor("m.weight", "m", "m", Role.LINEAR, (32, 40))
    found = AsFound(FORMATS["q4w4a16"], True, (Module("m", tensor, None, True, 40),))
    with Checkpoint.open(make_toy(tmp_path / "source")) as source:
        assert [(p.kind, p.where) for p in judge_left_dense(source, found)] == [("left_dense", "m")]


@pytest.mark.parametrize("change", ["absent", "shape", "dtype"])
def test_a_source_that_is_not_what_its_config_says_judges_nothing(change: str, tmp_path: Path) -> None:
    source = make_toy(tmp_path / "source", seed=5)
    build(source, tmp_path / "built", FORMATS["fp8"])
    draft, name = read_draft(source), f"{LAYER}mlp.up_proj.weight"
    if change == "absent":
        draft.drop(name)
    elif change == "shape":
        draft[name].shape = draft[name].shape[::-1]
    else:
        draft[name].dtype = "F16"
    with pytest.raises(TensorSetMismatch, match=r"layers\.1\.mlp\.up_proj"):
        verify(draft.save(tmp_path / "other"), tmp_path / "built")
