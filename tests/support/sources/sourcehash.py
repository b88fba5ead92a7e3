"""One hash for a checkpoint's content: what says that two runs measured the same weights.

Reads whole files in blocks; knows no format. The figure is kept per (path, size, time of change) within a process.
"""

import hashlib
from functools import cache
from pathlib import Path

BLOCK_BYTES = 1 << 22


@cache
def _file_hash(path: Path, size: int, changed_ns: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def source_hash(source: Path) -> str:
    """sha256 over the names and contents of a folder's weights and config; empty where it is no folder."""
    digest = hashlib.sha256()
    files = sorted([*source.glob("*.safetensors"), *source.glob("config.json")])
    for path in files:
        status = path.stat()
        digest.update(f"{path.name} {_file_hash(path, status.st_size, status.st_mtime_ns)}\n".encode())
    return digest.hexdigest() if files else ""
