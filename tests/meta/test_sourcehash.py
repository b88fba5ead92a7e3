"""The hash of a checkpoint, against sha256 by hand: names, contents, whole files, and nothing else of a folder."""

import hashlib
import os
from pathlib import Path

import pytest

from tests.support.sources import sourcehash
from tests.support.sources.sourcehash import code_hash, source_hash

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


def test_code_is_told_by_names_and_contents_of_what_runs(tmp_path: Path) -> None:
    def of(**files: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        (folder / "sub").mkdir(parents=True)
        for name, text in files.items():
            (folder / "sub" / name.replace("_", ".")).write_text(text)
        return code_hash(folder)

    first = of(a_py="1", b_toml="2")
    assert of(b_toml="2", a_py="1", c_pyc="3") == first
    assert (
        len(
            {
                first,
                of(a_py="2", b_toml="1"),
                of(b_py="1", a_toml="2"),
                of(a_py="1"),
                of(a_py="1", b_toml="3"),
            }
        )
        == 5
    )
