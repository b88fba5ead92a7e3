"""Builds of miniatures: each size and format decodes to its source by a third party; same source, same bytes."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.shaped import make_checkpoint, real_config, shrunk
from quantkit.checkpoint import Checkpoint
from quantkit.convert import Summary, build
from quantkit.errors import BadHeader, NotEligible, OutputNotUsable
from quantkit.formats import FORMATS, format_named
from tests.unit.bits import from_bf16
from tests.unit.conftest import Miniature
from tests.unit.files import contents, spoil

# every format once, and every scheme at every size
DECODED = [("E2B", name) for name in FORMATS]
DECODED += [
    (size, name) for size in ("E4B", "12B", "31B") for name in ("fp8emb4", "fp8fnuz", "w8a8", "q4w4a16")
]
BOUNDS = {
    "F8_E4M3": 16 / 448,
    "F8_E4M3FNUZ": 8 / 240,
    "I8": 0.5 / 127,
    "I32": 2.0**-7,
}  # over the row's absmax


def made(source: Path, out: Path, name: str, **options: object) -> Summary:
    """A build, by the format's name."""
    return build(source, out, format_named(name), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "name"), DECODED)
def test_a_third_party_decodes_every_build(
    miniature: Miniature, tmp_path: Path, size: str, name: str
) -> None:
    from tests.unit.third_opinion import all_tensors, decompressed  # brings torch

    source = miniature(size)
    made(source, tmp_path / "out", name)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    tensors = all_tensors(tmp_path / "out")
    groups = config.get("quantization_config", {}).get("config_groups", {})
    with Checkpoint.open(source) as original, Checkpoint.open(tmp_path / "out") as built:
        for group, scheme in zip(groups.values(), format_named(name).schemes, strict=True):
            suffix = ".weight_packed" if scheme.packed else ".weight"
            codes = [
                n for n, e in built.entries.items() if n.endswith(suffix) and e.dtype == scheme.code_dtype
            ]
            assert codes
            for module in (code.removesuffix(suffix) for code in codes):
                values = decompressed(group, module, tensors)
                table = "model.language_model.embed_tokens" if module == "lm_head" else module
                rows = from_bf16(original.rows(f"{table}.weight", 0, len(values)))
                bound = (BOUNDS[scheme.code_dtype] + 2.0**-22) * np.abs(rows).max(axis=1, keepdims=True)
                assert (np.abs(values - rows) <= bound).all(), module


