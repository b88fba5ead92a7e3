"""A snapshot in the Hugging Face cache is a folder like any other, though its files are links into blobs beside it.

The layout is the hub's: models--OWNER--NAME/{blobs/HASH, snapshots/REVISION/FILE -> ../../blobs/HASH}.
"""

import hashlib
from pathlib import Path

import pytest

from quantkit.cli import main
from quantkit.convert import build
from quantkit.formats import format_named
from quantkit.verify import verify
from tests.unit.files import contents


def cached(folder: Path, cache: Path) -> Path:
    """The snapshot that the hub's client would make of a folder."""
    repository = cache / "models--someone--something"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / "0123abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in folder.iterdir():
        name = hashlib.sha256(path.read_bytes()).hexdigest()
        (blobs / name).write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(Path("../../blobs") / name)
    return snapshot


def test_a_snapshot_is_a_source(source: Path, tmp_path: Path) -> None:
    snapshot = cached(source, tmp_path / "hub")
    assert main(["plan", str(snapshot), "--format", "q4w4a16emb4"]) == 0
    assert main(["build", str(snapshot), str(tmp_path / "a"), "--format", "q4w4a16emb4"]) == 0
    assert main(["verify", str(snapshot), str(tmp_path / "a")]) == 0
    build(source, tmp_path / "b", format_named("q4w4a16emb4"))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert not any(path.is_symlink() for path in (tmp_path / "a").iterdir())


def test_a_published_build_is_judged_in_the_cache(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "built", format_named("fp8"))
    assert verify(source, cached(tmp_path / "built", tmp_path / "hub")).good


def test_tables_are_taken_over_from_the_cache_as_files(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "base", format_named("q4w4a16emb4"))
    build(source, tmp_path / "scratch", format_named("fp8emb4"))
    snapshot = cached(tmp_path / "base", tmp_path / "hub")
    build(source, tmp_path / "on", format_named("fp8emb4"), on=snapshot)
    assert contents(tmp_path / "on") == contents(tmp_path / "scratch")
    assert not any(path.is_symlink() for path in (tmp_path / "on").iterdir())
    assert [path for path in (tmp_path / "on").glob("*.safetensors") if path.stat().st_nlink == 2]
    assert verify(source, tmp_path / "on").good


@pytest.mark.parametrize("folder", [".", "snapshots"])
def test_the_folder_above_a_snapshot_is_explained(
    source: Path, tmp_path: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = cached(source, tmp_path / "hub").parent.parent
    assert main(["plan", str(repository / folder), "--format", "fp8"]) == 2
    assert "snapshot" in capsys.readouterr().err
