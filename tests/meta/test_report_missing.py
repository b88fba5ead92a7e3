"""What a report says where a record is thin: no figure made up, no empty table, no command that cannot be given."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from quantkit.formats import FORMATS
from tests.meta.made_up import (
    cell_row,
    failed,
    gemm_rows,
    quant_row,
    record_with,
    serve_rows,
)
from tests.report.definitions import DEFINITIONS
from tests.report.judged import verdicts
from tests.report.markdown import markdown, title_of
from tests.report.page import page
from tests.report.pairs import extremes, medals
from tests.report.plots import specs
from tests.report.products import explained
from tests.report.repeat import commands
from tests.report.run import Gap, Run, cell_of
from tests.report.sections import price_of, sections
from tests.report.spoken import by_question, said
from tests.report.tables import fidelity_text, ratios
from tests.report.terminal import table
from tests.report.troubles import causes
from tests.support.record import Row

FP8 = FORMATS["fp8"]


def boot(build: str, **numbers: Any) -> Row:
    return Row("serve", build, "boot", "ok", "", numbers)


@pytest.mark.parametrize(
    ("numbers", "rate", "count"),
    [
        ({"repeats": [{"tok_per_s": 3.0}, {"tok_per_s": 1.0}, {"tok_per_s": 2.0}]}, 2.0, 3),
        ({"repeats": [{"tok_per_s": True}, "x", {"tok_per_s": None}, {"tok_per_s": 2.0}]}, 2.0, 1),
        ({"tok_per_s": 5.0, "repeats": [{"tok_per_s": 2.0}]}, 5.0, 1),
        ({"tok_per_s": 5.0, "repeat_count": 3, "repeats": None}, 5.0, 3),
        ({"tok_per_s": True}, None, 0),
        ({"tok_per_s": "fast", "repeat_count": None}, None, 0),
    ],
)
def test_only_numbers_are_numbers(numbers: dict[str, Any], rate: float | None, count: int) -> None:
    cell = cell_of(Row("sweep", "fp8", "1x128", "ok", "", numbers))
    assert cell is not None
    assert (cell.tok_per_s, cell.repeat_count) == (rate, count)


def test_two_repeats_have_a_spread_of_their_own() -> None:
    numbers = {"repeats": [{"tok_per_s": 9.0}, {"tok_per_s": 11.0}], "cv": 9.0}
    cell = cell_of(Row("sweep", "fp8", "1x128", "ok", "", numbers))
    assert cell is not None
    assert cell.cv == pytest.approx(2**0.5 / 10)


@pytest.mark.parametrize(
    ("head", "price"),
    [({"usd_per_hour": 0.0}, 0.0), ({"usd_per_hour": True}, 2.0), ({}, 2.0), ({"machine": "another"}, 0.0)],
)
def test_the_price_is_the_runs_own_then_the_machines(head: dict[str, Any], price: float) -> None:
    listed = price_of(Run(record_with([], machine="mi300x")))
    assert listed > 0
    found = price_of(Run(record_with([], **{"machine": "mi300x", **head})))
    assert found == (listed if price else 0.0)


def test_the_title_and_the_commands_name_what_is_known() -> None:
    bare = record_with([Row("sweep", "fp8", "1x128", "ok", "", {})])
    bare = replace(bare, header={"settings": {}})
    assert title_of(Run(bare)) == "Which format for a checkpoint on this machine?"
    assert commands(Run(bare))[0] == "pytest tests/sweep --run RUN"
    assert commands(Run(replace(bare, rows=())))[0] == "pytest tests --run RUN"
    named = replace(bare, header={"source": "folder", "model": "E2B", "machine": "cpu"})
    assert title_of(Run(named)) == "Which format for E2B on cpu?"
    public = replace(bare, header={"origin": "published", "machine": "mi300x"})
    assert commands(Run(public))[0] == "pytest -m mi300x --grid article --run RUN"


def beside(rows: Iterable[Row], build: str, **head: Any) -> tuple[Any, ...]:
    """What the products explain of a build's time at 1 request at once, and the seconds left."""
    record = record_with([*rows, cell_row(FORMATS[build], (1, 128))], **head)
    return explained(Run(record)).rows[0][1:]


