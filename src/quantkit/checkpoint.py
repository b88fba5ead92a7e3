"""A checkpoint folder opened for reading: its config, its tensors, its side files; every read is a pread.

Knows no format and no model, and trusts nothing it reads: only regular files inside the folder are opened,
never mapped into memory, never executed. Anything in the package may import it.
"""

import os
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.errors import BadHeader, NotACheckpoint, UnsafePath
from quantkit.header import DTYPES, MAX_TENSORS, Entry, check_name, read_header, read_json_object

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
WEIGHTS_SUFFIX = ".safetensors"
WEIGHT_FILES = (
    WEIGHTS_SUFFIX,
    ".bin",
    ".pt",
    ".pth",
    ".gguf",
    ".index.json",
)  # what loaders take for weights
MAX_SHARDS = 500  # each stays open, and many systems allow 1,024 descriptors


def _is_hub_blob(root: Path, resolved: Path) -> bool:
    """Whether a snapshot of the Hugging Face cache links to a blob of its own repository, as all of them do.

    The cache has REPOSITORY/snapshots/REVISION, whose files are links into REPOSITORY/blobs. Both paths are
    resolved, so that a blob, or a folder of blobs, that is itself a link leads elsewhere.
    """
    return root.parent.name == "snapshots" and resolved.parent == root.parent.parent / "blobs"


def _inside(root: Path, name: str) -> Path:
    """The regular file of that plain name in `root`; links that lead outside are refused."""
    if name in ("", ".", "..") or "/" in name or "\\" in name or not name.isprintable():
        raise UnsafePath(
            "file name in the index", got=repr(name)[:120], expected="a plain name in the folder"
        )
    path = root / name
    try:
        resolved = path.resolve(strict=True)
        mode = resolved.stat().st_mode
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "a loop of links"
        raise NotACheckpoint(f"file {name} of {root}", got=reason, expected="a file") from None
    if not (resolved.is_relative_to(root) or _is_hub_blob(root, resolved)):
        raise UnsafePath(
            f"file {name} of {root}",
            got=f"a link to {resolved}",
            expected="a file inside the folder",
            hint="copy the checkpoint into a folder of its own",
        )
    if not stat.S_ISREG(mode):
        raise NotACheckpoint(f"file {name} of {root}", got="no regular file", expected="a file")
    return path


