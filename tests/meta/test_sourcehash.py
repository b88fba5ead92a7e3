"""The hash of a checkpoint, against sha256 by hand: names, contents, whole files, and nothing else of a folder."""

import hashlib
import os
from pathlib import Path

import pytest

from tests.support.sources import sourcehash
from tests.support.sources.sourcehash import source_hash

FILES = {"b.safetensors": b"two", "a.safetensors": b"one", "config.json": b"{}"}


def by_hand(files: dict[str, bytes]) -> str:
    order = [*sorted(name for name in files if name != "config.json"), "config.json"]
    lines = [f"{name} {hashlib.sha256(files[name]).hexdigest()}\n" for name in order]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def test_it_is_over_names_and_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sourcehash, "BLOCK_BYTES", 2)
    for name, body in {**FILES, "tokenizer.json": b"not in it"}.items():
        (tmp_path / name).write_bytes(body)
    assert source_hash(tmp_path) == by_hand(FILES)
    for body in (b"six", b"seven"):  # of the same length, then of another
        (tmp_path / "a.safetensors").write_bytes(body)
        os.utime(tmp_path / "a.safetensors", ns=(len(body), len(body)))
        assert source_hash(tmp_path) == by_hand({**FILES, "a.safetensors": body})


def test_no_checkpoint_has_none(tmp_path: Path) -> None:
    assert source_hash(tmp_path) == source_hash(tmp_path / "absent") == ""
