"""safetensors headers, indexes and config files as data; what is hostile is refused before it costs anything.

Reads bytes that others wrote: every length is checked against the disk before it is used, and JSON is
measured before it is parsed. Knows no format and no model. `checkpoint` builds on it; anything may import it.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.errors import BadHeader, NotACheckpoint

MAX_JSON_BYTES = 32 << 20  # the largest real header, 35,000 tensors of a mixture of experts, has 6 MB
MAX_JSON_MARKS = 500_000  # commas and brackets, or quotes, or backslashes; bounds what parsing costs
MAX_JSON_DEPTH = 32
MAX_TENSORS = 50_000
MAX_NAME = 512
MAX_DIMENSIONS = 8
MAX_BYTES = 1 << 60

DTYPES: dict[str, np.dtype[Any]] = {  # safetensors tag -> numpy type of the bit pattern
    "BOOL": np.dtype("u1"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
    "F8_E8M0": np.dtype("u1"),
    "F8_E4M3FNUZ": np.dtype("u1"),
    "F8_E5M2FNUZ": np.dtype("u1"),
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "F16": np.dtype("<u2"),
    "BF16": np.dtype("<u2"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
    "F64": np.dtype("<f8"),
}


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies.

    Attributes
    ----------
    dtype
        safetensors tag, such as ``BF16``.
    begin, end
        Absolute offsets in ``file``, in bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        return self.end - self.begin


_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def _measure(data: bytes, where: str) -> None:
    """Refuse JSON that is too deep or too rich to parse cheaply."""
    for marks in (("{", "[", ","), ('"',), ("\\",)):  # counted inside strings too: no real header comes near
        count = sum(data.count(mark.encode()) for mark in marks)
        if count > MAX_JSON_MARKS:
            raise BadHeader(where, got=f"{count:,} JSON items", expected=f"at most {MAX_JSON_MARKS:,}")
    bare = np.frombuffer(_STRING.sub(b"", data), dtype=np.uint8)
    steps = np.zeros(len(bare), dtype=np.int8)
    steps[(bare == ord("{")) | (bare == ord("["))] = 1
    steps[(bare == ord("}")) | (bare == ord("]"))] = -1
    depth = int(np.cumsum(steps[steps != 0], dtype=np.int32).max(initial=0))
    if depth > MAX_JSON_DEPTH:
        raise BadHeader(where, got=f"JSON nested {depth:,} deep", expected=f"at most {MAX_JSON_DEPTH}")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r} twice")
            seen.add(key)
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name}, which is no JSON number")


def parse_json_object(data: bytes, where: str) -> dict[str, Any]:
    """One JSON object, checked for depth, size, duplicate keys and non-finite numbers.

    Raises
    ------
    BadHeader
        Naming `where`.
    """
    _measure(data, where)
    try:
        found = json.loads(
            data.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise BadHeader(where, got=f"{error}", expected="one JSON object") from None
    if not isinstance(found, dict):
        raise BadHeader(where, got=f"JSON {type(found).__name__}", expected="one JSON object")
    return found


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a regular file, with the limits of `parse_json_object`."""
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise BadHeader(path.name, got=f"{size:,} bytes", expected=f"at most {MAX_JSON_BYTES:,}")
        data = path.read_bytes()
    except OSError as error:
        raise NotACheckpoint(str(path), got=error.strerror, expected="a file that can be read") from None
    return parse_json_object(data, path.name)


def _is_count(value: object, most: int = MAX_BYTES) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def check_name(name: str, where: str) -> None:
    """Refuse a tensor name that could not be printed or is absurdly long."""
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise BadHeader(f"tensor name in {where}", got=f"{name[:80]!r}", expected="a short printable name")


def _entry(name: str, record: object, file: Path, data_begin: int) -> Entry:
    where = f"tensor {name} in {file.name}"
    check_name(name, file.name)
    if not isinstance(record, Mapping) or set(record) != {"dtype", "shape", "data_offsets"}:
        raise BadHeader(where, expected="exactly dtype, shape and data_offsets")
    dtype, shape, offsets = record["dtype"], record["shape"], record["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise BadHeader(f"dtype of {where}", got=repr(dtype)[:80], expected=f"one of {', '.join(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(map(_is_count, shape)):
        raise BadHeader(
            f"shape of {where}", got=repr(shape)[:80], expected=f"at most {MAX_DIMENSIONS} lengths"
        )
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise BadHeader(
            f"data_offsets of {where}", got=repr(offsets)[:80], expected="two offsets of 0 or more"
        )
    size = DTYPES[dtype].itemsize
    for length in shape:
        size *= length
    if offsets[1] - offsets[0] != size:
        raise BadHeader(f"data_offsets of {where}", got=offsets, expected=f"{size:,} bytes by its shape")
    return Entry(name, dtype, tuple(shape), file, data_begin + offsets[0], data_begin + offsets[1])


def _check_tiling(entries: Iterable[Entry], file: Path, data_begin: int, file_size: int) -> None:
    """Tensors must fill the file without overlap or hole, as the format demands."""
    at = data_begin
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != at:
            kind = "overlaps the one before" if entry.begin < at else "leaves a hole before it"
            raise BadHeader(
                f"data_offsets of tensor {entry.name} in {file.name}, which {kind}",
                got=entry.begin - data_begin,
                expected=at - data_begin,
            )
        at = entry.end
    if at != file_size:
        kind = "truncated file" if file_size < at else "bytes after the last tensor of"
        raise BadHeader(f"{kind} {file.name}", got=f"{file_size:,} bytes", expected=f"{at:,} by its header")


def read_header(fd: int, file: Path) -> tuple[tuple[Entry, ...], dict[str, Any]]:
    """All tensors of one safetensors file, in the order of its header, and its metadata.

    Parameters
    ----------
    fd
        Open descriptor of a regular file.
    file
        Its path, for messages and for the entries.

    Raises
    ------
    BadHeader
        For a header that is larger than the file or the limit, is no JSON, repeats a key, or whose offsets
        do not fill the file exactly.
    """
    file_size = os.fstat(fd).st_size
    prefix = os.pread(fd, 8, 0)
    if len(prefix) < 8:
        raise BadHeader(f"truncated file {file.name}", got=f"{file_size} bytes", expected="8 or more")
    length = int.from_bytes(prefix, "little")
    if length > min(MAX_JSON_BYTES, file_size - 8):
        raise BadHeader(
            f"header of {file.name}, larger than the file or the limit",
            got=f"{length:,} bytes",
            expected=f"at most {min(MAX_JSON_BYTES, file_size - 8):,}",
        )
    header = parse_json_object(os.pread(fd, length, 8), f"header of {file.name}")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise BadHeader(f"__metadata__ of {file.name}", got=type(metadata).__name__, expected="an object")
    if len(header) > MAX_TENSORS:
        raise BadHeader(f"header of {file.name}", got=f"{len(header):,} tensors", expected=f"{MAX_TENSORS:,}")
    entries = tuple(_entry(name, record, file, 8 + length) for name, record in header.items())
    _check_tiling(entries, file, 8 + length, file_size)
    return entries, metadata
