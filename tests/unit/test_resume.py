"""Builds that are stopped: at any block, at any step of publishing, by the disk, or by another build in the folder."""

import errno
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quantkit import builder, output
from quantkit.convert import build
from quantkit.errors import OutputNotUsable
from quantkit.formats import format_named
from quantkit.journal import JOURNAL, Journal
from quantkit.writer import ShardFile
from tests.unit.files import contents
from tests.unit.stopping import Stopped, stop, stopped, write_log

BUILD = format_named("fp8emb4")


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a build that nobody stopped looks like."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    build(source, out, BUILD)
    return contents(out)


@pytest.mark.parametrize("blocks", [0, 1, 7, 100, 400])
def test_stopped_at_a_block(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, bytes], blocks: int
) -> None:
    out = tmp_path / "out"
    with stopped(monkeypatch, Journal, "add", blocks):
        build(source, out, BUILD)
    assert "config.json" not in contents(out)
    written = write_log(monkeypatch)
    summary = build(source, out, BUILD)
    assert summary.blocks_reused == blocks
    assert contents(out) == undisturbed
    assert len(written) == len(set(written))
    assert len(written) < 3 * (summary.blocks - blocks) + 10


@pytest.mark.parametrize("step", range(7))
def test_stopped_while_publishing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, bytes], step: int
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stop(patch, output, "write_atomic", step, Stopped())
        if step == 6:
            stop(patch, Journal, "remove", 0, Stopped())
        with pytest.raises(Stopped):
            build(source, out, BUILD)
    assert ("config.json" in contents(out)) == (step == 6)  # the config comes last: with it, a build is whole
    written = write_log(monkeypatch)
    build(source, out, BUILD)
    assert contents(out) == undisturbed
    assert written == []


@pytest.mark.parametrize("shards", [0, 1])
def test_stopped_between_two_shards(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, bytes], shards: int
) -> None:
    out = tmp_path / "out"
    with stopped(monkeypatch, ShardFile, "publish", shards):
        build(source, out, BUILD)
    assert len([name for name in contents(out) if name.endswith(".safetensors")]) == shards
    written = write_log(monkeypatch)
    build(source, out, BUILD)
    assert contents(out) == undisturbed
    assert written == []


@pytest.fixture
def half_done(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a build stopped after 300 blocks."""
    out = tmp_path / "out"
    with stopped(monkeypatch, Journal, "add", 300):
        build(source, out, BUILD)
    return out


def test_a_torn_last_line_is_dropped(source: Path, half_done: Path, undisturbed: dict[str, bytes]) -> None:
    journal = half_done / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-5])
    assert build(source, half_done, BUILD).blocks_reused == 299
    assert contents(half_done) == undisturbed


def test_bytes_that_the_journal_does_not_vouch_for_are_made_anew(
    source: Path, half_done: Path, undisturbed: dict[str, bytes]
) -> None:
    part = next(half_done.glob("model-00001*.part"))
    data = bytearray(part.read_bytes())
    header = 8 + int.from_bytes(data[:8], "little")
    data[header:] = bytes(len(data) - header)  # as after a power cut: the file is there, the data is not
    part.write_bytes(data)
    assert build(source, half_done, BUILD).blocks_reused < 300
    assert contents(half_done) == undisturbed


@pytest.mark.parametrize("damage", ["", "nonsense\n", '[1, "a"]\n', '[900, "a", "b", [0, 0, 0]]\n'])
def test_a_journal_with_strange_lines(
    source: Path, half_done: Path, undisturbed: dict[str, bytes], damage: str
) -> None:
    with (half_done / JOURNAL).open("a") as file:
        file.write(damage)
    build(source, half_done, BUILD)
    assert contents(half_done) == undisturbed


@pytest.mark.parametrize("name", ["fp8", "w8a8emb4"])
def test_an_unfinished_build_of_another_format_is_left_alone(
    source: Path, half_done: Path, name: str
) -> None:
    before = contents(half_done)
    with pytest.raises(OutputNotUsable, match="unfinished build of another"):
        build(source, half_done, format_named(name))
    assert contents(half_done) == before


def test_two_builds_into_one_folder(source: Path, half_done: Path) -> None:
    first = (half_done / JOURNAL).read_text().splitlines()[0]
    with Journal(half_done, json.loads(first)["key"]), pytest.raises(OutputNotUsable, match="another build"):
        build(source, half_done, BUILD)


def test_a_published_shard_needs_no_journal_to_be_known(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, bytes]
) -> None:
    """A power cut can take the journal, which is not synced line by line, and leave the shard, which is."""
    out = tmp_path / "out"
    with stopped(monkeypatch, ShardFile, "publish", 1):
        build(source, out, BUILD)
    (out / JOURNAL).write_bytes(b"")
    assert build(source, out, BUILD).blocks_reused == 0
    assert contents(out) == undisturbed


@pytest.mark.parametrize("cut", [False, True])
def test_a_published_shard_that_was_changed_is_not_overwritten(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    out = tmp_path / "out"
    with stopped(monkeypatch, ShardFile, "publish", 1):
        build(source, out, BUILD)
    shard = next(out.glob("model-00001*.safetensors"))
    with shard.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
        file.truncate(shard.stat().st_size - cut)
    with pytest.raises(OutputNotUsable, match="changed after it was published"):
        build(source, out, BUILD)


def test_a_full_disk_is_one_sentence_and_loses_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, bytes]
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stop(patch, os, "pwrite", 500, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        with pytest.raises(OutputNotUsable, match=r"No space left.*what is done is kept"):
            build(source, out, BUILD)
    # Each line is written after its bytes, so all of them hold.
    vouched = len((out / JOURNAL).read_bytes().splitlines()) - 1
    assert build(source, out, BUILD).blocks_reused == vouched > 100
    assert contents(out) == undisturbed


def test_what_is_written_counts_where_the_disk_is_full(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, bytes]
) -> None:
    out = tmp_path / "out"
    with stopped(monkeypatch, ShardFile, "publish", 0):
        build(source, out, BUILD)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 16))
    build(source, out, BUILD)
    assert contents(out) == undisturbed


def test_room_that_was_only_asked_for_does_not_count(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files have their full length from the first call on, and take no disk until they are written."""
    monkeypatch.setattr(ShardFile, "write_rows", lambda *about: None)
    with stopped(monkeypatch, ShardFile, "publish", 0):
        build(source, tmp_path / "out", BUILD)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 16))
    with pytest.raises(OutputNotUsable, match="65,536 bytes free"):
        build(source, tmp_path / "out", BUILD)