def test_what_the_products_explain() -> None:
    """The head follows the tables and the rest the linears; a flavour that did not run is told by its twin."""
    us = {
        "bf16": {"lm_head 512x128": 400.0, "o_proj 8x8": 300.0},
        "fp8": {"lm_head 512x128": 100.0, "o_proj 8x8": 50.0},
        "int4": {"lm_head 512x128": 10.0, "o_proj 8x8": 1.0},
    }
    rows = [
        Row(
            "gemm",
            "",
            f"{name}-1",
            "ok",
            "",
            {"shapes": {shape: {"us": each, "count": 2} for shape, each in by.items()}},
        )
        for name, by in us.items()
    ]
    for build, total in (("bf16", 1400.0), ("fp8", 900.0), ("fp8fnuz", 900.0), ("fp8emb4", 120.0)):
        tpot = cell_row(FORMATS[build], (1, 128)).numbers["tpot_s"]
        assert beside(rows, build) == pytest.approx((total / 1e6 / tpot, tpot - total / 1e6))
    assert beside(rows, "w8a8") == (Gap("o_proj 8x8 did not run at 1 row"),) * 2
    assert explained(Run(record_with([cell_row(FP8, (1, 128))]))).rows == ()
    rows[0] = replace(rows[0], numbers={})
    assert beside(rows, "fp8") == (Gap("no products by shape at 1 row"),) * 2


@pytest.mark.parametrize(
    ("source", "same"), [("checkpoint", True), ("a/checkpoint", True), ("point", True), ("E4B", False)]
)
def test_products_of_another_model_explain_nothing(source: str, same: bool) -> None:
    found = beside(gemm_rows(), "fp8", source=source)
    assert isinstance(found[0], float) is same
    if not same:
        assert found == (Gap("the products are those of checkpoint, the model served is E4B"),) * 2


def test_what_the_engine_never_said_is_told_so() -> None:
    rows = [Row("serve", "fp8", "text", "ok", "", {}), boot("bf16")]
    assert [row[0] for row in by_question(Run(record_with(rows))).rows] == ["fp8"]
    assert said(Run(record_with(rows))).rows == (
        ("fp8", "text", "right", Gap("the answer's text was not recorded"), "–"),
    )
    assert ratios(Run(record_with([cell_row(FP8, (1, 128))]))).rows[0][-1] == Gap("no ratio in any cell")
    heat = specs(Run(record_with([cell_row(FP8, (1, 128))])))["heat"]["data"]["values"]
    assert [(row["word"], row["said"]) for row in heat] == [("–", "no ratio")]
    dead = failed(Row("gate", "fp8", "1x128", "ok", "", {}), "died")
    assert verdicts(Run(record_with([dead]))).rows[0][2:4] == ("failed", Gap("died"))


@pytest.mark.parametrize(("gib", "unit", "factor"), [((0.01, 0.05), "MiB", 1024), ((0.02, 0.2), "GiB", 1)])
def test_plots_of_memory_take_the_unit_that_shows_it(
    gib: tuple[float, float], unit: str, factor: int
) -> None:
    names = ("bf16", "fp8")
    boots = [boot(name, loaded_gib=each, predicted_gib=each) for name, each in zip(names, gib, strict=True)]
    made = specs(Run(record_with([*boots, *(cell_row(FORMATS[name], (1, 128)) for name in names)])))
    for plot, field in (("memory", "loaded"), ("memory", "predicted"), ("footprint", "x")):
        assert [row[field] for row in made[plot]["data"]["values"]] == [each * factor for each in gib]
    assert made["memory"]["layer"][0]["encoding"]["x"]["title"].startswith(f"{unit} after load")


def test_one_build_is_neither_fastest_nor_slowest() -> None:
    record = record_with([cell_row(FP8, (1, 128))])
    assert extremes(Run(record)).rows == medals(Run(record)).rows == ()


