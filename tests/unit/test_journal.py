"""The journal of a build under way: what it was given it keeps, whatever cut its last line."""

import os
from pathlib import Path

import pytest

from quantkit.errors import OutputNotUsable
from quantkit.journal import JOURNAL, Done, Journal


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
