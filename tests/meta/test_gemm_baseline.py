"""Ratios against their baseline: each verdict by hand, what no file may hold, and what no run may overwrite."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quantkit.errors import BadRecord
from tests.support.gemm.baseline import (
    BaselineRefused,
    RatioWorse,
    Verdict,
    judge,
    judge_item,
    merged,
    path_of,
    planned,
    read_baseline,
    require_no_worse,
    write,
)
from tests.support.record import Record, Row

CARD = {"device": "a card", "torch": "2.13.0", "copy_gb_per_s": 3756.0}
ITEM = "int4-1"


def numbers(ratio: float, spread: float = 0.02, shape: float = 2.0) -> dict[str, Any]:
    """A row with a token's ratio and one shape's."""
    shapes = {"o_proj 32x64": {"count": 1, "us": 1.0, "ratio_bf16": shape, "ratio_spread": 0.1}}
    return {"model": "toy", "ratio_bf16": ratio, "ratio_spread": spread, "shapes": shapes}


def record(*rows: tuple[str, dict[str, Any]], card: dict[str, Any] = CARD) -> Record:
    header = {"started": "2026-01-01", "commit": "c", "settings": {"machine": "toy"}}
    made = (
        Row("gemm", "", "card", "ok", "", card),
        *(Row("gemm", "", item, "ok", "", each) for item, each in rows),
    )
    return Record(header, made, {})


def regenerate(*records: Record, accepted: str = "", root: Path) -> tuple[Path, list[str]]:
    """What --force-regen does with these runs: the file, and the lines that it prints."""
    path, content, told = planned(records, "toy", accepted, root)
    write(path, content)
    return path, told


def at(ratio: float, spread: float) -> dict[str, dict[str, float]]:
    return {"token": {"ratio": ratio, "spread": spread}}


@pytest.mark.parametrize(
    ("now", "then", "verdict"),
    [
        (at(2.00, 0.02), at(2.0, 0.02), "same"),
        (at(1.95, 0.00), at(2.0, 0.00), "same"),
        (at(1.90, 0.00), at(2.0, 0.00), "worse"),
        (at(2.10, 0.00), at(2.0, 0.00), "better"),
        (at(1.90, 0.10), at(2.0, 0.10), "same"),
        (at(1.90, 0.00), None, "new"),
        ({}, at(2.0, 0.0), "not_comparable"),
    ],
)
def test_verdicts(now: dict[str, Any], then: dict[str, Any] | None, verdict: str) -> None:
    assert judge(now, then).verdict == verdict


def test_a_worse_ratio_is_a_regression_and_nothing_else_is() -> None:
    for name in ("same", "better", "new", "not_comparable"):
        require_no_worse(ITEM, Verdict(name, -0.5, 0.03))
    with pytest.raises(RatioWorse, match=r"of int4-1, got -5.0%, expected within 3.0% of the baseline"):
        require_no_worse(ITEM, judge(at(1.90, 0.00), at(2.0, 0.00)))


def test_without_a_token_the_shapes_decide() -> None:
    """A token's sum that is missing on one side leaves the median over the shapes of both."""
    shape = {name: {"ratio": 2.0, "spread": 0.0} for name in "abc"}
    slower = {**shape, "a": {"ratio": 1.0, "spread": 0.0}, "b": {"ratio": 1.5, "spread": 0.0}}
    assert judge(slower, {**shape, **at(9.0, 0.0)}).verdict == "worse"
    assert judge({**shape, "a": {"ratio": 1.0, "spread": 0.0}}, shape).verdict == "same"


def test_a_tokens_ratio_comes_before_its_shapes() -> None:
    shapes = {name: {"ratio": 1.0, "spread": 0.0} for name in "abc"}
    faster = {name: {"ratio": 2.0, "spread": 0.0} for name in "abc"}
    assert judge({**shapes, **at(2.0, 0.0)}, {**faster, **at(2.0, 0.0)}).verdict == "same"


