"""safetensors files: literal bytes, alignment, shards, and names that appear only when a file is whole."""

import errno
import json
import os
import tracemalloc
from pathlib import Path

import pytest
from safetensors import safe_open

from quantkit.errors import OutputNotUsable
from quantkit.writer import (
    Shard,
    ShardFile,
    Stored,
    index_bytes,
    make_shards,
    named_write_errors,
    write_atomic,
)

A = Stored("a", "BF16", (2, 3))
B = Stored("b", "I64", (2,))
HEADER = (
    b'{"__metadata__":{"format":"pt"},"b":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},'
    b'"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[16,28]}}'
)


def write(folder: Path, shard: Shard) -> Path:
    """Write a shard whose bytes count up."""
    with ShardFile(folder, shard) as file:
        file.prepare()
        for tensor in shard.tensors:
            file.write_rows(tensor, 0, memoryview(bytes(range(tensor.size_bytes))))
        file.publish()
    return file.path


def test_literal_bytes(tmp_path: Path) -> None:
    (shard,) = make_shards([[A, B]], 1 << 20)
    text = HEADER + b" " * (-len(HEADER) % 8)
    expected = len(text).to_bytes(8, "little") + text + bytes(range(16)) + bytes(range(12))
    path = write(tmp_path, shard)
    assert path.name == "model-00001-of-00001.safetensors"
    assert path.read_bytes() == expected
    assert shard.size_bytes == len(expected)


def test_the_safetensors_library_reads_every_dtype(tmp_path: Path) -> None:
    tags = ("BF16", "F32", "I64", "I32", "I8", "F8_E4M3", "F8_E4M3FNUZ")
    path = write(tmp_path, Shard("x.safetensors", tuple(Stored(tag, tag, (3, 4)) for tag in tags)))
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert sorted(file.keys()) == sorted(tags)
        assert all(list(file.get_tensor(tag).shape) == [3, 4] for tag in tags)


def test_every_tensor_is_aligned_to_its_item_size() -> None:
    odd = [Stored("scalar", "BF16", (1,)), Stored("codes", "F8_E4M3", (3, 5)), Stored("scale", "F32", (3, 1))]
    (shard,) = make_shards([[*odd, B]], 1 << 20)
    header = json.loads(shard.header[8:])
    assert len(shard.header) % 8 == 0
    assert all(header[tensor.name]["data_offsets"][0] % tensor.item_bytes == 0 for tensor in shard.tensors)


def test_streams_never_share_a_shard_and_a_large_tensor_has_its_own() -> None:
    def row(name: str, size: int) -> Stored:
        return Stored(name, "I8", (size, 1))

    shards = make_shards([[row("a", 6), row("b", 5), row("c", 5)], [row("d", 1), row("e", 99)]], 10)
    assert [[tensor.name for tensor in shard.tensors] for shard in shards] == [
        ["a"],
        ["b", "c"],
        ["d"],
        ["e"],
    ]
    assert [shard.name for shard in shards][-1] == "model-00004-of-00004.safetensors"
    index = json.loads(index_bytes(shards))
    assert index["metadata"] == {"total_size": 116}
    assert index["weight_map"]["c"] == "model-00002-of-00004.safetensors"
    assert list(json.loads(index_bytes([shards[1], shards[0]]))["weight_map"]) == ["a", "b", "c"]


def test_no_final_name_before_publish(tmp_path: Path) -> None:
    with ShardFile(tmp_path, Shard("x.safetensors", (A,))) as file:
        file.prepare()
        file.write_rows(A, 0, memoryview(bytes(12)))
        assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors.part"]
        file.publish()
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_bytes_are_on_disk_before_a_name_stands_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []
    rename = Path.rename

    def logged_sync(fd: int) -> None:
        seen.append(("sync", Path(f"/proc/self/fd/{fd}").readlink().name))

    def logged_rename(self: Path, target: Path) -> Path:
        seen.append(("rename", self.name))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", logged_sync)
    monkeypatch.setattr(Path, "rename", logged_rename)
    write(tmp_path, Shard("x.safetensors", (A,)))
    write_atomic(tmp_path / "config.json", b"{}")
    parts = ("x.safetensors.part", "config.json.part")
    assert seen == [
        step for part in parts for step in (("sync", part), ("rename", part), ("sync", tmp_path.name))
    ]


def test_a_write_cut_short_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_at, read_at = os.pwrite, os.preadv
    whole = write(tmp_path, Shard("x.safetensors", (A, B))).read_bytes()
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write_at(fd, bytes(data)[:5], at))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: read_at(fd, [buffers[0][:5]], at))
    path = write(tmp_path, Shard("y.safetensors", (A, B)))
    assert path.read_bytes() == whole
    with ShardFile(tmp_path, Shard("y.safetensors", (A, B))) as file:
        buffer = bytearray(B.size_bytes)
        assert file.read_rows(B, 0, memoryview(buffer))
    assert buffer == bytes(range(B.size_bytes))


def test_a_file_begun_keeps_its_rows(tmp_path: Path) -> None:
    shard = Shard("x.safetensors", (A,))
    with ShardFile(tmp_path, shard) as file:
        file.prepare()
        file.write_rows(A, 1, memoryview(b"abcdef"))
    with ShardFile(tmp_path, shard) as file:
        file.prepare()
        buffer = bytearray(6)
        assert file.read_rows(A, 1, memoryview(buffer))
    assert buffer == b"abcdef"


@pytest.mark.parametrize("length", [0, 5, 100, 1000])
def test_a_file_killed_while_it_was_made_is_mended(tmp_path: Path, length: int) -> None:
    shard = Shard("x.safetensors", (A,))
    (tmp_path / "x.safetensors.part").write_bytes(bytes(length))
    path = write(tmp_path, shard)
    assert path.read_bytes() == shard.header + bytes(range(12))


def test_shared_bytes_are_never_written(tmp_path: Path) -> None:
    shard = Shard("x.safetensors", (A,))
    twin = write(tmp_path, shard)
    before = twin.read_bytes()
    (tmp_path / "on").mkdir()
    with ShardFile(tmp_path / "on", shard) as file:
        assert file.link(twin)
        assert file.linked
    with ShardFile(
        tmp_path / "on", shard
    ) as file:  # as after a kill: the link is dropped, not written through
        file.prepare()
        file.write_rows(A, 0, memoryview(b"x" * 12))
    assert twin.read_bytes() == before


def test_a_twin_with_another_header_is_not_linked(tmp_path: Path) -> None:
    twin = write(tmp_path, Shard("x.safetensors", (B,)))
    (tmp_path / "on").mkdir()
    with ShardFile(tmp_path / "on", Shard("x.safetensors", (A,))) as file:
        assert not file.link(twin)
        assert not file.read_only


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "what is done is kept"),
        (errno.EDQUOT, "raise the quota"),
        (errno.EACCES, "may write"),
        (errno.EROFS, "writable disk"),
    ],
)
def test_what_the_disk_says_becomes_one_sentence(number: int, words: str) -> None:
    with pytest.raises(OutputNotUsable, match=words), named_write_errors(Path("there")):
        raise OSError(number, os.strerror(number))


def test_write_atomic_replaces_and_leaves_no_part(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"old")
    write_atomic(tmp_path / "config.json", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"config.json": b"new"}


def test_a_side_file_of_any_size_is_copied_in_parts(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(64 << 20)
    tracemalloc.start()
    write_atomic(tmp_path / "copy", tmp_path / "large")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "copy").stat().st_size == 64 << 20
    assert peak <= 8 << 20
