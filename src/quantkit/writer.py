"""safetensors files out: layout, rows written at offsets known beforehand, atomic appearance.

Knows tensors by name, dtype and shape, and nothing of models or formats. A file carries `.part` behind its
name until it is whole and on disk; only then is it renamed, so that a final name never holds half a file.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from quantkit.errors import OutputNotUsable
from quantkit.header import DTYPES

PART = ".part"
EARLY_BYTES = (
    1 << 16
)  # from here on the disk is given rows at once, not when the file is synced: it works meanwhile


@dataclass(frozen=True)
class Stored:
    """A tensor to be written: name, safetensors dtype tag and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def item_bytes(self) -> int:
        """Bytes of one value."""
        return DTYPES[self.dtype].itemsize

    @property
    def rows(self) -> int:
        """Rows that can be written by themselves: the first axis of a matrix, else one."""
        return self.shape[0] if len(self.shape) > 1 else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.size_bytes // self.rows if self.rows else 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tensor."""
        count = self.item_bytes
        for length in self.shape:
            count *= length
        return count


@dataclass(frozen=True)
class Shard:
    """One file: its final name and its tensors, in the order of their bytes."""

    name: str
    tensors: tuple[Stored, ...]

    @property
    def header(self) -> bytes:
        """Length word and JSON header, padded so that the data begins at a multiple of eight."""
        entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
        begin = 0
        for tensor in self.tensors:
            end = begin + tensor.size_bytes
            entries[tensor.name] = {
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "data_offsets": [begin, end],
            }
            begin = end
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return len(self.header) + self.data_bytes


def make_shards(streams: Sequence[Sequence[Stored]], largest_bytes: int) -> tuple[Shard, ...]:
    """Cut streams of tensors into shards; a shard never holds tensors of two streams.

    Within a shard wide dtypes come first, so that every tensor is aligned to its own item size.
    """
    groups: list[list[Stored]] = []
    for stream in streams:
        room = 0
        for tensor in stream:
            if tensor.size_bytes > room:
                groups.append([])
                room = largest_bytes
            groups[-1].append(tensor)
            room -= tensor.size_bytes
    count = len(groups)
    return tuple(
        Shard(
            f"model-{number:05d}-of-{count:05d}.safetensors",
            tuple(sorted(group, key=lambda tensor: -tensor.item_bytes)),
        )
        for number, group in enumerate(groups, 1)
    )


@contextmanager
def named_write_errors(path: Path) -> Iterator[None]:
    """Turn what the disk says into one sentence that names the file."""
    try:
        yield
    except OSError as error:
        hints = {
            errno.ENOSPC: "free some space and run the same command again: what is done is kept",
            errno.EDQUOT: "raise the quota and run the same command again: what is done is kept",
            errno.EROFS: "choose a folder on a writable disk",
            errno.EACCES: "choose a folder that you may write to",
        }
        reason = error.strerror or str(error)
        hint = hints.get(error.errno or 0, "")
        raise OutputNotUsable(f"writing {path}", got=reason, hint=hint) from error


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: memoryview, at: int) -> None:
    while data:
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written


def write_atomic(path: Path, content: bytes | Path) -> None:
    """Write bytes, or copy a file of any size, under a temporary name, then rename it."""
    part = path.with_name(path.name + PART)
    with named_write_errors(path):
        with part.open("wb") as file:
            if isinstance(content, Path):
                with content.open("rb") as source:
                    shutil.copyfileobj(source, file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        sync_folder(path.parent)


def json_bytes(value: object) -> bytes:
    """JSON as every small file of a build is written."""
    return (json.dumps(value, indent=2) + "\n").encode()


class ShardFile:
    """One shard on disk; opened under its final name if it is already whole there.

    Threads may write and read rows at the same time.
    """

    def __init__(self, folder: Path, shard: Shard) -> None:
        self.shard = shard
        self.path = folder / shard.name
        self.part = self.path.with_name(self.path.name + PART)
        self.whole = self.path.exists()
        self.linked = False
        self._begins: dict[str, int] = {}
        begin = len(shard.header)
        for tensor in shard.tensors:
            self._begins[tensor.name] = begin
            begin += tensor.size_bytes
        self._fd = self._open()

    def _open(self) -> int:
        with named_write_errors(self.path):
            if self.whole or self.linked:
                return os.open(self.path if self.whole else self.part, os.O_RDONLY)
            if self.part.exists() and self.part.stat().st_nlink > 1:
                self.part.unlink()  # left by a killed build that shared another's bytes: never write there
            return os.open(self.part, os.O_RDWR | os.O_CREAT, 0o644)

    def __enter__(self) -> "ShardFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    @property
    def read_only(self) -> bool:
        """Whether the bytes are final: already published, or shared with another build."""
        return self.whole or self.linked

    def prepare(self) -> None:
        """Give a file its full length and its header; rows that an earlier call wrote stay."""
        if self.read_only:
            return
        header = self.shard.header
        with named_write_errors(self.path):
            os.ftruncate(self._fd, self.shard.size_bytes)
            _write_all(self._fd, memoryview(header), 0)

    def link(self, twin: Path) -> bool:
        """Share the bytes of another build's file that has the same header; False where that cannot be done."""
        if self.whole:
            return True
        with twin.open("rb") as file:
            if file.read(len(self.shard.header)) != self.shard.header:
                return False
        fresh = self.part.with_name(f"{self.shard.name}.link{PART}")
        fresh.unlink(missing_ok=True)
        try:
            fresh.hardlink_to(twin.resolve())  # Linux would link a link, not what it stands for
        except OSError:  # another disk, or one without links: the rows are copied instead
            return False
        fresh.rename(self.part)
        os.close(self._fd)
        self.linked = True
        self._fd = self._open()
        return True

    def write_rows(self, tensor: Stored, start_row: int, data: memoryview) -> None:
        """Write the bytes of whole rows, from one row on."""
        at = self._begins[tensor.name] + start_row * tensor.row_bytes
        with named_write_errors(self.path):
            _write_all(self._fd, data, at)
            if data.nbytes >= EARLY_BYTES:
                os.posix_fadvise(self._fd, at, data.nbytes, os.POSIX_FADV_DONTNEED)

    def read_rows(self, tensor: Stored, start_row: int, buffer: memoryview) -> bool:
        """Fill the buffer with the bytes from one row on; False where the file ends before."""
        at = self._begins[tensor.name] + start_row * tensor.row_bytes
        while buffer:
            count = os.preadv(self._fd, [buffer], at)
            if count == 0:
                return False
            buffer, at = buffer[count:], at + count
        return True

    def publish(self) -> None:
        """Sync the file and give it its final name."""
        if self.whole:
            return
        with named_write_errors(self.path):
            os.fsync(self._fd)
            self.part.rename(self.path)
            sync_folder(self.path.parent)


def index_bytes(shards: Sequence[Shard]) -> bytes:
    """``model.safetensors.index.json``: which tensor lies in which shard."""
    names = {tensor.name: shard.name for shard in shards for tensor in shard.tensors}
    total = sum(shard.data_bytes for shard in shards)
    return json_bytes({"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))})
