"""Builds that are stopped: at any block, at any step of publishing, by the disk, or by another build in the folder."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quantkit import builder, output
from quantkit.convert import build
from quantkit.errors import OutputNotUsable
from quantkit.formats import format_named
from quantkit.journal import JOURNAL, Journal
from quantkit.writer import ShardFile, Stored
from tests.unit.files import contents, down_proj, spoil

BUILD = format_named("fp8emb4")


class Stopped(Exception):
    """Stands for whatever ends a process."""


def failing_after(count: int, function: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """The function, until it has been called so many times."""
    calls = iter(range(count))

    def call(*arguments: Any) -> Any:
        if next(calls, None) is None:
            raise error
        return function(*arguments)

    return call


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a build that nobody stopped looks like."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    build(source, out, BUILD)
    return contents(out)


def stop(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, count: int, error: Exception) -> None:
    """Let one function fail after so many calls."""
    monkeypatch.setattr(owner, name, failing_after(count, getattr(owner, name), error))


@contextmanager
def stopped(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, count: int) -> Iterator[None]:
    """A build that is stopped by one function after so many calls."""
    with monkeypatch.context() as patch:
        stop(patch, owner, name, count, Stopped())
        with pytest.raises(Stopped):
            yield


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


def write_log(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Tensor and row of every write from now on."""
    written: list[tuple[str, int]] = []
    original = ShardFile.write_rows

    def logged(self: ShardFile, tensor: Stored, start_row: int, data: memoryview) -> None:
        written.append((tensor.name, start_row))
        original(self, tensor, start_row, data)

    monkeypatch.setattr(ShardFile, "write_rows", logged)
    return written


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


def test_an_unfinished_build_of_a_source_that_changed_is_left_alone(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, out = Path(shutil.copytree(source, tmp_path / "copy")), tmp_path / "out"
    with stopped(monkeypatch, Journal, "add", 20):
        build(copy, out, BUILD)
    spoil(copy, down_proj(0), 0)
    with pytest.raises(OutputNotUsable, match="unfinished build of another source"):
        build(copy, out, BUILD)


def test_an_unfinished_build_on_another_goes_on_on_it_alone(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it took over has its findings in that other build."""
    build(source, tmp_path / "base", format_named("q4w4a16emb4"))
    with stopped(monkeypatch, ShardFile, "publish", 0):
        build(source, tmp_path / "out", BUILD, on=tmp_path / "base")
    with pytest.raises(OutputNotUsable, match="unfinished build of another"):
        build(source, tmp_path / "out", BUILD)


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
