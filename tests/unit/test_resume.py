"""Builds that are stopped: at any block, at any step of publishing, by the disk, or by another build in the folder."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quantkit import builder, output
from quantkit.convert import build
from quantkit.errors import OutputNotUsable
from quantkit.formats import format_named
from quantkit.journal import JOURNAL, Done, Journal
from quantkit.writer import ShardFile, Stored
from tests.unit.files import contents

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


@pytest.mark.parametrize("blocks", [0, 1, 7, 100, 400])
def test_stopped_at_a_block(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, bytes], blocks: int
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stop(patch, Journal, "add", blocks, Stopped())
        with pytest.raises(Stopped):
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
    with monkeypatch.context() as patch:
        stop(patch, ShardFile, "publish", shards, Stopped())
        with pytest.raises(Stopped):
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
    with monkeypatch.context() as patch:
        stop(patch, Journal, "add", 300, Stopped())
        with pytest.raises(Stopped):
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


def test_a_published_shard_that_was_changed_is_not_overwritten(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stop(patch, ShardFile, "publish", 1, Stopped())
        with pytest.raises(Stopped):
            build(source, out, BUILD)
    shard = next(out.glob("model-00001*.safetensors"))
    with shard.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
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
    assert build(source, out, BUILD).blocks_reused > 100
    assert contents(out) == undisturbed


def test_a_disk_too_small_is_refused_before_the_first_byte(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(OutputNotUsable, match="GiB free"):
        build(source, tmp_path / "out", BUILD)
    assert list(tmp_path.iterdir()) == []


def test_a_journal_keeps_what_it_was_given(tmp_path: Path) -> None:
    done = Done("a", "b", (1, 2, 3))
    with Journal(tmp_path, "key") as journal:
        journal.add(5, done)
    with Journal(tmp_path, "key") as journal:
        assert journal.done == {5: done}
    with pytest.raises(OutputNotUsable), Journal(tmp_path, "other"):
        pass


def test_the_first_failing_block_is_the_one_that_is_told(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: builder.Builder, space: object, block: Any) -> Any:
        raise OutputNotUsable(f"block {block.number}")

    monkeypatch.setattr(builder.Builder, "encode", refuse)
    with pytest.raises(OutputNotUsable, match=r"^block 0$"):
        build(source, tmp_path / "out", BUILD, workers=4)
