"""Links in a checkpoint: followed inside the folder and from a hub snapshot to its blobs, refused anywhere else.

What is no file, a loop or a pipe, is refused too. `test_hostile` has the rest of what is made to hurt.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from quantkit.checkpoint import Checkpoint
from quantkit.errors import NotACheckpoint, QuantkitError, UnsafePath
from tests.meta.hostile import WEIGHTS, one_tensor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of one tensor."""
    return one_tensor(tmp_path / "checkpoint")


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "tokenizer.json"])
def test_a_link_out_of_the_folder_is_refused(folder: Path, name: str) -> None:
    outside = folder.parent / "outside"
    outside.write_bytes((folder / WEIGHTS).read_bytes())
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    with pytest.raises(UnsafePath, match="outside"), Checkpoint.open(folder) as checkpoint:
        checkpoint.side_files()


def test_a_link_inside_the_folder_is_followed(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "blob")
    (folder / WEIGHTS).symlink_to("blob")
    with Checkpoint.open(folder) as checkpoint:
        assert list(checkpoint.entries) == ["a"]


def _snapshot(folder: Path, target: str, where: str = "snapshots") -> Path:
    """The folder as a snapshot in the hub's cache, its weights a link to that target."""
    root = folder.parent / "models--a--b" / where / "0123"
    root.mkdir(parents=True)
    (root.parents[1] / "blobs").mkdir()
    (root.parents[1] / "blobs" / "5ha").write_bytes((folder / WEIGHTS).read_bytes())
    (folder / "config.json").rename(root / "config.json")
    (root / WEIGHTS).symlink_to(target)
    return root


def test_a_snapshot_of_the_hub_may_link_to_its_blobs(folder: Path) -> None:
    with Checkpoint.open(_snapshot(folder, "../../blobs/5ha")) as checkpoint:
        assert list(checkpoint.entries) == ["a"]


def _move_blob(root: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (root.parents[1] / "blobs" / "5ha").rename(folder / "5ha")


def _other_repository(root: Path) -> None:
    root.parents[1].with_name("models--c--d").mkdir()
    (root.parents[1] / "blobs").rename(root.parents[1].with_name("models--c--d") / "blobs")


def _blobs_elsewhere(root: Path) -> None:
    blobs = root.parents[1] / "blobs"
    blobs.rename(root.parents[2] / "elsewhere")
    blobs.symlink_to(root.parents[2] / "elsewhere")


def _blob_elsewhere(root: Path) -> None:
    blob = root.parents[1] / "blobs" / "5ha"
    blob.rename(root.parents[2] / "outside")
    blob.symlink_to(root.parents[2] / "outside")


def _blob_below(root: Path) -> None:
    blobs = root.parents[1] / "blobs"
    (blobs / "below").mkdir()
    (blobs / "5ha").rename(blobs / "below" / "5ha")


# what is wrong -> the link, the folder that the snapshot lies in, and what else is done
LINKS_OUT: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "another repository": ("../../../models--c--d/blobs/5ha", "snapshots", _other_repository),
    "another snapshot": ("../4567/5ha", "snapshots", lambda root: _move_blob(root, root.parent / "4567")),
    "beside the blobs": ("../../5ha", "snapshots", lambda root: _move_blob(root, root.parents[1])),
    "below the blobs": ("../../blobs/below/5ha", "snapshots", _blob_below),
    "blobs that are a link": ("../../blobs/5ha", "snapshots", _blobs_elsewhere),
    "a blob that is a link": ("../../blobs/5ha", "snapshots", _blob_elsewhere),
    "a folder that is no snapshot": ("../../blobs/5ha", "copies", lambda root: None),
}


@pytest.mark.parametrize("name", LINKS_OUT)
def test_a_snapshot_links_to_nothing_else(folder: Path, name: str) -> None:
    target, where, change = LINKS_OUT[name]
    root = _snapshot(folder, target, where)
    change(root)
    with pytest.raises(UnsafePath, match="a link to"):
        Checkpoint.open(root)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_blob_is_a_regular_file(folder: Path, make: Callable[[Path], None]) -> None:
    root = _snapshot(folder, "../../blobs/5ha")
    (root.parents[1] / "blobs" / "5ha").unlink()
    make(root.parents[1] / "blobs" / "5ha")
    with pytest.raises(NotACheckpoint, match="no regular file"):
        Checkpoint.open(root)


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _fifo(path: Path) -> None:
    os.mkfifo(path)  # opening it for reading would wait for ever


@pytest.mark.parametrize("make", [_loop, _fifo, Path.mkdir])
@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_what_is_no_file_is_refused(folder: Path, name: str, make: Callable[[Path], None]) -> None:
    (folder / name).unlink()
    make(folder / name)
    with pytest.raises(QuantkitError):
        Checkpoint.open(folder)
