"""A record as the report sees it: cells, ratios and gaps; nothing that was not measured becomes a number."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from quantkit.formats import FORMATS
from tests.meta.made_up import ARTICLE, SMOKE, cell_row, failed, made_up_record, record_with, serve_rows
from tests.report.markdown import markdown
from tests.report.plots import specs
from tests.report.run import Gap, Run, cell_of, plain_reason
from tests.report.sections import sections
from tests.report.spread import Interval, around, pooled, t975
from tests.report.tables import answered, memory, warnings
from tests.report.troubles import troubles
from tests.support.record import Record, Row

FP8 = FORMATS["fp8"]


def test_builds_stand_in_the_order_of_the_formats_and_unknown_ones_last() -> None:
    run = Run(made_up_record(["new4", "q4w4a16", "bf16qat", "fp8", "bf16"]))
    assert [build.name for build in run.builds] == ["bf16", "bf16qat", "fp8", "q4w4a16", "new4"]
    assert (run.builds[1].linears, run.builds[-1].linears) == ("bf16", "unknown")


def test_tables_are_named_by_what_is_packed() -> None:
    found = {build.name: build.tables for build in Run(made_up_record()).builds}
    assert (found["fp8"], found["q4w4a16ple4"], found["w8a8emb4"]) == ("bf16", "PLE int4", "int4")


def test_a_cell_takes_the_median_and_the_spread_of_its_repeats() -> None:
    row = cell_row(FP8, (1, 128), wobble=(1.0, 0.9, 1.1))
    cell = cell_of(replace(row, numbers={**row.numbers, "tok_per_s": None, "cv": 9.0}))
    assert cell is not None
    assert cell.tok_per_s == cell.repeats[0].tok_per_s
    assert cell.cv == pytest.approx(0.1)
    assert cell.repeat_count == 3


@pytest.mark.parametrize("item", ["1x128-r1", "repeat-1-1x128", "repeat-2-8x128@2", "drift"])
def test_rows_of_repeats_are_no_cells(item: str) -> None:
    assert cell_of(replace(cell_row(FP8, (1, 128)), item=item)) is None


@pytest.mark.parametrize("outcome", ["failed", "infeasible", "not_run"])
def test_a_cell_that_did_not_end_ok_has_no_number(outcome: str) -> None:
    cell = cell_of(replace(cell_row(FP8, (1, 128)), outcome=outcome, reason="why"))
    assert cell is not None
    assert (cell.tok_per_s, cell.cv, cell.repeats) == (None, None, ())


def test_the_ratio_is_to_the_first_pass_of_bf16_in_the_same_cell() -> None:
    run = Run(made_up_record(["bf16", "fp8"]))
    for load in SMOKE:
        rate, base = run.cell("fp8", load).tok_per_s, run.cell("bf16", load).tok_per_s
        assert rate
        assert base
        assert run.cell("fp8", load).ratio == rate / base
    assert run.cell("bf16", (1, 128)).ratio == 1.0


def test_there_is_no_ratio_without_bf16() -> None:
    run = Run(made_up_record(["fp8"]))
    assert run.cell("fp8", (1, 128)).ratio is None


def test_a_cell_that_is_absent_is_a_gap() -> None:
    cell = Run(made_up_record(["bf16"])).cell("bf16", (64, 8192))
    assert (cell.outcome, cell.tok_per_s) == ("not_run", None)


def test_a_figure_that_is_absent_is_a_gap_with_its_reason() -> None:
    boot = serve_rows(FP8)[0]
    run = Run(record_with([failed(replace(boot, numbers={}), "the server died")]))
    assert run.figure("serve", "fp8", "boot", "loaded_gib") == Gap("the server died")
    assert run.figure("serve", "fp8", "logprobs", "kl") == Gap("this run has no serve logprobs")
    run = Run(record_with([boot]))
    assert run.figure("serve", "fp8", "boot", "nothing", "deeper") == Gap("not recorded")


def test_a_load_is_noisy_when_one_build_is() -> None:
    noisy = cell_row(FP8, (8, 128), wobble=(1.0, 0.7, 1.3))
    run = Run(made_up_record(["bf16", "fp8"], changed={noisy.key: noisy}))
    assert run.noisy == {(8, 128)}


def test_a_bound_on_the_spread_does_not_make_a_load_noisy() -> None:
    row = Row("sweep", "fp8", "1x128", "ok", "", {"tok_per_s": 10.0, "repeat_count": 3, "cv_at_most": 0.2})
    run = Run(record_with([row]))
    assert run.noisy == frozenset()
    assert run.cell("fp8", (1, 128)).known_cv == 0.2


def test_the_spread_is_pooled_over_a_builds_quiet_cells() -> None:
    rows = [
        cell_row(FP8, load, wobble=(1.0, 1 - w, 1 + w)) for load, w in (((1, 128), 0.03), ((8, 128), 0.04))
    ]
    rows.append(cell_row(FP8, (64, 128), wobble=(1.0, 0.5, 1.5)))
    found = pooled([cell for row in rows if (cell := cell_of(row))])
    assert found is not None
    assert found.cv == pytest.approx(((0.03**2 + 0.04**2) / 2) ** 0.5)
    assert found.freedom == 4


def test_one_repeat_has_no_spread_and_overlaps_with_everything() -> None:
    cell = cell_of(cell_row(FP8, (1, 128), wobble=(1.0,)))
    assert cell is not None
    assert pooled([cell]) is None
    assert around(100.0, None, 1) == Interval(100.0)
    assert Interval(100.0).overlaps(Interval(1.0, 0.9, 1.1))


def test_the_interval_is_students() -> None:
    assert t975(2) == 4.303  # two-sided 95 %, as every table has it
    assert t975(1000) == t975(30)
    cell = cell_of(cell_row(FP8, (1, 128), wobble=(1.0, 0.99, 1.01)))
    assert cell is not None
    found = around(100.0, pooled([cell]), 3)
    assert found.high == pytest.approx(102.515, abs=0.01)  # 100 * exp(4.303 * 0.01 / sqrt(3))


@pytest.mark.parametrize(
    ("recorded", "told"),
    [
        ("tests.support.engine.base.ServerDied: server fp8 ended", "ServerDied: server fp8 ended"),
        (
            "tests.support.load.cellcheck.CellRefused: repeat 1 of 1x128, got tests.support.engine.base.ServerDied: "
            "server fp8 ended, got exit code 1, expected a number",
            "ServerDied: server fp8 ended, got exit code 1",
        ),
        ("assert 3 <= 2", "assert 3 <= 2"),
    ],
)
def test_a_reason_is_told_without_the_modules_of_its_errors(recorded: str, told: str) -> None:
    assert plain_reason(recorded) == told


def test_one_cause_is_one_line_a_build() -> None:
    why = "tests.support.engine.base.ServerDied: server fp8 ended"
    rows = [failed(replace(row, numbers={}), why) for row in serve_rows(FP8)]
    spoilt = "tests.support.load.cellcheck.CellRefused: repeat 1 of 1x128, got " + why + ", expected a number"
    rows += [failed(cell_row(FP8, (1, 128)), spoilt), Row("sweep", "fp8", "repeat-1-1x128", "failed", why)]
    rows.append(Row("quant", "bf16", "bounds", "infeasible", "nothing is quantized"))
    found = troubles(Run(record_with(rows))).rows
    assert [(row[0], row[2], row[3]) for row in found] == [
        ("fp8", "failed", "ServerDied: server fp8 ended"),
        ("bf16", "infeasible", "nothing is quantized"),
    ]
    assert found[0][1].endswith("and 1 more")  # boot, four answers, logprobs and the cell; not the repeat


def test_answers_count_words_that_were_said() -> None:
    rows = serve_rows(FP8)
    wrong = [failed(row, "WrongText") if row.item == "tool" else row for row in rows]
    silent = [failed(replace(row, numbers={}), "ServerDied") for row in rows]
    build = Run(record_with(rows)).builds[0]
    assert answered(Run(record_with(rows)), build) == "3/3"
    assert answered(Run(record_with(wrong)), build) == "2/3"
    assert answered(Run(record_with(silent)), build) == Gap("ServerDied")


def test_warnings_are_told_once_with_their_builds() -> None:
    boots = [serve_rows(FORMATS[name])[0] for name in ("bf16", "fp8")]
    rows = [replace(boot, numbers={**boot.numbers, "warnings": ["untuned shapes"]}) for boot in boots]
    assert warnings(Run(record_with(rows))).rows == (("untuned shapes", "bf16, fp8"),)


def test_the_price_of_the_run_is_the_reports() -> None:
    """What `--price` gave reaches the dollars per million tokens; a machine that bills nothing shows none."""
    text = markdown(made_up_record(usd_per_hour=36.0))
    assert "at $36.00 an hour" in text
    bf16 = next(
        line for line in text.split("at $36.00 an hour")[1].splitlines() if line.startswith("| bf16 ")
    )
    assert "$83.33" in bf16  # 36 / (120 * 3600 / 1e6)
    assert "dollars per million" not in markdown(made_up_record(usd_per_hour=0.0))


def test_memory_stands_as_predicted_and_as_found() -> None:
    table = memory(Run(made_up_record(["bf16"])))
    values = {column.name: value for column, value in table.pairs(table.rows[0])}
    assert (values["predicted"], values["loaded"]) == (0.0031, 0.003)
    assert (values["KV tokens, predicted"], values["KV tokens, log"]) == (720_000, 729_444)


def front(record: Record) -> set[str]:
    """Builds that the plots of speed name."""
    values = [
        point for name in ("tradeoff", "footprint") for point in specs(Run(record))[name]["data"]["values"]
    ]
    return {point["build"] for point in values if point["front"]}


def test_the_plots_name_no_build_that_no_rule_may_pick() -> None:
    """One whose answer failed is neither on the front nor keeps others from it."""
    builds = ["bf16", "fp8", "fp8fnuz"]
    assert front(made_up_record(builds)) == {"bf16"}
    text = failed(next(row for row in serve_rows(FORMATS["bf16"]) if row.item == "text"), "WrongText")
    assert front(made_up_record(builds, changed={text.key: text})) == {"fp8", "fp8fnuz"}


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        (
            SMOKE,
            "8 × 128 varied by over 10 % between repeats: ranked all the same, for want of steadier ones.",
        ),
        (ARTICLE, "8 × 128 varied by over 10 % between repeats: shown, not ranked."),
    ],
    ids=["alone", "among others"],
)
@pytest.mark.parametrize("at_once", [1, 8])
def test_the_page_says_whether_noisy_loads_are_ranked(
    grid: Sequence[tuple[int, int]], said: str, at_once: int
) -> None:
    noisy = cell_row(FORMATS["fp8"], (at_once, 128), wobble=(1.0, 0.7, 1.4))
    said = said.replace("8 ×", f"{at_once} ×")
    speed = next(
        each
        for each in sections(Run(made_up_record(grid=grid, changed={noisy.key: noisy})))
        if each.key == "speed"
    )
    assert speed.lead.count("varied") == 1
    assert said in speed.lead
