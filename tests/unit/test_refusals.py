"""Bad input: one sentence each, nothing under a final name, nothing of others touched."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks.shaped import make_checkpoint, real_config, shrunk
from quantkit.checkpoint import Checkpoint
from quantkit.convert import KEEP, build
from quantkit.errors import BadHeader, NotACheckpoint, NotEligible, OffGrid, OutputNotUsable, UnknownModel
from quantkit.formats import FORMATS, format_named
from quantkit.verify import verify
from tests.unit.bits import to_bf16
from tests.unit.conftest import Miniature
from tests.unit.files import contents, down_proj, spoil

PREFIX = "model.language_model."
NOISE = to_bf16(np.random.default_rng(1).normal(0, 0.02, 32)).tobytes()


@pytest.fixture
def copy(source: Path, tmp_path: Path) -> Path:
    """A source of one's own, to be spoilt."""
    return Path(shutil.copytree(source, tmp_path / "source"))


@pytest.mark.parametrize(
    "name", [name for name, fmt in FORMATS.items() if fmt.linears and fmt.linears.packed]
)
def test_an_off_grid_linear_is_refused(copy: Path, tmp_path: Path, name: str) -> None:
    spoil(copy, down_proj(7), 128, NOISE)
    with pytest.raises(OffGrid, match=r"layers\.7\.mlp\.down_proj.*1 of .* groups off the 4-bit grid"):
        build(copy, tmp_path / "out", format_named(name))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["fp8", "w8a8", "fp8fnuz", "bf16"])
def test_an_off_grid_linear_is_nothing_to_other_formats(copy: Path, tmp_path: Path, name: str) -> None:
    spoil(copy, down_proj(7), 128, NOISE)
    assert build(copy, tmp_path / "out", format_named(name), off_grid=KEEP).kept == ()


@pytest.mark.parametrize("off_grid", ["refuse", "keep"])
@pytest.mark.parametrize("table", ["embed_tokens", "embed_tokens_per_layer"])
def test_an_off_grid_table_is_never_packed(copy: Path, tmp_path: Path, table: str, off_grid: str) -> None:
    spoil(copy, f"{PREFIX}{table}.weight", 128, NOISE)
    with pytest.raises(OffGrid, match=table):
        build(copy, tmp_path / "out", format_named("fp8emb4"), off_grid=off_grid)
    assert not (tmp_path / "out").exists()


def test_kept_linears_are_bf16_and_ignored(copy: Path, tmp_path: Path) -> None:
    spoil(copy, down_proj(7), 128, NOISE)
    spoil(copy, f"{PREFIX}layers.3.self_attn.v_proj.weight", 64, NOISE)
    made = build(copy, tmp_path / "out", format_named("q4w4a16"), off_grid=KEEP)
    kept = sorted([down_proj(7), *(f"{PREFIX}layers.3.self_attn.{part}_proj.weight" for part in "kqv")])
    assert [f"{module}.weight" for module in made.kept] == kept
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert sorted(config["quantization_config"]["ignore"]) == sorted([*made.kept, "lm_head"])
    with Checkpoint.open(copy) as original, Checkpoint.open(tmp_path / "out") as built:
        for tensor in kept:
            rows = original.entries[tensor].shape[0]
            assert (original.rows(tensor, 0, rows) == built.rows(tensor, 0, rows)).all()
            assert tensor.replace(".weight", ".weight_packed") not in built.entries
    assert json.loads((tmp_path / "out" / "quantkit.json").read_text())["kept"] == list(made.kept)
    assert made.found.groups_off_grid == 0


def test_an_off_grid_group_is_found_in_any_block(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantkit.blocks.BLOCK_BYTES", 1024)
    spoil(copy, down_proj(7), 4096, NOISE)
    made = build(copy, tmp_path / "out", format_named("q4w4a16"), off_grid=KEEP)
    assert [f"{module}.weight" for module in made.kept] == [down_proj(7)]


@pytest.mark.parametrize(("size", "layer"), [("E2B", 3), ("12B", 5), ("12B", 4)])
def test_the_judge_agrees_with_a_build_that_keeps(
    miniature: Miniature, tmp_path: Path, size: str, layer: int
) -> None:
    source = Path(shutil.copytree(miniature(size), tmp_path / "source"))
    spoil(source, f"{PREFIX}layers.{layer}.self_attn.k_proj.weight", 64, NOISE)
    made = build(source, tmp_path / "out", format_named("q4w4a16"), off_grid=KEEP)
    assert made.kept
    assert verify(source, tmp_path / "out").problems == ()


@pytest.mark.parametrize("name", ["fp8", "w8a8", "fp8fnuz"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_infinity_and_nan_are_refused(copy: Path, tmp_path: Path, name: str, value: float) -> None:
    spoil(copy, down_proj(0), 10, to_bf16([value]).tobytes())
    with pytest.raises(NotEligible, match=r"layers\.0\.mlp\.down_proj.*infinity or NaN"):
        build(copy, tmp_path / "out", format_named(name))
    assert not (tmp_path / "out").exists()


def test_a_truncated_shard_is_refused(copy: Path, tmp_path: Path) -> None:
    shard = next(copy.glob("*.safetensors"))
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 1)
    with pytest.raises(BadHeader):
        build(copy, tmp_path / "out", format_named("fp8"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ["nothing", "a file", "no config"])
def test_no_checkpoint(copy: Path, tmp_path: Path, what: str) -> None:
    source = {"nothing": tmp_path / "none", "a file": copy / "config.json", "no config": copy}[what]
    if what == "no config":
        (copy / "config.json").unlink()
    with pytest.raises(NotACheckpoint):
        build(source, tmp_path / "out", format_named("fp8"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", [{"model_type": "llama"}, {"text_config": {"enable_moe_block": True}}])
def test_a_model_that_nobody_described(copy: Path, tmp_path: Path, change: dict[str, object]) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UnknownModel, match=r"gemma4|dense"):
        build(copy, tmp_path / "out", format_named("fp8"))
    assert not (tmp_path / "out").exists()


def test_the_output_is_the_source(copy: Path) -> None:
    before = contents(copy)
    for out in (copy, copy / ".." / copy.name):
        with pytest.raises(OutputNotUsable, match="the source itself"):
            build(copy, out, format_named("fp8"))
    assert contents(copy) == before


@pytest.mark.parametrize("name", ["notes.txt", "config.json", "quantkit.json"])
def test_an_output_that_is_not_empty(source: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(OutputNotUsable, match="nothing was touched"):
        build(source, tmp_path, format_named("fp8"))
    assert contents(tmp_path) == {name: b"mine"}


@pytest.mark.parametrize("out", ["/proc/quantkit/out", "file", "file/below"])
def test_an_output_that_cannot_be_written(source: Path, tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputNotUsable):
        build(source, tmp_path / out, format_named("fp8"))
    assert contents(tmp_path) == {"file": b"mine"}


def test_an_alien_quantization_config_is_kept_as_provenance(tmp_path: Path) -> None:
    alien = {"bits": 4, "note": "no quant_method"}
    source = make_checkpoint(
        tmp_path / "source", shrunk(real_config("E2B"), 6) | {"quantization_config": alien}
    )
    build(source, tmp_path / "out", format_named("fp8"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    recorded = json.loads((tmp_path / "out" / "quantkit.json").read_text())
    assert recorded["source"]["quantization_config"] == alien
