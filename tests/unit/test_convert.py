"""Builds of miniatures: each size and format decodes to its source by a third party; same source, same bytes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks.shaped import make_checkpoint, real_config, shrunk
from quantkit.checkpoint import Checkpoint
from quantkit.errors import NotEligible, OffGrid, OutputNotUsable
from quantkit.formats import FORMATS, format_named
from quantkit.journal import JOURNAL
from tests.unit.bits import from_bf16, to_bf16
from tests.unit.conftest import Miniature
from tests.unit.files import contents, down_proj, made, spoil

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


def open_files() -> int:
    """Descriptors that this process holds."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_file_stays_open_whatever_comes_of_a_build(source: Path, tmp_path: Path) -> None:
    noisy = Path(shutil.copytree(source, tmp_path / "noisy"))
    spoil(noisy, down_proj(7), 128, to_bf16(np.random.default_rng(1).normal(0, 0.02, 32)).tobytes())
    made(source, tmp_path / "base", "q4w4a16emb4")
    made(source, tmp_path / "fp8", "fp8")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / JOURNAL).write_text("another\n")
    before = open_files()
    made(source, tmp_path / "on", "fp8emb4", on=tmp_path / "base")
    made(source, tmp_path / "on", "fp8emb4", on=tmp_path / "base")
    refusals: tuple[tuple[type[Exception], Path, str, str, dict[str, Path]], ...] = (
        (OffGrid, noisy, "noise", "q4w4a16", {}),
        (NotEligible, source, "not on", "fp8emb4", {"on": tmp_path / "fp8"}),
        (OutputNotUsable, source, "fp8", "w8a8", {}),
        (OutputNotUsable, source, "begun", "w8a8", {}),
    )
    for refusal, origin, out, name, options in refusals:
        with pytest.raises(refusal):
            made(origin, tmp_path / out, name, **options)
    assert open_files() == before


def test_a_config_with_half_a_character_is_copied(source: Path, tmp_path: Path) -> None:
    """JSON may escape one half of a surrogate pair, which no encoding of text can hold."""
    copy = Path(shutil.copytree(source, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    config["text_config"]["note"] = "\ud83d"
    (copy / "config.json").write_text(json.dumps(config))
    made(copy, tmp_path / "out", "bf16")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["note"] == "\ud83d"
