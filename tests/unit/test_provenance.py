"""quantkit.json: every field by hand for one build, and hashes that depend on all that they stand for."""

import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from benchmarks.shaped import real_config, shrunk
from quantkit.provenance import Findings, join_hashes, source_hash
from tests.unit.files import made
from tests.unit.headers import plan_of


def test_a_tensor_s_hash_depends_on_the_order_of_its_blocks() -> None:
    assert join_hashes(["a", "b"]) != join_hashes(["b", "a"])


def test_a_source_s_hash_depends_on_name_dtype_shape_and_bytes_and_not_on_order() -> None:
    one, two = plan_of(shrunk(real_config("E2B")), "fp8").decisions[:2]
    expected = source_hash({one: "a", two: "b"})
    assert source_hash({two: "b", one: "a"}) == expected
    others = [
        {one: "a", two: "c"},
        {one: "a"},
        {replace(one, dtype="F16"): "a", two: "b"},
        {replace(one, tensor=replace(one.tensor, name="other")): "a", two: "b"},
        {replace(one, tensor=replace(one.tensor, shape=one.tensor.shape[::-1])): "a", two: "b"},
    ]
    assert expected not in map(source_hash, others)
    assert source_hash({replace(one, rule="other words"): "a", two: "b"}) == expected


def test_every_field(source: Path, tmp_path: Path) -> None:
    """The miniature has 96 x 64 and 96 x (35 x 32) values in its tables."""
    summary = made(source, tmp_path / "out", "fp8emb4", off_grid="keep")
    found = json.loads((tmp_path / "out" / "quantkit.json").read_text())
    tables = {name.rpartition(".")[2]: table for name, table in found.pop("tables").items()}
    assert len(found["source"].pop("hash")) == 64
    none = {"groups": 0, "groups_off_grid": 0, "negative_steps": 0, "values_bit_identical": 0}
    assert found == {
        "schema_version": 1,
        "quantkit": version("quantkit"),
        "format": "fp8emb4",
        "off_grid": "keep",
        "kept": [],
        "source": {
            "model_type": "gemma4",
            "architectures": ["Gemma4ForConditionalGeneration"],
            "tensors": 540,
            "tensors_left_out": 3,
        },
        "linears": none,
    }
    groups = {"embed_tokens": 96 * 64 // 32, "embed_tokens_per_layer": 96 * 35}
    assert {name: table["groups"] for name, table in tables.items()} == groups
    assert summary.found.groups == sum(groups.values())
    assert set(tables["embed_tokens"]) == {"source", "stored", *none}
    made(source, tmp_path / "q4", "q4w4a16emb4")
    both = json.loads((tmp_path / "q4" / "quantkit.json").read_text())
    values = sum(
        d.tensor.values for d in plan_of(shrunk(real_config("E2B")), "q4w4a16").decisions if d.scheme
    )
    assert both["linears"]["groups"] == values // 32
    assert {name.rpartition(".")[2]: table for name, table in both["tables"].items()} == tables
    assert summary.found == sum((Findings(**{n: t[n] for n in none}) for t in tables.values()), Findings())