def test_a_disk_that_holds_just_the_build_suffices(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, bytes]
) -> None:
    needed = sum(len(data) for name, data in undisturbed.items() if name.endswith(".safetensors"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed))
    build(source, tmp_path / "out", BUILD)
    assert contents(tmp_path / "out") == undisturbed


def test_a_folder_that_cannot_be_gone_on_with_is_let_go(source: Path, half_done: Path) -> None:
    part = max(half_done.glob("model-*.part"))
    part.unlink()
    part.mkdir()
    for _ in range(2):
        with pytest.raises(OutputNotUsable, match="Is a directory"):
            build(source, half_done, BUILD)


def test_a_journal_beside_the_source_is_not_taken_for_ours(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, bytes]
) -> None:
    copy = Path(shutil.copytree(source, tmp_path / "copy"))
    (copy / JOURNAL).write_text("of the build that this source was\n")
    with stopped(monkeypatch, output, "write_atomic", 4):
        build(copy, tmp_path / "out", BUILD)
    build(copy, tmp_path / "out", BUILD)
    assert contents(tmp_path / "out") == undisturbed


@pytest.mark.parametrize("module", ["lm_head", "model.language_model.embed_tokens"])
def test_a_table_and_its_head_are_both_looked_at(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """They store the same codes: where one of them was lost, the other does not vouch for it."""
    monkeypatch.setattr("quantkit.blocks.BLOCK_BYTES", 1024)
    build(source, tmp_path / "whole", BUILD)
    out = tmp_path / "out"
    with stopped(monkeypatch, ShardFile, "publish", 0):
        build(source, out, BUILD)
    part = max(out.glob("model-*.part"))
    data = bytearray(part.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    first, last = json.loads(data[8:begin])[f"{module}.weight_packed"]["data_offsets"]
    data[begin + first : begin + last] = bytes(last - first)
    part.write_bytes(data)
    build(source, out, BUILD)
    assert contents(out) == contents(tmp_path / "whole")


def test_a_disk_too_small_is_refused_before_the_first_byte(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(OutputNotUsable, match="1,000 bytes free"):
        build(source, tmp_path / "out", BUILD)
    assert list(tmp_path.iterdir()) == []


def test_the_first_failing_block_is_the_one_that_is_told(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: builder.Builder, space: object, block: Any) -> Any:
        raise OutputNotUsable(f"block {block.number}")

    monkeypatch.setattr(builder.Builder, "encode", refuse)
    with pytest.raises(OutputNotUsable, match=r"^block 0$"):
        build(source, tmp_path / "out", BUILD, workers=4)
