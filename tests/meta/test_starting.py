"""What a run asks of its host before its first item: room for what is not there yet, and nothing where nothing runs."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from quantkit.formats import FORMATS
from tests.meta import small_project
from tests.meta.fake_hub import COMMIT, REPO
from tests.support.plugins.options import SETTINGS, WHOLE
from tests.support.plugins.starting import wanted
from tests.support.sources.source import hub_source, write_pin
from tests.support.sources.sourcehash import source_hash


def config(folder: Path, source: str = "", found: tuple[str, ...] = (), bf16: str = "") -> pytest.Config:
    """The configuration of a run of three builds."""
    builds = tuple(FORMATS[name] for name in ("bf16", "fp8", "w8a8"))
    settings = SimpleNamespace(source=folder / "source", checkpoints=folder, builds=builds, found=found)
    given = {"source": source, "bf16_source": bf16}
    return cast(pytest.Config, SimpleNamespace(stash={SETTINGS: settings}, getoption=given.__getitem__))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints beside a source of 1,000 bytes."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/model.safetensors").write_bytes(bytes(1000))
    return tmp_path


def test_builds_that_are_there_need_no_room(folder: Path) -> None:
    assert (wanted(config(folder)).builds, wanted(config(folder)).source_bytes) == (3, 1000)
    made = folder / source_hash(folder / "source")[:16] / "bf16"
    made.mkdir(parents=True)
    assert wanted(config(folder)).builds == 3  # begun, and not whole
    (made / WHOLE).touch()
    assert wanted(config(folder)).builds == 2
    assert wanted(config(folder, found=("w8a8",))).builds == 1


def test_a_source_is_downloaded_once(folder: Path) -> None:
    source = hub_source(REPO, folder)
    assert source is not None
    assert wanted(config(folder, REPO)).downloads == (source,)
    assert wanted(config(folder, "", bf16=REPO)).downloads == (source,)
    source.folder.mkdir(parents=True)
    write_pin(source, COMMIT)
    assert wanted(config(folder, REPO)).downloads == ()


def test_a_run_that_only_lists_its_items_asks_nothing(tmp_path: Path) -> None:
    made = small_project.make(tmp_path)
    small_project.describe(made, "boxed", engine="docker")
    args = ("--machines", "more.toml", "-m", "boxed", "--builds", "bf16")
    status, output = small_project.run(made, *args, "--collect-only", "-q")
    assert (status, "not ready" in output) == (0, False), output
    status, output = small_project.run(made, *args)
    assert (status, "no pinned image" in output) == (11, True), output
