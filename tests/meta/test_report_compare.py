"""A run against another: the gate's own verdicts, each difference a figure, and nothing compared that cannot be."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quantkit.formats import FORMATS
from tests.meta.made_up import SMOKE, cell_row, header, made_up_record, serve_rows
from tests.report.__main__ import main
from tests.report.compare import against_baselines, against_run, section, verdicts, with_verdicts
from tests.report.markdown import markdown
from tests.report.published import published_record
from tests.report.run import Gap, Run
from tests.report.tables import Table
from tests.support.gate.baseline import Entry, key_of, path_of, write_all
from tests.support.gate.verdicts import Expected
from tests.support.record import Record, Row, write_record

BUILDS = ("bf16", "fp8", "w8a8emb4")
PUBLISHED = Path(__file__).parents[2] / "baselines" / "mi300x" / "published"
FP8 = FORMATS["fp8"]


def slowed(record: Record, build: str, factor: float) -> Record:
    """The record with every cell of one build slowed."""
    return replace(
        record, rows=tuple(_slower(row, factor) if row.build == build else row for row in record.rows)
    )


def _slower(row: Row, factor: float) -> Row:
    if "repeats" not in row.numbers:
        return row
    repeats = [{**each, "tok_per_s": each["tok_per_s"] * factor} for each in row.numbers["repeats"]]
    return replace(
        row, numbers={**row.numbers, "tok_per_s": row.numbers["tok_per_s"] * factor, "repeats": repeats}
    )


def found(new: Record, old: Record) -> dict[tuple[str, str], str]:
    """The verdict of each build and cell."""
    run = Run(new)
    return {(each.build, each.cell): each.verdict for each in verdicts(run, against_run(run, old, "old"))}


def table(new: Record, old: Record, name: str) -> Table:
    """A table of the differences."""
    run = Run(new)
    made = section(run, against_run(run, old, "old"))
    return next(each for each in made.tables if each.name == name)


def test_a_run_against_itself_is_the_same_everywhere() -> None:
    record = made_up_record(BUILDS)
    assert set(found(record, record).values()) == {"same"}
    assert table(record, record, "changed").rows == ()
    ratios = table(record, record, "change-throughput")
    assert all(value == 1.0 for row in ratios.rows for value in row[1:])


@pytest.mark.parametrize(("factor", "verdict"), [(0.5, "worse"), (0.95, "same"), (1.5, "better")])
def test_half_the_speed_is_worse_and_a_twitch_is_not(factor: float, verdict: str) -> None:
    """One boot is a provisional baseline, within 10 % of which a cell is the same."""
    record = made_up_record(BUILDS)
    judged = found(slowed(record, "fp8", factor), record)
    assert {verdict for (build, _), verdict in judged.items() if build == "fp8"} == {verdict}
    assert {verdict for (build, _), verdict in judged.items() if build != "fp8"} == {"same"}


def test_the_figures_are_new_over_old() -> None:
    record = made_up_record(BUILDS)
    changed = table(slowed(record, "fp8", 0.5), record, "change-throughput")
    assert {row[0]: row[1] for row in changed.rows} == {"bf16": 1.0, "fp8": 0.5, "w8a8emb4": 1.0}


def test_what_is_in_one_run_only_is_new_or_gone() -> None:
    whole, part = made_up_record(BUILDS), made_up_record(["bf16", "fp8"], [SMOKE[0]])
    assert found(part, whole)[("fp8", "8x128")] == "gone"
    assert found(part, whole)[("w8a8emb4", "1x128")] == "gone"
    assert found(whole, part)[("w8a8emb4", "1x128")] == "new"
    assert [row[0] for row in table(part, whole, "gone").rows] == ["w8a8emb4"]
    ratios = {row[0]: row[1:] for row in table(part, whole, "change-throughput").rows}
    assert ratios["fp8"] == (1.0, Gap("not in this run"))


def test_a_failed_cell_is_no_number_to_compare() -> None:
    record = made_up_record(BUILDS)
    dead = replace(cell_row(FP8, SMOKE[0]), outcome="failed", reason="the server died")
    judged = found(made_up_record(BUILDS, changed={dead.key: dead}), record)
    assert judged[("fp8", "1x128")] == "gone"


@pytest.mark.parametrize(
    "other",
    [
        {"source_hash": "another"},
        {"facts": {**header()["facts"], "cpu": "Another processor"}},
        {"settings": {**header()["settings"], "grid": "article"}},
        {"settings": {**header()["settings"], "engine_args": ["--enforce-eager"]}},
    ],
)
def test_another_model_machine_or_setting_is_not_comparable(other: Mapping[str, Any]) -> None:
    judged = found(made_up_record(BUILDS), made_up_record(BUILDS, **other))
    assert set(judged.values()) == {"not_comparable"}


def test_facts_that_changed_stand_in_a_table() -> None:
    boot = serve_rows(FP8)[0]
    heavy = replace(boot, numbers={**boot.numbers, "loaded_gib": 0.006, "kernels": ["Other"]})
    changed = table(made_up_record(BUILDS, changed={boot.key: heavy}), made_up_record(BUILDS), "changed")
    assert changed.rows == (
        ("fp8", "kernel", "ChannelWiseTorchFP8ScaledMMLinearKernel", "Other"),
        ("fp8", "memory", "3.07 MiB", "6.14 MiB"),
    )


def test_published_figures_of_another_machine_are_not_comparable() -> None:
    judged = found(made_up_record(BUILDS), published_record(PUBLISHED))
    assert set(judged.values()) == {"not_comparable"}


def test_published_figures_of_the_same_machine_and_image_only_inform() -> None:
    public = published_record(PUBLISHED)
    mine = made_up_record(BUILDS, machine="mi300x", settings={"image": public.header["image"]})
    run = Run(mine)
    judged = verdicts(run, against_run(run, public, "published"))
    assert {each.verdict for each in judged if each.build in BUILDS and each.cell == "1x128"} == {"worse"}
    assert not any(each.enforced for each in judged)


def _baseline(record: Record, factor: float) -> dict[str, Entry]:
    run = Run(record)
    entries = {}
    for build in run.builds:
        cells = {f"{c.concurrency}x{c.prompt_tokens}": c for c in run.cells.values() if c.build == build.name}
        expected = {
            name: Expected(
                (tuple(each.tok_per_s * factor for each in cell.repeats),) * 3, (cell.ratio or 1.0,) * 3
            )
            for name, cell in cells.items()
        }
        times = {name: {"ttft_s": [0.1], "tpot_s": [0.01]} for name in cells}
        made = ({"name": "r", "started": "2026-11-29", "commit": "c"},)
        entries[build.name] = Entry(
            key_of(record.header), False, "2026-11-29", "c", "", made, expected, times
        )
    return entries


def test_the_committed_baselines_are_judged_alike(tmp_path: Path) -> None:
    record = made_up_record(BUILDS)
    run = Run(record)
    assert {each.verdict for each in verdicts(run, against_baselines(run, tmp_path))} == {"new"}
    entries = _baseline(record, 2.0)
    write_all({path_of("cpu", name, tmp_path): [entry] for name, entry in entries.items()})
    old = against_baselines(run, tmp_path)
    assert {each.verdict for each in verdicts(run, old)} == {"worse"}
    made = next(each for each in section(run, old).tables if each.name == "change-throughput")
    assert {row[0]: row[1] for row in made.rows} == pytest.approx({"bf16": 0.5, "fp8": 0.5, "w8a8emb4": 0.5})


def test_the_verdicts_stand_in_the_page_in_place_of_the_runs_own() -> None:
    record = made_up_record(BUILDS)
    run = Run(record)
    old = against_run(run, slowed(record, "fp8", 2.0), "yesterday")
    judged = with_verdicts(record, verdicts(run, old))
    text = markdown(judged, (section(Run(judged), old),))
    assert text.index("## Against yesterday") < text.index("## The builds")
    assert "| fp8 | 1x128 | worse | 0.50× |" in text


def test_the_command_takes_another_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = made_up_record(BUILDS)
    head = {name: value for name, value in record.header.items() if name not in ("kind", "schema_version")}
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        write_record(tmp_path / name, head, record.rows)
    assert main([str(tmp_path / "new"), "--against", str(tmp_path / "old")]) == 0
    page = tmp_path / "new" / "against-old" / "report.html"
    assert capsys.readouterr().out.strip() == str(page)
    assert "Against old" in page.read_text(encoding="utf-8")
    assert main([str(tmp_path / "new"), "--against", str(tmp_path / "none")]) == 2
