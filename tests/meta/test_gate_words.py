"""What the gate says of a verdict and of a cell, and which of the runs that it is to merge it takes; by hand."""

from contextlib import nullcontext
from math import log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quantkit.errors import BadRecord
from quantkit.formats import FORMATS
from tests.support.gate.regen import RegenRefused
from tests.support.gate.verdicts import Verdict
from tests.support.miniatures.sweep_runs import HEADER, cell_row, finished_run
from tests.support.plugins.gating import (
    JUDGED,
    Judged,
    _regenerate,
    _runs_to_merge,
    gate_row,
    pytest_terminal_summary,
    sentence,
    shown,
)
from tests.support.record import Row, write_record

LOST = Verdict("fp8", "8x128", "worse", True, 0.5, 1.1, 0.03, "bf16 fell further")
SAID = {
    "worse: fp8 8x128, -50.0% (tolerance 3.0%), ratio to bf16 +10.0%; bf16 fell further": LOST,
    "worse: fp8 8x128, -50.0% [advisory]": Verdict("fp8", "8x128", "worse", False, 0.5),
    "not comparable: fp8 8x128; driver [advisory]": Verdict("fp8", "8x128", "not_comparable", why="driver"),
    "gone: fp8 8x128": Verdict("fp8", "8x128", "gone", True),
    "better: fp8 8x128, +50.0%": Verdict("fp8", "8x128", "better", ratio=1.5),
    "new: fp8 8x128": Verdict("fp8", "8x128", "new"),
}


@pytest.mark.parametrize(("text", "verdict"), SAID.items(), ids=SAID)
def test_a_verdict_in_words(text: str, verdict: Verdict) -> None:
    assert sentence(verdict) == text


def test_the_worst_is_told_first_and_what_is_the_same_is_counted() -> None:
    told: list[str] = []
    reporter: Any = SimpleNamespace(section=told.append, write_line=lambda line, **_: told.append(line))
    judged = Judged()
    config: Any = SimpleNamespace(stash={JUDGED: judged})
    pytest_terminal_summary(reporter, config)
    assert told == []
    names = ("new", "same", "better", "not_comparable", "gone", "worse", "same")
    judged.verdicts = [Verdict("fp8", "8x128", name, enforced=True) for name in names]
    judged.lines = ["drift of bf16"]
    pytest_terminal_summary(reporter, config)
    order = [line.split(":")[0] for line in told]
    assert order == ["gate", "worse", "gone", "not comparable", "better", "new", *told[-2:]]
    assert told[-2:] == ["2 of 7 cells are the same", "drift of bf16"]


@pytest.mark.parametrize("name", ["worse", "gone", "not_comparable"])
def test_what_fails_a_run_is_a_failed_row_with_its_reason(name: str) -> None:
    bad, advice = (gate_row(Verdict("fp8", "8x128", name, enforced, 0.5)) for enforced in (True, False))
    assert (bad.key, bad.outcome) == (("gate", "fp8", "8x128"), "failed")
    assert bad.reason.endswith("fp8 8x128, -50.0%")
    assert (bad.numbers["verdict"], bad.numbers["ratio"]) == (name, 0.5)
    assert (advice.outcome, advice.reason) == ("ok", "")


CELL = {"tok_per_s": 12.34, "ttft_s": 0.1, "tpot_s": 0.02}
LINES: dict[str, dict[str, Any]] = {
    "fp8 8x128: 12.3 tok/s, TTFT 100.0 ms, TPOT 20.00 ms": CELL,
    "fp8 8x128: 12.3 tok/s, TTFT 100.0 ms, TPOT 20.00 ms, 0.80 of bf16": {**CELL, "ratio_bf16": 0.8},
    "fp8 8x128: 9.0 tok/s against 10.0, 0.900": {
        "log_ratio": log(0.9),
        "a_tok_per_s": 10.0,
        "b_tok_per_s": 9.0,
    },
    "fp8 8x128": {},
}


@pytest.mark.parametrize(("text", "numbers"), LINES.items(), ids=LINES)
def test_a_cell_on_a_line(text: str, numbers: dict[str, Any]) -> None:
    assert shown({"build": "fp8", "item": "8x128", "numbers": numbers}) == text


def test_runs_of_one_name_or_of_another_machine_are_not_merged(tmp_path: Path) -> None:
    runs = [tmp_path / folder / "run" for folder in "ab"]
    for run in runs:
        finished_run(run, {"fp8": {"1x128": (80.0, 80.0, 80.0)}})

    def asked(machine: str, *runs: Path) -> Any:
        return SimpleNamespace(machine=SimpleNamespace(name=machine), from_runs=runs)

    assert list(_runs_to_merge(asked("cpu", runs[0]))) == ["run"]
    with pytest.raises(BadRecord, match="two runs of one name"):
        _runs_to_merge(asked("cpu", *runs))
    with pytest.raises(RegenRefused, match="machine of run run, got cpu, expected mi300x"):
        _runs_to_merge(asked("mi300x", runs[0]))


TOKEN = {"model": "toy", "ratio_bf16": 2.0, "ratio_spread": 0.1, "shapes": {}}
ROWS = (
    Row("gemm", "", "card", "ok", numbers={"device": "a card"}),
    Row("gemm", "", "int4-1", "ok", numbers=TOKEN),
    cell_row("fp8", "1x128", (80.0, 80.0, 80.0)),
)
ASKED = {
    "both": ({"gemm", "sweep"}, ROWS, ["gemm.json", "sweep/fp8.json"]),
    "products alone": ({"gemm"}, ROWS, ["gemm.json"]),
    "the sweep alone": ({"sweep"}, ROWS, ["sweep/fp8.json"]),
    "a run without products": ({"gemm", "sweep"}, ROWS[2:], ["sweep/fp8.json"]),
    "a run without a sweep": ({"gemm", "sweep"}, ROWS[:2], ["gemm.json"]),
    "nothing": (set[str](), ROWS, []),
    "another suite": ({"serve"}, (*ROWS, Row("serve", "fp8", "boot", "ok")), []),
    "a run of another suite": ({"gemm"}, ROWS[2:], []),
}


@pytest.mark.parametrize(("suites", "rows", "files"), ASKED.values(), ids=ASKED)
def test_what_was_asked_for_and_measured_is_written(
    suites: set[str], rows: tuple[Row, ...], files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    write_record(tmp_path / "run", HEADER, rows)
    monkeypatch.setattr("tests.support.plugins.gating.ROOT", tmp_path / "baselines")
    settings: Any = SimpleNamespace(
        machine=SimpleNamespace(name="cpu"),
        builds=tuple(FORMATS.values()),
        from_runs=[tmp_path / "run"],
        accept_regression="",
    )
    judged = Judged()
    with nullcontext() if files else pytest.raises(RegenRefused, match="no row of gemm or sweep"):
        _regenerate(suites, settings, judged)
    assert judged.status == 11
    assert [line for line in judged.lines if line.startswith("wrote")] == [
        f"wrote baselines/cpu/{name}" for name in files
    ]
    there = sorted(path for path in (tmp_path / "baselines").rglob("*") if path.is_file())
    assert [str(path.relative_to(tmp_path / "baselines/cpu")) for path in there] == files
    assert any("provisional: 1 of 3 boots" in line for line in judged.lines) == ("sweep/fp8.json" in files)