def test_the_tolerance_is_both_spreads_over_the_ratio_and_of_the_middle_shape() -> None:
    found = judge(at(1.85, 0.05), at(2.0, 0.05))
    assert found.verdict == "worse"
    assert found.tolerance == pytest.approx(0.05)
    now = {
        name: {"ratio": 1.8, "spread": spread} for name, spread in zip("abc", (0.0, 0.0, 1.0), strict=True)
    }
    assert judge(now, {name: {"ratio": 2.0, "spread": 0.0} for name in "abc"}).verdict == "worse"


def test_written_and_judged(tmp_path: Path) -> None:
    """What a run writes, the same run meets; a slower one is worse; another torch is not compared."""
    path, told = regenerate(record((ITEM, numbers(2.0))), root=tmp_path)
    assert path == tmp_path / "toy" / "gemm.json"
    assert told == ["gemm int4-1: token, old none, new 2.000"]
    assert [file.name for file in path.parent.iterdir()] == ["gemm.json"]
    speeds = {"copy_gb_per_s": 1.0, "copy_spread_gb_per_s": 1.0, "empty_replay_us": 1.0}
    assert judge_item(ITEM, numbers(2.0), {**CARD, **speeds}, path).verdict == "same"
    assert judge_item(ITEM, numbers(1.5), CARD, path).verdict == "worse"
    assert judge_item("fp8-1", numbers(1.5), CARD, path).verdict == "new"
    other = judge_item(ITEM, numbers(2.0), {**CARD, "torch": "3"}, path)
    assert (other.verdict, other.why) == ("not_comparable", "other torch")
    assert judge_item(ITEM, numbers(2.0), {"device": "a card"}, path).why == "other torch"
    assert judge_item(ITEM, {**numbers(2.0), "model": "E4B"}, CARD, path).why == "other model"
    both = judge_item(ITEM, numbers(2.0), {"device": "another", "torch": "3"}, path)
    assert both.why == "other device, torch"
    written = json.loads(path.read_text())
    assert (written["date"], written["commit"], written["accepted"]) == ("2026-01-01", "c", "")
    assert judge_item(ITEM, numbers(2.0), CARD, tmp_path / "none.json").verdict == "new"


def test_the_committed_file_is_one() -> None:
    assert read_baseline(path_of("cpu"))["key"]["model"] == "gemma-4-E2B"


WORSE = {
    "a worse ratio": ((ITEM, numbers(1.5)), "gemm int4-1: token, old 2.000, new 1.500, ratio 0.750 WORSE"),
    "an item gone": (("fp8-1", numbers(2.0)), "gemm int4-1: GONE"),
}


@pytest.mark.parametrize(("row", "line"), WORSE.values(), ids=WORSE)
def test_a_worse_run_needs_a_reason(tmp_path: Path, row: tuple[str, dict[str, Any]], line: str) -> None:
    path, _ = regenerate(record((ITEM, numbers(2.0))), root=tmp_path)
    before = path.read_bytes()
    with pytest.raises(BaselineRefused, match=line):
        regenerate(record(row), root=tmp_path)
    assert path.read_bytes() == before
    _, told = regenerate(record(row), accepted="a new kernel", root=tmp_path)
    assert line in told
    assert json.loads(path.read_text())["accepted"] == "a new kernel"


def test_another_device_is_no_loss(tmp_path: Path) -> None:
    path, _ = regenerate(record((ITEM, numbers(2.0))), root=tmp_path)
    before = path.stat().st_ino
    _, told = regenerate(record((ITEM, numbers(1.0)), card={**CARD, "torch": "3"}), root=tmp_path)
    assert told == ["gemm int4-1: token, old none, new 1.000"]
    assert path.stat().st_ino != before, "written over, and not put in its place whole"


