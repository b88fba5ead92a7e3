"""--force-regen: what it writes, and every reason for which it writes nothing."""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quantkit.errors import BadRecord
from tests.support.gate.baseline import (
    Entry,
    baseline_for,
    key_of,
    path_of,
    read_entries,
    write_all,
)
from tests.support.gate.regen import RegenRefused, new_entries, planned_files, refuse_here
from tests.support.gate.verdicts import Baseline, Expected
from tests.support.miniatures.sweep_runs import HEADER, Figures, finished_run
from tests.support.record import Record, Row

GOOD: Figures = {"bf16": {"1x128": (100.0, 101.0, 99.0)}, "fp8": {"1x128": (80.0, 80.5, 79.5)}}
WORSE: Figures = {"bf16": {"1x128": (100.0, 101.0, 99.0)}, "fp8": {"1x128": (60.0, 60.5, 59.5)}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of baselines that is empty."""
    return tmp_path / "baselines"


@pytest.fixture
def runs(tmp_path: Path) -> Callable[..., dict[str, Record]]:
    """Gives records of finished runs of these figures, one each."""

    def make(*figures: Figures) -> dict[str, Record]:
        count = len(list(tmp_path.glob("run*")))
        names = [f"run{count + index}" for index in range(len(figures))]
        return {name: finished_run(tmp_path / name, each) for name, each in zip(names, figures, strict=True)}

    return make


def write(records: dict[str, Record], root: Path, accepted: str = "") -> list[str]:
    """What --force-regen does with these runs; the changes as it prints them."""
    files, changes = planned_files("cpu", new_entries(records, accepted), root)
    write_all(files)
    return [str(change) for change in changes]


def entry(root: Path, build: str = "fp8") -> Entry:
    """The one entry of a build."""
    (found,) = read_entries(path_of("cpu", build, root))
    return found


def test_three_boots_are_a_baseline_with_every_value(
    runs: Callable[..., dict[str, Record]], root: Path
) -> None:
    told = write(runs(GOOD, GOOD, GOOD), root)
    assert told == ["bf16 1x128: old none, new 100.00", "fp8 1x128: old none, new 80.00"]
    found = entry(root)
    assert (found.provisional, found.accepted, found.commit) == (False, "", "0123abc")
    assert found.cells["1x128"].boots == ((80.0, 80.5, 79.5),) * 3
    assert found.cells["1x128"].ratios == (0.8, 0.8, 0.8)
    assert found.times == {"1x128": {"ttft_s": [0.1] * 3, "tpot_s": [0.01] * 3}}
    assert [run["run"] for run in found.runs] == ["run0", "run1", "run2"]
    baseline = baseline_for([found], key_of(HEADER))
    assert baseline is not None
    assert (baseline.differs, set(baseline.cells)) == ("", {"1x128"})


def test_fewer_boots_or_repeats_are_provisional(runs: Callable[..., dict[str, Record]], root: Path) -> None:
    write(runs(GOOD, GOOD), root)
    assert entry(root).provisional
    assert baseline_for([entry(root)], key_of(HEADER)) == Baseline(entry(root).cells, provisional=True)
    short = {"fp8": {"1x128": (80.0, 81.0)}}
    write(runs(short, short, short), root / "other")
    assert entry(root / "other").provisional


def test_worse_is_refused_until_a_reason_is_given(runs: Callable[..., dict[str, Record]], root: Path) -> None:
    write(runs(GOOD), root)
    before = path_of("cpu", "fp8", root).read_bytes()
    with pytest.raises(RegenRefused, match=r"fp8 1x128: old 80.00, new 60.00, ratio 0.750 WORSE"):
        write(runs(WORSE), root)
    assert path_of("cpu", "fp8", root).read_bytes() == before
    told = write(runs(WORSE), root, accepted="the new kernel is slower and exact")
    assert told[1].endswith("ratio 0.750 WORSE")
    assert entry(root).accepted == "the new kernel is slower and exact"


def test_a_cell_that_is_gone_is_refused(runs: Callable[..., dict[str, Record]], root: Path) -> None:
    both: Figures = {"fp8": {"1x128": (80.0, 80.0, 80.0), "8x128": (90.0, 90.0, 90.0)}}
    write(runs(both), root)
    with pytest.raises(RegenRefused, match="fp8 8x128, got no such cell"):
        write(runs(GOOD), root)
    write(runs(GOOD), root, accepted="too long for the new card")
    assert list(entry(root).cells) == ["1x128"]


def test_a_baseline_is_of_the_last_runs_commit(runs: Callable[..., dict[str, Record]], root: Path) -> None:
    first, last = runs(GOOD, GOOD).values()
    last = replace(last, header={**last.header, "commit": "4567def"})
    write({"first": first, "last": last}, root)
    assert entry(root).commit == "4567def"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", entry(root).date)
    assert [run["commit"] for run in entry(root).runs] == ["0123abc", "4567def"]


def test_another_key_is_another_entry(runs: Callable[..., dict[str, Record]], root: Path) -> None:
    write(runs(GOOD), root)
    header = deepcopy(HEADER)
    header["settings"]["image"] = "engine@sha256:1"
    (record,) = runs(WORSE).values()
    write({"later": replace(record, header={**record.header, "settings": header["settings"]})}, root)
    entries = read_entries(path_of("cpu", "fp8", root))
    assert [each.key["image"] for each in entries] == ["engine@sha256:0", "engine@sha256:1"]
    nearest = baseline_for(entries, {**entries[0].key, "driver": "6.2"})
    assert nearest is not None
    assert (nearest.differs, nearest.cells) == ("driver: 6.1 then, 6.2 now", {})


REFUSED: dict[str, tuple[Figures, str]] = {
    "a repeat that varies": ({**GOOD, "fp8": {"1x128": (80.0, 120.0, 50.0)}}, "cv of fp8 1x128"),
    "zero": ({**GOOD, "fp8": {"1x128": (0.0, 0.0, 0.0)}}, "tok_per_s of fp8 1x128"),
    "another grid": (
        {**GOOD, "fp8": {"8x128": (80.0, 80.0, 80.0)}},
        "expected a cell that ended ok in every run",
    ),
    "no cell at all": ({}, "no sweep cell"),
}


@pytest.mark.parametrize(("figures", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused(figures: Figures, reason: str, runs: Callable[..., dict[str, Record]], root: Path) -> None:
    good = runs(GOOD) if figures else {}
    with pytest.raises(RegenRefused, match=reason):
        write({**good, **runs(figures)}, root)
    assert not root.exists()


def test_how_far_a_new_baseline_may_fall_and_vary(runs: Callable[..., dict[str, Record]], root: Path) -> None:
    """As far as the old one tolerates: 3 % of three boots, 10 % of one; repeats of up to 20 % are figures."""

    def of(figure: float, spread: float = 0.0) -> Figures:
        return {"fp8": {"1x128": (figure * (1 - spread), figure, figure * (1 + spread))}}

    write(runs(of(100.0)), root / "one")
    write(runs(of(100.0), of(100.0), of(100.0)), root / "three")
    for folder, least in (("one", 90.0), ("three", 97.0)):
        with pytest.raises(RegenRefused, match="WORSE"):
            write(runs(of(least - 0.1)), root / folder)
        write(runs(of(least + 0.1)), root / folder)
    write(runs(of(100.0, 0.199)), root / "varied")
    with pytest.raises(RegenRefused, match=r"cv of fp8 1x128 .*20.1%"):
        write(runs(of(100.0, 0.201)), root / "varied")


@pytest.mark.parametrize("name", ["tok_per_s", "steady_tok_per_s", "ttft_s", "tpot_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), None, "fast"])
def test_every_figure_must_be_one(name: str, value: object, runs: Callable[..., dict[str, Record]]) -> None:
    (record,) = runs(GOOD).values()
    rows = tuple(replace(row, numbers={**row.numbers, name: value}) for row in record.rows)
    with pytest.raises(RegenRefused, match=f"{name} of bf16 1x128 of run a"):
        new_entries({"a": replace(record, rows=rows)}, "")


def test_a_failed_cell_and_other_machines_are_refused(runs: Callable[..., dict[str, Record]]) -> None:
    (record,) = runs(GOOD).values()
    failed = replace(record, rows=(Row("sweep", "fp8", "1x128", "failed", "no usage"),))
    with pytest.raises(RegenRefused, match="failed: no usage"):
        new_entries({"a": failed}, "")
    facts = {**record.header["facts"], "gpus": [{**record.header["facts"]["gpus"][0], "driver": "6.2"}]}
    other = replace(record, header={**record.header, "facts": facts})
    with pytest.raises(RegenRefused, match=r"driver: 6.1 then, 6.2 now"):
        new_entries({"a": record, "b": record, "c": other}, "")


def test_a_build_that_was_not_asked_for_is_neither_written_nor_in_the_way(
    runs: Callable[..., dict[str, Record]],
) -> None:
    (record,) = runs(GOOD).values()
    failed = replace(record, rows=(*record.rows, Row("sweep", "w8a8", "1x128", "failed", "no usage")))
    with pytest.raises(RegenRefused, match="failed: no usage"):
        new_entries({"a": failed}, "")
    assert new_entries({"a": failed}, "", {"fp8"}).keys() == {"fp8"}
    with pytest.raises(RegenRefused, match="no sweep cell asked for"):
        new_entries({"a": failed}, "", {"q4w4a16"})


@pytest.mark.parametrize("ci", ["1", "true", "yes"])
def test_refused_where_nobody_looks(ci: str) -> None:
    with pytest.raises(RegenRefused, match="in CI"):
        refuse_here({"CI": ci}, workers=False)
    with pytest.raises(RegenRefused, match="under xdist"):
        refuse_here({}, workers=True)
    for nobody in ({}, {"CI": ""}, {"CI": "0"}, {"CI": "False"}):
        refuse_here(nobody, workers=False)


DAMAGE = {
    "NaN": ("99.0", "NaN"),
    "negative": ("99.0", "-1.0"),
    "endless": ("99.0", "Infinity"),
    "NaN in the figure shown": ("100.0", "NaN"),
    "a value that was edited": ("100.0", "100.5"),
    "a list where there is none": ("99.0", "[]"),
    "no JSON": ("{", "["),
    "an unknown field": ('"ratios"', '"ratioes"'),
    "another schema": ('"schema_version": 1', '"schema_version": 2'),
}


@pytest.mark.parametrize(("old", "new"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_baseline_is_refused(
    old: str, new: str, runs: Callable[..., dict[str, Record]], root: Path
) -> None:
    write(runs(GOOD), root)
    path = path_of("cpu", "bf16", root)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(BadRecord):
        read_entries(path)


Given = dict[str, Any]
Spoil = Callable[[Given, Given, Given], Given | None]


def valued(name: str, value: object) -> Spoil:
    """Puts one value into a cell."""
    return lambda file, entry, cell: cell.update({name: [value]})


SPOILED: dict[str, tuple[Spoil, str]] = {
    "no schema": (lambda file, entry, cell: file.pop("schema_version"), "'schema_version'"),
    "two entries of one key": (lambda file, entry, cell: file.update(entries=[entry] * 2), "two entries of"),
    "a field too many": (lambda file, entry, cell: entry.update(note="x"), r"an entry of .*'note'"),
    "a field missing": (lambda file, entry, cell: entry.pop("runs"), r"an entry of .*'runs'"),
    "a cell's field too many": (lambda file, entry, cell: cell.update(note=1), r"cell 1x128 of .*'note'"),
    "no boot": (lambda file, entry, cell: cell.update(boots=[]), "no median"),
    "no repeat": (valued("boots", []), "no median"),
    **{
        f"{name} of {value}": (
            valued(name, value),
            "finite positive" if isinstance(value, float) else "TypeError",
        )
        for name in ("boots", "ratios", "ttft_s", "tpot_s")
        for value in (0.0, float("nan"), float("inf"), "1", None)
    },
}


@pytest.mark.parametrize(("spoil", "reason"), SPOILED.values(), ids=SPOILED)
def test_a_spoiled_baseline_is_refused_by_name(
    spoil: Spoil,
    reason: str,
    runs: Callable[..., dict[str, Record]],
    root: Path,
) -> None:
    write(runs(GOOD), root)
    path = path_of("cpu", "fp8", root)
    file = json.loads(path.read_text())
    spoil(file, file["entries"][0], file["entries"][0]["cells"]["1x128"])
    path.write_text(json.dumps(file))
    with pytest.raises(BadRecord, match=reason):
        read_entries(path)


def test_all_files_or_none(
    runs: Callable[..., dict[str, Record]], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, _ = planned_files("cpu", new_entries(runs(GOOD), ""), root)
    calls = []

    def fails_at_the_second(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError("disk full")

    monkeypatch.setattr("tests.support.gate.baseline.os.fsync", fails_at_the_second)
    with pytest.raises(OSError, match="disk full"):
        write_all(files)
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_what_could_not_be_read_again_is_not_written(
    runs: Callable[..., dict[str, Record]], root: Path
) -> None:
    files, _ = planned_files("cpu", new_entries(runs(GOOD), ""), root)
    path = path_of("cpu", "fp8", root)
    broken = {"1x128": Expected(((-1.0, 1.0, 1.0),))}
    with pytest.raises(BadRecord, match="finite positive"):
        write_all({**files, path: [replace(files[path][0], cells=broken)]})
    assert [path for path in root.rglob("*") if path.is_file()] == []
