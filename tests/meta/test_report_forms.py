"""Markdown, CSV, summary and terminal say the same of any record, and no record's text can break them."""

import csv
import io
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from quantkit.formats import FORMATS
from tests.meta.made_up import (
    ARTICLE,
    SMOKE,
    cell_row,
    failed,
    gate_row,
    made_up_record,
    record_with,
    serve_rows,
)
from tests.report.__main__ import main
from tests.report.answer import answers
from tests.report.csv import cells_csv
from tests.report.markdown import markdown
from tests.report.repeat import commands
from tests.report.run import Run
from tests.report.sections import sections
from tests.report.summary import SCHEMA, summary, summary_json
from tests.report.terminal import WIDTH, blocks, table, wants_colour
from tests.report.write import write_report
from tests.support.plugins.options import OPTIONS
from tests.support.record import Record, Row, write_record

PUBLISHED = Path(__file__).parents[2] / "baselines" / "mi300x" / "published"
HOSTILE = '<script>alert("x")</script>|`a`*b*\n[link](http://example.com)\x1b[31m@someone=cmd'


def _hostile() -> Record:
    text = next(row for row in serve_rows(FORMATS["fp8"]) if row.item == "text")
    said = replace(text, numbers={"prompt": [HOSTILE], "answer": [HOSTILE]})
    cell = failed(cell_row(FORMATS["fp8"], (8, 128)), HOSTILE)
    verdict = gate_row(FORMATS["fp8"], (1, 128), HOSTILE, why=HOSTILE)
    rows = {row.key: row for row in (said, cell, verdict)}
    return made_up_record(["bf16", "fp8", HOSTILE], changed=rows, source=HOSTILE, commit=HOSTILE)


def _dead() -> Record:
    """A run in which one build never booted."""
    rows = [*serve_rows(FORMATS["fp8"]), *(cell_row(FORMATS["fp8"], load) for load in SMOKE)]
    return made_up_record(["bf16", "fp8"], changed={row.key: _died(row) for row in rows})


def _died(row: Row) -> Row:
    return failed(replace(row, numbers={}), "ServerDied: exit 1")


RECORDS: dict[str, Record] = {
    "whole": made_up_record(),
    "article": made_up_record(grid=ARTICLE),
    "a failed build": _dead(),
    "a missing cell": made_up_record(changed={("sweep", "fp8", "1x128"): None}),
    "one build": made_up_record(["fp8"]),
    "eleven builds": made_up_record(["bf16", "bf16qat", *list(FORMATS)[1:]]),
    "no sweep": made_up_record(grid=[]),
    "hostile": _hostile(),
    "nothing": record_with([]),
}
every_record = pytest.mark.parametrize("name", RECORDS)


@every_record
def test_the_summary_fits_its_schema(name: str) -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(summary_json(RECORDS[name])), schema)


def _spoil(given: dict[str, Any]) -> list[dict[str, Any]]:
    first = given["builds"][0]
    return [
        {name: value for name, value in given.items() if name != "answers"},
        {**given, "surprise": 1},
        {**given, "schema_version": 2},
        {**given, "builds": [{**first, "loaded_gib": "a lot"}]},
        {**given, "builds": [{**first, "cells": [{**first["cells"][0], "tok_per_s": -1}]}]},
    ]


@pytest.mark.parametrize("index", range(5))
def test_the_schema_refuses_another_shape(index: int) -> None:
    spoilt = _spoil(summary(RECORDS["whole"]))[index]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spoilt, json.loads(SCHEMA.read_text()))


@every_record
def test_no_line_of_the_terminal_is_wider_than_it(name: str) -> None:
    lines = table(RECORDS[name])
    assert max(map(len, lines)) <= WIDTH
    assert not any(re.search(r"[\x00-\x1f\x7f-\x9f]", line) for line in lines)


def test_the_terminal_has_a_row_a_build_and_every_figure() -> None:
    text = "\n".join(table(RECORDS["whole"]))
    for build in FORMATS:
        assert len(re.findall(rf"(?m)^{build} ", text)) >= 2
    row = next(line for line in text.splitlines() if line.startswith("q4w4a16emb4 "))
    assert row.split() == [
        "q4w4a16emb4",
        "int4",
        "int4",
        "2.00",
        "MiB",
        "on",
        "grid",
        "CPUWNA16",
        "1.84",
        "MiB",
        "3/3",
    ]
    assert "1x128" in text
    assert re.search(r"(?m)^fp8 +109 0\.91x +591 0\.93x$", text)


def test_the_terminal_gives_the_answer_first() -> None:
    assert table(RECORDS["whole"])[0] == "For one request at a time: bf16"


def test_the_terminal_names_what_failed() -> None:
    lines = table(RECORDS["a failed build"], colour=True)
    assert [line for line in lines if "ServerDied" in line] == [
        "\x1b[31mfailed: fp8 6 of serve, 2 of sweep: ServerDied: exit 1\x1b[0m"
    ]


