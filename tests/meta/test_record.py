"""The record's reader refuses what cannot be trusted. Each case is a good record with one named defect."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantkit.errors import BadRecord
from tests.support.journal import Journal
from tests.support.record import Row, read_record, unfit, write_record

ROWS = (
    Row(
        "quant",
        "fp8",
        "fidelity",
        "ok",
        numbers={"relative_rms_error": 0.026, "kinds": {"mlp.down_proj": [1, 2]}},
    ),
    Row("sweep", "fp8", "1x128", "failed", "the engine died"),
    Row("sweep", "fp8", "64x8192", "infeasible", "prompt and output exceed the context"),
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


def edited_count(lines: Lines) -> Lines:
    lines[-1]["ok"] += 1
    return lines


DEFECTS = (cut, twice, short, not_finite, other_outcome, unknown_field, other_schema, no_header, edited_count)


def test_a_good_record_reads_back_whole(tmp_path: Path) -> None:
    path = write_record(tmp_path, {"machine": "cpu"}, ROWS)
    record = read_record(path)
    assert record.rows == ROWS
    assert record.header["machine"] == "cpu"
    assert record.footer["rows"] == len(ROWS)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_a_spoiled_record_is_refused(defect: Callable[[Lines], Lines], tmp_path: Path) -> None:
    path = write_record(tmp_path, {}, ROWS)
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in defect(lines)))
    with pytest.raises(BadRecord):
        read_record(tmp_path)


def test_no_record_and_no_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRecord, match="expected a finished run"):
        read_record(tmp_path)
    (tmp_path / "record.jsonl").write_text("not json\n")
    with pytest.raises(BadRecord, match="line 1"):
        read_record(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [1.0, float("-inf")]}, object(), b"x"])
def test_what_a_row_must_not_hold(value: object) -> None:
    assert unfit({"x": value}).startswith("numbers.x")


def test_a_journal_cut_by_a_kill_loses_its_last_line_only(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.begin({"machine": "cpu"})
    for row in ROWS:
        journal.add(row)
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole[:-7])
    assert journal.read()[1] == list(ROWS[:2])
    journal.begin({})
    journal.add(ROWS[2])
    assert journal.path.read_bytes() == whole
