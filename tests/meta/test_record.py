"""The record's reader refuses what cannot be trusted. Each case is a good record with one named defect."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quantkit.errors import BadRecord
from tests.support.journal import Journal
from tests.support.record import Row, latest, read_record, unfit, write_record

ROWS = (
    Row(
        "quant",
        "fp8",
        "fidelity",
        "ok",
        numbers={"relative_rms_error": 0.026, "kinds": {"mlp.down_proj": [1, 2]}},
    ),
    Row("sweep", "fp8", "1x128", "failed", "the engine died"),
    Row("sweep", "fp8", "64x8192", "infeasible", "prompt and output exceed the context: größer"),
    Row("sweep", "bf16", "64x8192", "infeasible", "the same item of another build"),
)
Lines = list[dict[str, Any]]


def cut(lines: Lines) -> Lines:
    return lines[:-1]


def twice(lines: Lines) -> Lines:
    return [*lines[:2], lines[1], *lines[2:]]


def short(lines: Lines) -> Lines:
    return [*lines[:2], *lines[3:]]


def not_finite(lines: Lines) -> Lines:
    lines[1]["numbers"]["relative_rms_error"] = float("nan")
    return lines


def other_outcome(lines: Lines) -> Lines:
    lines[1]["outcome"] = "fine"
    return lines


def unknown_field(lines: Lines) -> Lines:
    lines[1]["note"] = "x"
    return lines


def other_schema(lines: Lines) -> Lines:
    lines[0]["schema_version"] = 99
    return lines


def no_header(lines: Lines) -> Lines:
    return lines[1:]


def another_kind(lines: Lines) -> Lines:
    return [*lines[:2], {"kind": "note"}, *lines[2:]]


def edited_count(lines: Lines) -> Lines:
    lines[-1]["ok"] += 1
    return lines


# what is done to the lines -> what is said of the record
DEFECTS = {
    cut: "no header or no footer",
    no_header: "no header or no footer",
    twice: r"\('quant', 'fp8', 'fidelity'\) twice",
    short: "footer of .*truncated or edited",
    edited_count: "footer of .*truncated or edited",
    not_finite: "relative_rms_error is nan",
    other_outcome: "outcome of .*'fine', expected one of ok",
    unknown_field: "a row of the record, got .*'note'",
    other_schema: "schema of .*got 99, expected 1",
    another_kind: r"lines of kind \['note', 'row'\]",
}


def test_a_good_record_reads_back_whole(tmp_path: Path) -> None:
    path = write_record(tmp_path, {"machine": "cpu"}, ROWS)
    record = read_record(path)
    assert record.rows == ROWS
    assert record.header["machine"] == "cpu"
    assert record.footer["rows"] == len(ROWS)


@pytest.mark.parametrize(("defect", "said"), DEFECTS.items(), ids=[defect.__name__ for defect in DEFECTS])
def test_a_spoiled_record_is_refused_by_name(
    defect: Callable[[Lines], Lines], said: str, tmp_path: Path
) -> None:
    path = write_record(tmp_path, {}, ROWS)
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in defect(lines)))
    with pytest.raises(BadRecord, match=said):
        read_record(tmp_path)


def test_no_record_and_no_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRecord, match="expected a finished run"):
        read_record(tmp_path)
    (tmp_path / "record.jsonl").write_text("not json\n")
    with pytest.raises(BadRecord, match="line 1"):
        read_record(tmp_path)
    (tmp_path / "record.jsonl").write_text("[]\n")
    with pytest.raises(BadRecord, match="got list, expected an object"):
        read_record(tmp_path)
    (tmp_path / "record.jsonl").write_text("")
    with pytest.raises(BadRecord, match="no header"):
        read_record(tmp_path)


def test_rows_are_found_by_key_and_by_suite(tmp_path: Path) -> None:
    record = read_record(write_record(tmp_path, {}, ROWS))
    assert record.row("sweep", "bf16", "64x8192") == ROWS[3]
    assert record.row("sweep", "int4", "64x8192") is None
    assert (record.of("sweep"), record.of("quant")) == (ROWS[1:], ROWS[:1])
    again = replace(ROWS[1], outcome="ok", reason="")
    assert list(latest([*ROWS, again]).values()) == [ROWS[0], again, *ROWS[2:]]


def test_a_record_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_record(tmp_path, {}, ROWS)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_record(tmp_path, {}, [replace(ROWS[0], numbers={"x": float("nan")})])

    def full(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_record(tmp_path, {}, ROWS[:1])
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), {"a": [1.0, float("-inf")]}, (float("nan"),), object(), b"x"],
)
def test_what_a_row_must_not_hold(value: object) -> None:
    assert unfit({"x": value}).startswith("numbers.x")


def test_what_a_row_may_hold() -> None:
    assert unfit({"a": None, "b": [1, 2.5, True], "c": ("text", {})}) == ""


@pytest.mark.parametrize("lost", [1, 7])
def test_a_journal_cut_by_a_kill_loses_its_last_line_only(lost: int, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new")
    assert journal.read() == ({}, [])
    journal.begin({"machine": "cpu"})
    for row in ROWS:
        journal.add(row)
    assert journal.read() == ({"kind": "header", "machine": "cpu"}, list(ROWS))
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole[:-lost])
    assert journal.read()[1] == list(ROWS[:-1])
    journal.begin({})
    journal.add(ROWS[-1])
    assert journal.path.read_bytes() == whole


def test_each_line_of_a_journal_is_seen_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    journal = Journal(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(journal.path.stat().st_size))
    journal.begin({})
    journal.add(ROWS[0])
    with pytest.raises(ValueError, match="not JSON compliant"):
        journal.add(replace(ROWS[0], numbers={"x": float("nan")}))
    assert synced == [
        len(journal.path.read_bytes().splitlines(keepends=True)[0]),
        journal.path.stat().st_size,
    ]


@pytest.mark.parametrize("text", ["", '{"kind": "row"}\n'])
def test_what_is_no_journal_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text(text)
    with pytest.raises(BadRecord, match="no header"):
        Journal(tmp_path).read()