@pytest.mark.parametrize("name", FORMATS)
def test_other_tensors_and_side_files_are_copied(source: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    found = made(source, out, name)
    with Checkpoint.open(source) as original, Checkpoint.open(out) as built:
        same = [n for n, entry in built.entries.items() if n in original.entries and entry.dtype == "BF16"]
        assert len([n for n in same if not n.endswith("weight_scale")]) == found.copied
        for tensor in same:
            rows = original.entries[tensor].shape[0]
            assert (original.rows(tensor, 0, rows) == built.rows(tensor, 0, rows)).all()
        assert not [n for n in built.entries if "vision_tower" in n]
        for path in original.side_files():
            assert (out / path.name).read_bytes() == path.read_bytes()
    assert not [path.name for path in out.iterdir() if path.name.endswith((".part", ".journal"))]
    assert sum(path.stat().st_size for path in out.glob("*.safetensors")) == found.file_bytes


@pytest.mark.parametrize("name", ["fp8emb4", "q4w4a16"])
def test_the_same_bytes_whatever_the_workers(source: Path, tmp_path: Path, name: str) -> None:
    made(source, tmp_path / "one", name, workers=1)
    made(source, tmp_path / "three", name, workers=3)
    assert contents(tmp_path / "one") == contents(tmp_path / "three")


def test_one_file_or_many_give_the_same_bytes(source: Path, tmp_path: Path) -> None:
    sharded = make_checkpoint(tmp_path / "many", shrunk(real_config("E2B")), shard_bytes=1 << 17)
    assert len(list(sharded.glob("*.safetensors"))) > 5
    made(source, tmp_path / "a", "w8a8emb4")
    made(sharded, tmp_path / "b", "w8a8emb4")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_text_only_copy_is_a_source_like_any_other(source: Path, tmp_path: Path) -> None:
    made(source, tmp_path / "bf16", "bf16")
    made(source, tmp_path / "a", "fp8emb4")
    made(tmp_path / "bf16", tmp_path / "b", "fp8emb4")
    a, b = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert set(a) == set(b)
    assert {name for name in a if a[name] != b[name]} == {"quantkit.json"}  # it says what the source was
    hashes = [json.loads(files["quantkit.json"])["source"]["hash"] for files in (a, b)]
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("name", ["fp8emb4", "w8a8emb4", "q4w4a16ple4"])
def test_on_another_build_gives_the_same_bytes(source: Path, tmp_path: Path, name: str) -> None:
    base = "q4w4a16ple4" if name.endswith("ple4") else "q4w4a16emb4"
    made(source, tmp_path / "base", base)
    before = contents(tmp_path / "base")
    made(source, tmp_path / "scratch", name)
    made(source, tmp_path / "on", name, on=tmp_path / "base")
    assert contents(tmp_path / "on") == contents(tmp_path / "scratch")
    assert contents(tmp_path / "base") == before
    tables = [path for path in (tmp_path / "on").glob("*.safetensors") if path.stat().st_nlink == 2]
    assert len(tables) == 1


def test_on_a_build_across_disks_copies(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(self: Path, target: Path) -> None:
        raise OSError(18, os.strerror(18))

    made(source, tmp_path / "base", "q4w4a16emb4")
    made(source, tmp_path / "scratch", "fp8emb4")
    monkeypatch.setattr(Path, "hardlink_to", no_links)
    made(source, tmp_path / "on", "fp8emb4", on=tmp_path / "base")
    assert contents(tmp_path / "on") == contents(tmp_path / "scratch")


def test_on_a_build_of_other_weights_is_refused(source: Path, tmp_path: Path) -> None:
    other = make_checkpoint(tmp_path / "other", shrunk(real_config("E2B")), seed=2)
    made(other, tmp_path / "base", "q4w4a16emb4")
    with pytest.raises(NotEligible, match="source hash"):
        made(source, tmp_path / "on", "fp8emb4", on=tmp_path / "base")
    assert not (tmp_path / "on").exists()


def test_on_a_damaged_build_is_refused(source: Path, tmp_path: Path) -> None:
    made(source, tmp_path / "base", "q4w4a16emb4")
    spoil(tmp_path / "base", "lm_head.weight_packed", 0)
    spoil(tmp_path / "base", "model.language_model.embed_tokens.weight_packed", 0)
    with pytest.raises(NotEligible, match="stored hash"):
        made(source, tmp_path / "on", "fp8emb4", on=tmp_path / "base")


def test_on_a_build_of_another_size_is_refused(miniature: Miniature, tmp_path: Path) -> None:
    made(miniature("E4B"), tmp_path / "base", "q4w4a16emb4")
    with pytest.raises(NotEligible, match="of that shape"):
        made(miniature("E2B"), tmp_path / "on", "fp8emb4", on=tmp_path / "base")


@pytest.mark.parametrize("base", ["fp8", "q4w4a16ple4"])
def test_on_a_build_without_those_tables_is_refused(source: Path, tmp_path: Path, base: str) -> None:
    made(source, tmp_path / "base", base)
    with pytest.raises(NotEligible, match="no int4"):
        made(source, tmp_path / "on", "fp8emb4", on=tmp_path / "base")
    assert not (tmp_path / "on").exists()


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
    with pytest.raises(OutputNotUsable, match="another kind"):
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
    shard = next((tmp_path / "out").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(OutputNotUsable, match="changed since"):
        made(source, tmp_path / "out", "fp8")
