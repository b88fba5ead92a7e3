"""The journal of a build under way: what it was given it keeps, whatever cut its last line, for that build alone."""

import os
import shutil
from pathlib import Path

import pytest

from quantkit.convert import build
from quantkit.errors import OutputNotUsable
from quantkit.formats import format_named
from quantkit.journal import JOURNAL, Done, Journal
from quantkit.writer import ShardFile
from tests.unit.files import down_proj, spoil
from tests.unit.stopping import stopped

BUILD = format_named("fp8emb4")


def test_a_journal_keeps_what_it_was_given(tmp_path: Path) -> None:
    done = Done("a", "b", (1, 2, 3))
    with Journal(tmp_path, "key") as journal:
        journal.add(5, done)
    with Journal(tmp_path, "key") as journal:
        assert journal.done == {5: done}
    with pytest.raises(OutputNotUsable), Journal(tmp_path, "other"):
        pass


def test_a_journal_cut_short_goes_on_after_its_last_whole_line(tmp_path: Path) -> None:
    done = Done("a", "b", (1, 2, 3))
    with Journal(tmp_path, "key") as journal:
        journal.add(5, done)
    with (tmp_path / JOURNAL).open("a") as file:
        file.write('[6, "a", "b"')
    with Journal(tmp_path, "key") as journal:
        journal.add(7, done)
    with Journal(tmp_path, "key") as journal:
        assert journal.done == {5: done, 7: done}


def test_a_journal_cut_in_its_first_line_begins_anew(tmp_path: Path) -> None:
    done = Done("a", "b", (1, 2, 3))
    (tmp_path / JOURNAL).write_text('{"key": "k')
    with Journal(tmp_path, "key") as journal:
        assert not journal.begun
        journal.add(5, done)
    with Journal(tmp_path, "key") as journal:
        assert (journal.begun, journal.done) == (True, {5: done})


def test_a_line_that_the_disk_cuts_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal(tmp_path, "key") as journal:
        write = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:4]))
        with pytest.raises(OutputNotUsable, match="No space left"):
            journal.add(5, Done("a", "b", (1, 2, 3)))


def test_a_journal_that_another_process_deletes_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", lambda fd, how: (tmp_path / JOURNAL).unlink())
    with pytest.raises(OutputNotUsable, match=r"just ended there.*again"):
        Journal(tmp_path, "key")


@pytest.mark.parametrize("change", ["bytes", "length"])
def test_an_unfinished_build_of_a_source_that_changed_is_left_alone(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    copy, out = Path(shutil.copytree(source, tmp_path / "copy")), tmp_path / "out"
    (weights,) = copy.glob("*.safetensors")
    times = (weights.stat().st_atime_ns, weights.stat().st_mtime_ns)
    with stopped(monkeypatch, Journal, "add", 20):
        build(copy, out, BUILD)
    if change == "bytes":
        spoil(copy, down_proj(0), 0)
    else:  # eight more spaces behind the header
        data = weights.read_bytes()
        length = int.from_bytes(data[:8], "little")
        weights.write_bytes(
            (length + 8).to_bytes(8, "little") + data[8 : 8 + length] + b" " * 8 + data[8 + length :]
        )
        os.utime(weights, ns=times)
    with pytest.raises(OutputNotUsable, match="unfinished build of another source"):
        build(copy, out, BUILD)


def test_an_unfinished_build_on_another_goes_on_on_it_alone(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it took over has its findings in that other build."""
    build(source, tmp_path / "base", format_named("q4w4a16emb4"))
    with stopped(monkeypatch, ShardFile, "publish", 0):
        build(source, tmp_path / "out", BUILD, on=tmp_path / "base")
    with pytest.raises(OutputNotUsable, match="unfinished build of another"):
        build(source, tmp_path / "out", BUILD)