def _open(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise NotACheckpoint(str(path), got=error.strerror, expected="a file that can be read") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotACheckpoint(str(path), got="no regular file", expected="a file")
    return fd


def _weight_map(index: Mapping[str, Any]) -> dict[str, str]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or len(weight_map) > MAX_TENSORS:
        raise BadHeader(f"weight_map of {INDEX}", expected=f"an object of 1 to {MAX_TENSORS:,} names")
    for name, shard in weight_map.items():
        check_name(name, INDEX)
        if not isinstance(shard, str) or not shard.endswith(WEIGHTS_SUFFIX):
            raise BadHeader(
                f"shard of {name} in {INDEX}", got=repr(shard)[:120], expected="a .safetensors name"
            )
    return weight_map


def _check_index(weight_map: Mapping[str, str], entries: Mapping[str, Entry]) -> None:
    for name, shard in weight_map.items():
        entry = entries.get(name)
        if entry is None or entry.file.name != shard:
            got = "in no shard" if entry is None else f"it in {entry.file.name}"
            raise BadHeader(f"tensor {name} in {INDEX}", got=got, expected=f"it in {shard}")
    extra = next((name for name in entries if name not in weight_map), None)
    if extra is not None:
        raise BadHeader(
            f"tensor {extra}", got=f"it in {entries[extra].file.name}", expected=f"it in {INDEX} too"
        )


class Checkpoint:
    """A folder of safetensors files with a config.json; use it as a context manager.

    Attributes
    ----------
    root
        The folder, resolved.
    config
        Parsed ``config.json``.
    entries
        Tensor name -> where it lies.
    index
        Parsed index, or None where the folder has none.
    metadata
        File name -> its ``__metadata__``; the keys are the files of weights that were read.
    """

    def __init__(
        self, root: Path, config: dict[str, Any], index: dict[str, Any] | None, names: tuple[str, ...]
    ) -> None:
        self.root = root
        self.config = config
        self.index = index
        self.entries: dict[str, Entry] = {}
        self.metadata: dict[str, dict[str, Any]] = {}
        self._descriptors: dict[Path, int] = {}
        self._lock = threading.Lock()
        try:
            for name in names:
                self._add_shard(_inside(root, name))
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, root: Path | str) -> "Checkpoint":
        """Open a folder and check every header, the index and the config.

        Raises
        ------
        NotACheckpoint
            Nothing readable there.
        BadHeader
            A file contradicts itself, the index or the disk.
        UnsafePath
            A name leads outside the folder.
        """
        try:
            folder = Path(root).resolve(strict=True)
            names = sorted(os.listdir(folder))  # noqa: PTH208 names alone; nothing is followed
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise NotACheckpoint(str(root), got=reason, expected="a folder with a checkpoint") from None
        if CONFIG not in names:
            hint = "name a folder in its snapshots" if "snapshots" in names else ""
            raise NotACheckpoint(str(root), expected=f"a {CONFIG} in it", hint=hint)
        config = read_json_object(_inside(folder, CONFIG))
        if INDEX not in names:
            shards = tuple(name for name in names if name.endswith(WEIGHTS_SUFFIX))
            return cls._checked(folder, config, None, shards)
        index = read_json_object(_inside(folder, INDEX))
        weight_map = _weight_map(index)
        opened = cls._checked(folder, config, index, tuple(sorted(set(weight_map.values()))))
        try:
            _check_index(weight_map, opened.entries)
        except BadHeader:
            opened.close()
            raise
        return opened

    @classmethod
    def _checked(
        cls, root: Path, config: dict[str, Any], index: dict[str, Any] | None, shards: tuple[str, ...]
    ) -> "Checkpoint":
        if not 1 <= len(shards) <= MAX_SHARDS:
            raise NotACheckpoint(
                str(root), got=f"{len(shards)} .safetensors files", expected=f"1 to {MAX_SHARDS}"
            )
        return cls(root, config, index, shards)

    def _add_shard(self, path: Path) -> None:
        fd = _open(path)
        self._descriptors[path] = fd
        entries, self.metadata[path.name] = read_header(fd, path)
        for entry in entries:
            other = self.entries.setdefault(entry.name, entry)
            if other is not entry:
                raise BadHeader(f"tensor {entry.name}", got=f"it in {path.name} and in {other.file.name}")
        if len(self.entries) > MAX_TENSORS:
            raise BadHeader(str(self.root), got="too many tensors", expected=f"at most {MAX_TENSORS:,}")

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all files; further reads fail."""
        with self._lock:
            descriptors, self._descriptors = self._descriptors, {}
        for fd in descriptors.values():
            os.close(fd)

    def pread_into(self, name: str, offset_in_tensor: int, buffer: Any) -> None:
        """Fill a writable buffer from a tensor's bytes; safe from any thread.

        Raises
        ------
        BadHeader
            When the range leaves the tensor, or the file has become shorter.
        """
        entry = self.entries[name]
        view = memoryview(buffer).cast("B")
        if offset_in_tensor < 0 or offset_in_tensor + len(view) > entry.size_bytes:
            raise BadHeader(f"read of {name}", got="a range outside the tensor")
        fd, at, done = self._descriptors[entry.file], entry.begin + offset_in_tensor, 0
        while done < len(view):
            try:
                count = os.preadv(fd, [view[done:]], at + done)
            except OSError as error:
                raise BadHeader(f"read of {name} in {entry.file.name}", got=error.strerror) from None
            if count == 0:
                raise BadHeader(f"truncated file {entry.file.name}", got=f"its end inside {name}")
            done += count

    def rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Rows ``start:stop`` of the first axis as raw bit patterns (see `quantkit.header.DTYPES`).

        Returns
        -------
        ndarray of shape (stop - start, *shape[1:]), a fresh array that the caller owns.
        """
        entry = self.entries[name]
        if not entry.shape or not 0 <= start <= stop <= entry.shape[0]:
            raise BadHeader(
                f"rows of {name}", got=f"{start}:{stop}", expected=f"a part of shape {entry.shape}"
            )
        found = np.empty((stop - start, *entry.shape[1:]), dtype=DTYPES[entry.dtype])
        if found.nbytes:
            row_bytes = entry.size_bytes // entry.shape[0]
            self.pread_into(name, start * row_bytes, found.reshape(-1).view(np.uint8))
        return found

    def stray_weights(self) -> tuple[str, ...]:
        """Names of files of weights in the folder that were not read, sorted."""
        names = sorted(os.listdir(self.root))  # noqa: PTH208 names alone; nothing is followed
        return tuple(n for n in names if n.endswith(WEIGHT_FILES) and n not in self.metadata and n != INDEX)

    def beside(self) -> tuple[str, ...]:
        """Names in the folder, of folders too, that are no weights, no index and no config.json, sorted."""
        names = sorted(os.listdir(self.root))  # noqa: PTH208 names alone; nothing is followed
        return tuple(n for n in names if not n.endswith(WEIGHT_FILES) and n not in (CONFIG, INDEX))

    def side_files(self) -> tuple[Path, ...]:
        """Regular files of those beside the weights."""
        modes = ((name, (self.root / name).lstat().st_mode) for name in self.beside())
        return tuple(_inside(self.root, n) for n, mode in modes if stat.S_ISREG(mode) or stat.S_ISLNK(mode))
