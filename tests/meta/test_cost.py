"""Hours and dollars: the estimate from published rates, the meter, and the options in real pytest runs."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from quantkit.formats import FORMATS
from tests.meta import small_project
from tests.support.cells import GRIDS
from tests.support.cost import (
    GUESSED_S,
    dollars,
    estimate_lines,
    expected_s,
    hours,
    published_rates,
)
from tests.support.meter import Meter
from tests.support.plugins.billing import KEPT_IN, REFUSED, keep_spent, pytest_sessionfinish, spent_before_s
from tests.support.record import Key

ARTICLE = GRIDS["article"]
SWEEP = {
    "what": "Made-up figures.",
    "source": "nowhere",
    "date": "2026-01-01",
    "rows": [
        {
            "suite": "serve",
            "build": "bf16",
            "item": "boot",
            "outcome": "ok",
            "reason": "",
            "numbers": {"boot_s": 200.0},
        },
        {
            "suite": "sweep",
            "build": "bf16",
            "item": "1x128",
            "outcome": "ok",
            "reason": "",
            "numbers": {"tok_per_s": 512.0},
        },
    ],
}


@pytest.fixture
def rates_folder(tmp_path: Path) -> Path:
    path = tmp_path / "baselines/card/published/sweep.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(SWEEP))
    return tmp_path / "baselines"


def one_repeat_s(cell: str, tok_per_s: float) -> float:
    concurrency = int(cell.split("x")[0])
    return max(8, 2 * concurrency) * 512 / tok_per_s


def test_a_cell_takes_its_tokens_over_its_rate(rates_folder: Path) -> None:
    rates = published_rates("card", ARTICLE, rates_folder)
    assert rates.cells == {("bf16", "1x128"): one_repeat_s("1x128", 512.0)}
    smoke = published_rates("card", GRIDS["smoke"], rates_folder)
    assert smoke.cells["bf16", "1x128"] == pytest.approx(rates.cells["bf16", "1x128"] * 32 / 512)
    assert published_rates("unheard_of", ARTICLE, rates_folder).source == ""


def test_a_start_is_counted_once_a_pass_and_a_warm_up_once_a_cell(rates_folder: Path) -> None:
    rates = published_rates("card", ARTICLE, rates_folder)
    repeat, serve = rates.cells["bf16", "1x128"], GUESSED_S["serve"]
    expected: dict[Key, float] = {
        ("serve", "bf16", "boot"): 200.0 + serve,
        ("serve", "bf16", "text"): serve,
        ("sweep", "bf16", "repeat-1-1x128"): 2 * repeat,
        ("sweep", "bf16", "repeat-2-1x128"): repeat,
        ("sweep", "bf16", "1x128"): 0.0,  # the medians
        ("sweep", "bf16", "repeat-1-1x128@2"): 2 * repeat + 200.0,
    }
    keys: list[Key] = [*expected, ("sweep", "bf16", "repeat-1-64x128"), ("sweep", "fp8", "repeat-1-1x128")]
    assert expected_s(keys, rates) == expected
    assert expected_s([("serve", "bf16qat", "boot")], rates) == {("serve", "bf16qat", "boot"): 200.0 + serve}
    assert expected_s(keys, published_rates("unheard_of", ARTICLE, rates_folder)) == {}


def test_the_published_card_has_a_rate_for_every_build_and_cell() -> None:
    rates = published_rates("mi300x", ARTICLE)
    assert set(rates.boots) == set(FORMATS)
    assert set(rates.cells) == {(build, str(cell)) for build in FORMATS for cell in ARTICLE.cells}
    assert rates.cells["bf16", "1x128"] == pytest.approx(one_repeat_s("1x128", 343.44))
    smoke = published_rates("mi300x", GRIDS["smoke"])
    assert {cell for _, cell in smoke.cells} == {str(cell) for cell in GRIDS["smoke"].cells}


def test_the_estimate_says_what_it_does_not_know(rates_folder: Path) -> None:
    rates = published_rates("card", ARTICLE, rates_folder)
    keys: list[Key] = [
        ("sweep", "bf16", "repeat-1-1x128"),
        ("sweep", "fp8", "repeat-1-1x128"),
        ("sweep", "", "drift"),
    ]
    lines = estimate_lines("card", keys, rates, 2.0)
    assert lines[0] == "would run on card: 3 items, 2 server starts"
    took = dollars(2 * one_repeat_s("1x128", 512.0) + 200.0, 2.0)
    assert " ".join(lines[1].split()) == f"cells 2 items 4 min {took} (1 without a rate)"
    assert lines[2].split()[-2:] == ["not", "known"]
    assert " ".join(lines[3].split()) == f"all 3 items 4 min {took} at $2.00 an hour"
    assert lines[4] == "boots and cells: Made-up figures. Source: nowhere, 2026-01-01"
    assert lines[5:] == ["guessed, an item: quant 60 s, gemm 20 s, serve 10 s; downloads are not counted"]
    unknown = estimate_lines("other", keys, published_rates("", ARTICLE), 2.0)
    assert "not known: no rates were published for other" in unknown[-1]


@pytest.mark.parametrize(
    ("seconds", "text"), [(59, "1 min"), (3599, "60 min"), (3600, "1.0 h"), (9000, "2.5 h")]
)
def test_hours_are_readable(seconds: float, text: str) -> None:
    assert hours(seconds) == text


A, B, C = ("sweep", "bf16", "1x128"), ("sweep", "bf16", "8x128"), ("sweep", "fp8", "1x128")


def test_the_meter_corrects_rates_by_this_runs_own_pace() -> None:
    meter = Meter({A: 100.0, B: 200.0}, [A, B], price=3.6)
    assert meter.left_s() == 300.0
    meter.ended(A, 150.0)
    assert meter.left_s() == 300.0
    assert meter.line(1000.0) == "cost: 17 min so far, $1.00; about 5 min left, $0.30"
    meter.ended(B, 300.0)
    assert meter.left_s() == 0.0


def test_the_meter_learns_what_has_no_rate_and_says_so_until_then() -> None:
    meter = Meter({}, [A, B, C], price=1.0, budget=5.0)
    assert meter.line(0.0) == "cost: 0 min so far, $0.00; not known yet how long still; budget $5.00"
    meter.ended(A, 40.0)
    assert meter.left_s() == 80.0
    meter.ended(B, 60.0)
    assert meter.left_s() == 50.0
    assert Meter({}, [], price=1.0, budget=0.0).line(0.0).endswith("; budget $0.00")


@pytest.mark.parametrize(
    ("budget", "spent_s", "refused"),
    [(None, 1e9, False), (1.0, 0.0, False), (1.0, 899.0, False), (1.0, 901.0, True), (0.0, 0.0, True)],
)
def test_an_item_that_would_exceed_the_budget_is_refused(
    budget: float | None, spent_s: float, refused: bool
) -> None:
    meter = Meter({A: 100.0}, [A], price=3.6, budget=budget)
    assert bool(meter.refusal(A, spent_s)) == refused
    assert bool(meter.refusal(B, 0.0)) == (budget == 0.0)  # without a rate, and before anything was spent


def test_the_budget_knows_this_runs_own_pace() -> None:
    meter = Meter({A: 100.0, B: 100.0}, [A, B], price=3.6, budget=0.35)
    assert meter.refusal(B, 200.0) == ""
    meter.ended(A, 200.0)
    assert meter.refusal(B, 200.0) == "the budget of $0.35 is spent: $0.20 so far, $0.40 with this item"


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (None, []),
        (0.41, ["budget $0.41: is enough"]),
        (0.39, ["budget $0.39: would stop it before its end"]),
    ],
)
def test_a_dry_run_says_whether_the_budget_is_enough(budget: float | None, says: list[str]) -> None:
    assert Meter({A: 100.0, B: 200.0}, [A, B, C], price=3.6, budget=budget).foreseen(100.0) == says
    assert Meter({}, [A], price=3.6, budget=budget).foreseen(100.0) == []


SLOW = (
    small_project.SUITE.replace(
        'row["tok_per_s"] = 10.0', 'row["tok_per_s"] = 10.0; import time; time.sleep(0.6)'
    ).replace("def test_cell(boot,", "def test_cell(server,")
    + """
