"""Builds on another build: the same bytes as from scratch, tables shared as links, and nothing of the other touched."""

import json
import os
from pathlib import Path

import pytest

from benchmarks.shaped import make_checkpoint, real_config, shrunk
from quantkit import output
from quantkit.errors import NotEligible
from quantkit.writer import ShardFile
from tests.unit.conftest import Miniature
from tests.unit.files import contents, made, spoil
from tests.unit.stopping import stopped


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
    with pytest.raises(NotEligible, match=r"of that shape, expected \[\d+, \d+\] \(name a"):
        made(miniature("E2B"), tmp_path / "on", "fp8emb4", on=tmp_path / "base")


@pytest.mark.parametrize("base", ["fp8", "q4w4a16ple4"])
def test_on_a_build_without_those_tables_is_refused(source: Path, tmp_path: Path, base: str) -> None:
    made(source, tmp_path / "base", base)
    with pytest.raises(NotEligible, match="no int4"):
        made(source, tmp_path / "on", "fp8emb4", on=tmp_path / "base")
    assert not (tmp_path / "on").exists()


def test_a_table_that_the_record_of_the_other_lacks_is_not_taken(source: Path, tmp_path: Path) -> None:
    made(source, tmp_path / "base", "q4w4a16emb4")
    record = tmp_path / "base" / "quantkit.json"
    content = json.loads(record.read_text())
    del content["tables"]["model.language_model.embed_tokens"]
    record.write_text(json.dumps(content))
    with pytest.raises(NotEligible, match=r"no int4 .*embed_tokens\.weight_packed"):
        made(source, tmp_path / "on", "fp8emb4", on=tmp_path / "base")


@pytest.mark.parametrize(
    ("owner", "name", "calls"),
    [(ShardFile, "publish", 0), (ShardFile, "publish", 1), (output, "write_atomic", 0)],
)
def test_stopped_on_another_build(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, calls: int
) -> None:
    """Also where a link was made and never named: it is dropped, not kept beside the files."""
    made(source, tmp_path / "base", "q4w4a16emb4")
    before = contents(tmp_path / "base")
    made(source, tmp_path / "scratch", "fp8emb4")
    with stopped(monkeypatch, owner, name, calls):
        made(source, tmp_path / "on", "fp8emb4", on=tmp_path / "base")
    tables = max(path.name for path in (tmp_path / "scratch").glob("*.safetensors"))
    if not (tmp_path / "on" / tables).exists():
        (tmp_path / "on" / f"{tables}.link.part").write_bytes(b"")
    made(source, tmp_path / "on", "fp8emb4", on=tmp_path / "base")
    assert contents(tmp_path / "on") == contents(tmp_path / "scratch")
    assert contents(tmp_path / "base") == before