class Stream(io.StringIO):
    """A stream that is a terminal or not."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        """As told."""
        return self.terminal


@pytest.mark.parametrize(
    ("terminal", "environment", "wanted"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),  # no-color.org: only when not empty
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colour_only_on_a_terminal_that_wants_it(
    terminal: bool, environment: dict[str, str], wanted: bool
) -> None:
    assert wants_colour(Stream(terminal), environment) is wanted


def test_columns_break_into_blocks_that_repeat_the_first() -> None:
    found = blocks([["build", "a"], ["x" * 10, "1"], ["y" * 10, "2"]], width=20)
    assert found == [["build  xxxxxxxxxx", "a      1"], ["build  yyyyyyyyyy", "a      2"]]


@every_record
def test_cells_csv_has_a_line_a_cell(name: str) -> None:
    lines = list(csv.DictReader(io.StringIO(cells_csv(RECORDS[name]))))
    assert len(lines) == len(Run(RECORDS[name]).all_cells)
    for line in lines:
        assert (line["tok_per_s"] != "") == (line["outcome"] == "ok")


def test_a_spreadsheet_runs_nothing() -> None:
    cell = failed(cell_row(FORMATS["fp8"], (1, 128)), '=HYPERLINK("http://example.com")')
    text = cells_csv(made_up_record(["fp8"], changed={cell.key: cell}))
    line = next(each for each in csv.DictReader(io.StringIO(text)) if each["outcome"] == "failed")
    assert line["reason"].startswith("'=")


@every_record
def test_markdown_has_every_section_in_order(name: str) -> None:
    record = RECORDS[name]
    text = markdown(record)
    places = [text.index(f"\n## {section.title}\n") for section in sections(Run(record))]
    assert places == sorted(places)
    assert all(f"- {answer.asked}: **" in text for answer in answers(Run(record)))


@every_record
def test_markdown_tables_have_as_many_cells_as_headings(name: str) -> None:
    lines = markdown(RECORDS[name]).splitlines()
    for index, line in enumerate(lines):
        if set(line) <= set("|-:") and line.startswith("|"):
            columns = len(re.findall(r"(?<!\\)\|", line))
            rows = [line for line in lines[index + 1 :] if line.startswith("|")]
            assert len(re.findall(r"(?<!\\)\|", lines[index - 1])) == columns
            assert not rows or len(re.findall(r"(?<!\\)\|", rows[0])) >= 3
            for row in _until_blank(lines[index + 1 :]):
                assert len(re.findall(r"(?<!\\)\|", row)) == columns


def _until_blank(lines: list[str]) -> list[str]:
    found = []
    for line in lines:
        if not line:
            break
        found.append(line)
    return found


def test_markdown_brings_no_markup_of_a_records_own() -> None:
    text = markdown(RECORDS["hostile"])
    assert "<script" not in text
    assert not re.search(r"(?<!\\)\]\(", text)
    assert "\x1b" not in text
    assert "@someone" not in text


@every_record
def test_no_form_makes_up_a_number(name: str) -> None:
    """What did not end ok has null figures, and stands in `missing` with its reason."""
    given = summary(RECORDS[name])
    for build in given["builds"]:
        for cell in build["cells"]:
            assert (cell["tok_per_s"] is None) == (cell["outcome"] != "ok")
    missing = {(each["suite"], each["build"], each["item"]) for each in given["missing"]}
    assert missing == {row.key for row in RECORDS[name].rows if row.outcome != "ok"}
    assert "nan" not in json.dumps(given).lower().replace("nanoseconds", "")


def test_a_figure_that_is_not_there_is_null() -> None:
    dead = next(build for build in summary(RECORDS["a failed build"])["builds"] if build["name"] == "fp8")
    names = (
        "kernels",
        "loaded_gib",
        "predicted_gib",
        "predicted_kv_tokens",
        "kv_tokens",
        "boot_s",
        "mean_abs_dlogprob",
    )
    assert {name: dead[name] for name in names} == dict.fromkeys(names)
    assert dead["answers"] is None
    bare = summary(RECORDS["one build"])["builds"][0]
    assert all(bare[name] is not None for name in names)
    bf16 = summary(RECORDS["whole"])["builds"][0]
    assert (bf16["relative_rms_error"], bf16["groups_off_grid"]) == (None, None)


def test_the_command_writes_four_files_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = RECORDS["whole"]
    head = {name: value for name, value in record.header.items() if name not in ("kind", "schema_version")}
    write_record(tmp_path, head, record.rows)
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    names = {"report.html", "report.md", "cells.csv", "summary.json", "record.jsonl"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_the_command_refuses_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing")]) == 2
    assert "expected a finished run" in capsys.readouterr().err


def test_published_figures_make_a_report_too(tmp_path: Path) -> None:
    page = write_report(PUBLISHED, tmp_path)
    assert "published figures, not measured here" in page.read_text(encoding="utf-8")


def test_the_commands_that_repeat_a_run_have_options_that_there_are() -> None:
    settings = {
        "grid": "article",
        "rows": [1, 8],
        "image": "r@sha256:0",
        "engine_args": ["--a b"],
        "engine_env": {"X": "1"},
    }
    record = made_up_record(["bf16", "fp8"], settings=settings, bf16_source_hash="beef")
    words = shlex.split(commands(Run(record))[0])
    assert words[:5] == ["pytest", "tests/quant", "tests/gemm", "tests/serve", "tests/sweep"]
    assert "--engine-arg=--a b" in words
    assert words[words.index("--builds") + 1] == "bf16,fp8"
    given = {word.split("=")[0] for word in words if word.startswith("--")}
    assert given <= {name for name, _ in OPTIONS}
    assert len(given) == 9
