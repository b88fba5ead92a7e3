"""A build is made once, of its own source, and found again; one that others made is taken from where it lies."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from filelock import FileLock

from quantkit.formats import FORMATS, Format
from tests.support.plugins import builds
from tests.support.plugins.options import WHOLE
from tests.support.settings import Settings
from tests.support.sources.sourcehash import source_hash

Written = list[tuple[Path, Path, Format]]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    """What was written: source, folder and format."""
    made: Written = []

    def write(source: Path, out: Path, build: Format) -> None:
        with pytest.raises(TimeoutError):
            FileLock(out.parent / f".{build.name}.lock", timeout=0, is_singleton=False).acquire()
        made.append((source, out, build))
        out.mkdir(exist_ok=True)
        if len(made) > 1:  # the first is cut off
            (out / WHOLE).touch()

    monkeypatch.setattr(builds, "write_build", write)
    return made


def settings(folder: Path, own: bool = False, found: tuple[str, ...] = ()) -> Settings:
    """Two sources, and what was found."""
    for name in ("source", "release"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(f'"{name}"')
    release = folder / "release" if own else None
    given = {"source": folder / "source", "bf16_source": release, "checkpoints": folder / "a" / "b"}
    return cast(Settings, SimpleNamespace(**given, found=found))


def test_a_build_is_made_until_it_is_whole(tmp_path: Path, written: Written) -> None:
    fp8, mine = FORMATS["fp8"], settings(tmp_path)
    out = tmp_path / "a" / "b" / source_hash(tmp_path / "source")[:16] / "fp8"
    for times in (1, 2, 2):
        assert builds.make(fp8, mine) == out
        assert written == [(tmp_path / "source", out, fp8)] * times


def test_a_build_of_other_code_is_made_anew(
    tmp_path: Path, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    fp8, mine = FORMATS["fp8"], settings(tmp_path)
    for _ in range(3):
        out = builds.make(fp8, mine)
    (out / "old").touch()
    monkeypatch.setattr(builds, "WRITER", "another")
    assert builds.make(fp8, mine) == out
    assert len(written) == 3
    assert not (out / "old").exists()


def test_only_bf16_may_have_a_source_of_its_own(tmp_path: Path, written: Written) -> None:
    for own, name, source in ((True, "bf16", "release"), (True, "fp8", "source"), (False, "bf16", "source")):
        out = builds.make(FORMATS[name], settings(tmp_path, own))
        assert written[-1][0] == tmp_path / source
        assert out.parent.name == source_hash(tmp_path / source)[:16]


def test_a_found_build_is_taken_as_it_is(tmp_path: Path, written: Written) -> None:
    assert builds.make(FORMATS["fp8"], settings(tmp_path, found=("fp8",))) == tmp_path / "a" / "b" / "fp8"
    assert written == []
