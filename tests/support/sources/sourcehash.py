"""One hash for a checkpoint's content, one for code's: what says that two runs measured the same, and alike.

Reads whole files in blocks; knows no format. A file's figure is kept per (path, size, time of change) within a process.
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


def code_hash(*folders: Path) -> str:
    """sha256 over the names and contents of the Python and TOML files below some folders."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".toml")):
            digest.update(
                f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
            )
    return digest.hexdigest()
