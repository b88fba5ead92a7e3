"""The rows of a run across sessions: what is kept, what is made up for items that never ended, what is refused."""

import subprocess
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.journal import Journal
from tests.support.plugins import recording
from tests.support.plugins.recording import Ledger
from tests.support.record import RECORD, Row

DONE = Row("sweep", "bf16", "1x128", "ok", numbers={"tok_per_s": 10.0})
AGAIN = Row("sweep", "bf16", "1x128", "ok", numbers={"tok_per_s": 11.0})
LEFT = ("sweep", "bf16", "8x128")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run of nothing in particular."""
    monkeypatch.setattr(recording, "identity_of", lambda settings: {"settings": settings.key})
    sessions = count(1)
    monkeypatch.setattr(
        recording, "header_of", lambda settings: {"settings": settings.key, "session": next(sessions)}
    )
    return SimpleNamespace(run=tmp_path, key="smoke")


def test_a_run_without_a_row_leaves_nothing(settings: Any) -> None:
    assert Ledger(settings, writes=True).finish([LEFT]) is None
    assert list(settings.run.iterdir()) == []


def test_what_was_planned_and_never_ended_was_not_run(settings: Any) -> None:
    ledger = Ledger(settings, writes=True)
    ledger.write(DONE)
    record = ledger.finish([DONE.key, LEFT])
    assert record is not None
    assert record.rows == (DONE, Row(*LEFT, outcome="not_run", reason="the run ended before this item"))
    assert (settings.run / RECORD).is_file()


def test_a_later_session_goes_on_where_the_last_one_ended(settings: Any) -> None:
    Ledger(settings, writes=True).write(DONE)
    ledger = Ledger(settings, writes=True)
    assert (ledger.header["settings"], ledger.earlier) == ("smoke", {DONE.key: DONE})
    ledger.write(AGAIN)
    assert (ledger.rows, ledger.earlier) == ({DONE.key: AGAIN}, {DONE.key: DONE})
    header, rows = Journal(settings.run).read()
    assert (header["session"], rows) == (1, [DONE, AGAIN])
    assert ledger.header == header, "the head of a run is of its first session"


def test_another_run_in_the_same_folder_is_refused(settings: Any) -> None:
    Ledger(settings, writes=True).write(DONE)
    settings.key = "article"
    with pytest.raises(pytest.UsageError, match="a run whose settings was smoke, expected article"):
        Ledger(settings, writes=True)


def test_the_commit_of_changed_files_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert recording.commit() == "unknown"
    file = tmp_path / "file"
    file.write_text("as committed")
    person = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (
        ("init", "-q"),
        ("add", "."),
        (*person, "commit", "-qm", "One"),
        (*person, "tag", "-am", "t", "v1"),
    ):
        subprocess.run(["git", *command], check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert recording.commit() == head
    file.write_text("as it is")
    assert recording.commit() == f"{head}-dirty"