@pytest.fixture
def server(boot):
    with open("started", "a") as file:
        file.write(str(boot))
"""
)
ARGS = ("--machines", "more.toml", "-m", "billed", "--builds", "bf16,fp8")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = small_project.make(tmp_path, suite=SLOW)
    small_project.describe(made, "billed", usd_per_hour=7.2)
    return made


def outcomes(project: Path) -> list[str]:
    lines = [json.loads(line) for line in (project / "run/record.jsonl").read_text().splitlines()]
    return [line["outcome"] for line in lines if line["kind"] == "row"]


def test_a_dry_run_runs_and_writes_nothing(project: Path) -> None:
    status, output = small_project.run(project, *ARGS, "--dry-run", "--bf16-source", "other")
    assert status == 0, output
    assert "would run on billed: 9 items, 3 server starts" in output
    assert (
        "  source source, for bf16 other\n  builds bf16, fp8\n  engine vLLM on this host, grid smoke\n"
        in output
    )
    assert "hours and dollars are not known: no rates were published for billed" in output
    assert not (project / "run").exists()
    assert not (project / "started").exists()
    for counted in (("--dry-run",), ("--budget", "9")):
        status, output = small_project.run(project, *ARGS, *counted, "-n", "2")
        assert (status, "got -n, expected one process" in output) == (4, True), output


def test_a_dry_run_of_a_resumed_run_leaves_its_record_alone(project: Path) -> None:
    small_project.run(project, *ARGS, "-k", "bf16")
    before = (project / "run/record.jsonl").read_bytes()
    status, output = small_project.run(project, *ARGS, "--dry-run")
    assert status == 0
    assert "would run on billed: 3 items, 1 server starts" in output
    assert (project / "run/record.jsonl").read_bytes() == before


def test_the_budget_stops_between_items_and_holds_over_sessions(project: Path) -> None:
    budget = ("--budget", "0.006")  # 3 seconds at 7.2 dollars an hour
    status, output = small_project.run(project, *ARGS, *budget)
    assert status == 11, output
    found = outcomes(project)
    assert found.count("ok") in range(1, 9)
    assert found.count("ok") + found.count("not_run") == 9
    assert "the budget of $0.01 is spent" in (project / "run/record.jsonl").read_text()
    started = (project / "started").read_text()
    status, _ = small_project.run(project, *ARGS, *budget)
    assert (status, outcomes(project)) == (11, found)
    assert (project / "started").read_text() == started  # no server for items that the budget does not allow
    status, _ = small_project.run(project, *ARGS, "--budget", "1")
    assert (status, outcomes(project)) == (0, ["ok"] * 9)


def test_a_full_disk_leaves_the_hours_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_spent(tmp_path, 1.0, 2.0)
    file = (tmp_path / KEPT_IN).stat().st_ino
    keep_spent(tmp_path, 12.34, 2.0)
    assert (tmp_path / KEPT_IN).stat().st_ino != file, "written over, not renamed into its place"

    def half(path: Path, text: str, **_: str) -> None:
        path.write_bytes(text[:9].encode())
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="No space"):
        keep_spent(tmp_path, 99.0, 2.0)
    assert spent_before_s(tmp_path) == 12.3


@pytest.mark.parametrize(("ended", "status"), [(0, 11), (1, 1), (10, 10)])
def test_a_run_that_the_budget_cut_short_is_not_a_good_one(ended: int, status: int) -> None:
    session = SimpleNamespace(config=SimpleNamespace(stash={REFUSED: 1}), exitstatus=ended)
    pytest_sessionfinish(cast(pytest.Session, session))
    assert session.exitstatus == status


def test_the_cost_line_comes_first_and_the_reminder_last(project: Path) -> None:
    status, output = small_project.run(project, *ARGS, "--price", "3.5")
    assert status == 0, output
    assert 2 <= output.count("cost: 0 min so far, $0.00; ") < 9  # at first, at last, and not at every item
    assert output.rstrip().splitlines()[-1] == "billed bills $3.50 an hour until it is destroyed"
    assert '"usd_per_hour": 3.5,' in (project / "run/record.jsonl").read_text()
    assert "cost:" not in small_project.run(project, "--builds", "bf16", "--run", "other")[1]


def test_workers_keep_no_hours(project: Path) -> None:
    status, output = small_project.run(project, *ARGS, "-n", "2")
    assert status == 0, output
    assert not (project / "run/cost.json").exists()
    assert output.rstrip().endswith("billed bills $7.20 an hour until it is destroyed")
