"""A finished build met again: left alone where it is the one asked for, and refused where it is not."""

import shutil
from pathlib import Path

import pytest

from benchmarks.shaped import make_checkpoint, real_config, shrunk
from quantkit import blocks
from quantkit.errors import BadHeader, OutputNotUsable
from tests.unit.files import contents, down_proj, made, spoil

STRANGE = (
    "[]",
    "{}",
    '{"tables": [], "linears": {}, "source": {}}',
    '{"tables": {"a": 1}, "linears": {}, "source": 0}',
)


@pytest.mark.parametrize("content", STRANGE)
def test_a_record_of_another_form_is_one_sentence(source: Path, tmp_path: Path, content: str) -> None:
    made(source, tmp_path / "base", "q4w4a16emb4")
    (tmp_path / "base" / "quantkit.json").write_text(content)
    with pytest.raises(BadHeader, match=r"quantkit\.json"):
        made(source, tmp_path / "on", "fp8emb4", on=tmp_path / "base")
    with pytest.raises(BadHeader, match=r"quantkit\.json"):
        made(source, tmp_path / "base", "q4w4a16emb4")


def test_a_finished_build_met_again_is_left_alone(source: Path, tmp_path: Path) -> None:
    made(source, tmp_path / "out", "fp8")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert made(source, tmp_path / "out", "fp8").blocks == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


def test_a_build_that_another_process_has_just_finished_is_left_alone(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was unfinished when this call looked at the folder, and whole when its turn came."""
    made(source, tmp_path / "out", "fp8")
    before = contents(tmp_path / "out")
    monkeypatch.setattr("quantkit.convert.prepare_folder", lambda *about: False)
    for name in ("w8a8", "fp8"):
        with pytest.raises(OutputNotUsable, match=r"just ended there.*again"):
            made(source, tmp_path / "out", name)
        assert contents(tmp_path / "out") == before


def test_a_finished_build_of_another_kind_or_source_is_refused(source: Path, tmp_path: Path) -> None:
    made(source, tmp_path / "out", "fp8")
    with pytest.raises(OutputNotUsable, match="another kind: format 'fp8', expected format 'w8a8' "):
        made(source, tmp_path / "out", "w8a8")
    other = make_checkpoint(tmp_path / "other", shrunk(real_config("E2B")), seed=2)
    with pytest.raises(OutputNotUsable, match="another source"):
        made(other, tmp_path / "out", "fp8")
    config = (tmp_path / "out" / "config.json").read_bytes()
    (tmp_path / "out" / "config.json").write_text("{}")
    with pytest.raises(OutputNotUsable, match="changed since"):
        made(source, tmp_path / "out", "fp8")
    (tmp_path / "out" / "config.json").write_bytes(config)
    made(source, tmp_path / "out", "fp8")


@pytest.mark.parametrize("damage", ["shorter", "header", "gone"])
def test_a_finished_build_whose_shard_was_changed_is_refused(
    source: Path, tmp_path: Path, damage: str
) -> None:
    made(source, tmp_path / "out", "fp8")
    shard = next((tmp_path / "out").glob("*.safetensors"))
    data = shard.read_bytes()
    shard.unlink()
    if damage != "gone":
        shard.write_bytes(data[:-1] if damage == "shorter" else data.replace(b'"pt"', b'"np"', 1))
    with pytest.raises(OutputNotUsable, match="changed since"):
        made(source, tmp_path / "out", "fp8")


def test_a_finished_build_of_the_same_weights_in_another_checkpoint_is_refused(
    source: Path, tmp_path: Path
) -> None:
    """Its record says what the source was: with towers here, text alone there."""
    made(source, tmp_path / "bf16", "bf16")
    made(source, tmp_path / "out", "fp8")
    with pytest.raises(OutputNotUsable, match=r"kind: .*tensors_left_out 3, expected .*tensors_left_out 0"):
        made(tmp_path / "bf16", tmp_path / "out", "fp8")


def test_a_finished_build_is_known_by_every_row_of_the_source(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1024)
    made(source, tmp_path / "out", "bf16")
    assert made(source, tmp_path / "out", "bf16").blocks == 0
    other = Path(shutil.copytree(source, tmp_path / "other"))
    spoil(other, down_proj(0), 4096)
    with pytest.raises(OutputNotUsable, match="another source"):
        made(other, tmp_path / "out", "bf16")