def test_speed_against_fidelity_is_drawn_for_half_the_builds_at_least() -> None:
    """Where log probabilities were not measured, bf16 has no place in the plot."""
    cells = [cell_row(FORMATS[name], (1, 128)) for name in ("bf16", "fp8", "w8a8")]
    weights = [quant_row(FORMATS[name]) for name in ("fp8", "w8a8")]
    assert "tradeoff" in specs(Run(record_with(cells + weights)))
    assert "tradeoff" in specs(Run(record_with(cells[:2] + weights[:1])))
    assert "tradeoff" not in specs(Run(record_with(cells + weights[:1])))


def test_the_form_of_an_error_is_that_of_what_was_measured() -> None:
    row = quant_row(FP8)
    stored = replace(row, numbers={**row.numbers, "as_served": {}})
    for given, text in ((row, "0.029"), (stored, "0.0264")):
        run = Run(record_with([given]))
        assert fidelity_text(run, run.builds[0]) == text


def test_a_section_that_has_nothing_says_so() -> None:
    text = markdown(record_with([]))
    assert text.count("Nothing of this kind was measured in this run.") == 8
    assert "Everything that was planned ended well." in text
    assert not any(section.shown for section in sections(Run(record_with([])))[:-1])
    assert table(record_with([]))[-1] == "no build ran"


def test_without_a_sweep_no_table_of_speed_is_shown() -> None:
    run = Run(record_with([quant_row(FP8), *serve_rows(FP8)]))
    shown = {section.key: [table.name for table in section.shown] for section in sections(run)}
    assert (shown["speed"], shown["latency"], shown["tradeoff"]) == ([], [], ["quality"])


def test_repeats_are_told_where_their_cell_tells_nothing() -> None:
    """A repeat that failed is left out only where its cell's row did not end well either."""
    repeat = Row("sweep", "fp8", "repeat-2-1x128", "failed", "spoilt", {})
    other = replace(repeat, suite="serve")
    cell = cell_row(FP8, (1, 128))
    for rows, told in (
        ([repeat], 1),
        ([repeat, cell], 1),
        ([repeat, failed(cell, "spoilt")], 1),
        ([other, failed(cell, "spoilt")], 2),
    ):
        assert sum(len(each.items) for each in causes(Run(record_with(rows)))) == told
    (cause,) = causes(Run(record_with([repeat])))
    assert cause.counted == "sweep repeat-2-1x128"
    (cause,) = causes(Run(record_with([other, failed(cell, "spoilt")])))
    assert cause.counted == "1 of serve, 1 of sweep"


@pytest.mark.parametrize(
    ("causes_", "last"), [(20, "failed: fp8 serve 19: why 19"), (21, "and 1 more: see report.md")]
)
def test_the_terminal_names_twenty_troubles(causes_: int, last: str) -> None:
    rows = [Row("serve", "fp8", str(n), "failed", f"why {n}", {}) for n in range(causes_)]
    assert table(record_with(rows))[-1] == last


def test_the_heat_map_says_what_its_tilde_means_where_it_has_one() -> None:
    for wobble, noisy in (((1.0, 0.5, 1.5), True), ((1.0, 1.0, 1.01), False)):
        spec = specs(Run(record_with([cell_row(FP8, (1, 128), wobble=wobble)])))["heat"]
        assert any("~" in row["word"] for row in spec["data"]["values"]) is noisy
        assert ("~ marks a cell" in spec["description"]) is noisy


def test_what_puzzles_a_reader_is_defined() -> None:
    assert {"holds the 4-bit grid exactly", "negative step"} <= {term for term, _ in DEFINITIONS}


def test_a_long_reason_stands_whole_below_its_table_and_not_in_every_cell() -> None:
    why = "7 of 14 shapes did not run: " + ", ".join(f"proj{n} 5120x1536" for n in range(7))
    rows = [
        Row("gemm", "", "fp8-64", "ok", "", {"no_sum": why}),
        Row("gemm", "", "int8-64", "ok", "", {"us_per_token": 1.0}),
    ]
    assert page(record_with(rows)).count(why) == 1