def test_runs_are_merged() -> None:
    """The spread covers what the runs report, and how far they lie apart."""
    runs = [at(2.0, 0.1), at(2.1, 0.2), {**at(2.5, 0.3), "o_proj": {"ratio": 1.0, "spread": 0.1}}]
    assert merged(runs) == merged(runs[::-1]) == {"token": {"ratio": 2.1, "spread": 0.5}}
    assert merged([at(2.0, each) for each in (0.1, 0.2, 0.6)]) == at(2.0, 0.2)
    assert merged([at(2.0, 0.2), at(2.1, 0.2)]) == {"token": {"ratio": 2.05, "spread": 0.2}}


def test_only_what_every_run_timed_well_is_written(tmp_path: Path) -> None:
    """A control has a ratio and no shapes; what failed may have both."""
    bad = Row("gemm", "", "int8-1", "failed", "wrong values", numbers(9.0))
    control = ("int4", {"ratio_bf16": 2.0, "ratio_spread": 0.1})
    fewer, more = (
        replace(run, rows=(*run.rows, bad))
        for run in (
            record((ITEM, numbers(2.0)), control),
            record((ITEM, numbers(2.0)), control, ("fp8-1", numbers(3.0))),
        )
    )
    for first, last in ((fewer, more), (more, fewer)):
        last = replace(last, header={**last.header, "commit": "d"})
        path, _ = regenerate(first, last, root=tmp_path)
        written = json.loads(path.read_text())
        assert (list(written["ratios"]), written["commit"]) == ([ITEM], "d")


def test_a_card_that_failed_is_none(tmp_path: Path) -> None:
    failed = replace(record((ITEM, numbers(2.0))).rows[0], outcome="failed")
    run = replace(record((ITEM, numbers(2.0))), rows=(failed, *record((ITEM, numbers(2.0))).rows[1:]))
    with pytest.raises(BaselineRefused, match="no timed ratio"):
        regenerate(run, root=tmp_path)


def test_a_run_without_a_tokens_sum_is_told_by_a_shape(tmp_path: Path) -> None:
    shapes = {"model": "toy", "shapes": numbers(2.0)["shapes"]}
    _, told = regenerate(record((ITEM, shapes)), root=tmp_path)
    assert told == ["gemm int4-1: o_proj 32x64, old none, new 2.000"]
    _, told = regenerate(record((ITEM, numbers(3.0))), root=tmp_path)
    assert told == ["gemm int4-1: o_proj 32x64, old 2.000, new 2.000, ratio 1.000"]


def test_what_no_run_may_write(tmp_path: Path) -> None:
    good, other = record((ITEM, numbers(2.0))), record((ITEM, numbers(2.0)), card={**CARD, "torch": "3"})
    untimed = record((ITEM, {"model": "toy", "shapes": {}}))
    refused = [
        ([untimed], "no timed ratio"),
        ([good, record()], "no timed"),
        ([good, other], "other devices"),
    ]
    for records, why in refused:
        with pytest.raises(BaselineRefused, match=why):
            regenerate(*records, root=tmp_path)
    with pytest.raises(BadRecord):
        regenerate(record((ITEM, numbers(float("nan")))), root=tmp_path)
    assert not list(tmp_path.rglob("*.json*"))


BAD = {"ratio": (float("nan"), float("inf"), 0.0, -1.0, "2"), "spread": (float("nan"), float("inf"), -0.1)}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, given in BAD.items() for value in given])
def test_a_file_with_a_bad_ratio_is_refused(tmp_path: Path, name: str, value: object) -> None:
    path, _ = regenerate(record((ITEM, numbers(2.0))), root=tmp_path)
    given = json.loads(path.read_text())
    given["ratios"][ITEM]["token"][name] = value
    path.write_text(json.dumps(given))
    with pytest.raises(BadRecord):
        read_baseline(path)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "[]",
            "{}",
            '{"schema_version": 1, "ratios": {}}',
            '{"schema_version": 1, "ratios": [], "key": {}}',
        ),
        *('{"schema_version": 2, "ratios": {}, "key": {}}', '{"schema_version": 1, "ratios": {}, "key": []}'),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "gemm.json"
    path.write_text(text)
    with pytest.raises(BadRecord):
        read_baseline(path)
