"""The rules of "which one?": who may be picked, who is, and when nobody can be."""

from dataclasses import replace
from typing import Any

import pytest

from quantkit.formats import FORMATS
from tests.meta.made_up import ARTICLE, cell_row, failed, made_up_record, quant_row, record_with, serve_rows
from tests.report.answer import answers
from tests.report.caveats import drift_of, run_caveats, unfinished
from tests.report.markdown import markdown
from tests.report.page import page
from tests.report.run import Run
from tests.report.standing import Answer
from tests.report.summary import summary
from tests.report.terminal import table
from tests.support.record import Record, Row

BF16, FP8, EMB4 = (FORMATS[name] for name in ("bf16", "fp8", "fp8emb4"))


def given(record: Record, key: str) -> Answer:
    """One of the answers of a record."""
    return next(answer for answer in answers(Run(record)) if answer.key == key)


def with_numbers(row: Row, **numbers: Any) -> Row:
    """A row whose numbers differ."""
    return replace(row, numbers={**row.numbers, **numbers})


def faster(row: Row, factor: float) -> Row:
    """A cell with every figure of speed multiplied."""
    repeats = [{**each, "tok_per_s": each["tok_per_s"] * factor} for each in row.numbers["repeats"]]
    return with_numbers(row, tok_per_s=row.numbers["tok_per_s"] * factor, repeats=repeats)


def test_the_fastest_wins_where_intervals_do_not_overlap() -> None:
    answer = given(made_up_record(), "one")
    assert (answer.picks, answer.verdict) == (("bf16",), "clear")
    assert answer.standings[1].words.startswith("110 tok/s, 0.92× bf16 (")


@pytest.mark.parametrize(("lead", "verdict"), [(1.001, "too close to call"), (1.05, "clear")])
def test_overlapping_intervals_are_too_close_to_call(lead: float, verdict: str) -> None:
    same = replace(cell_row(BF16, (1, 128)), build="fp8")
    record = made_up_record(["bf16", "fp8"], [(1, 128)], {same.key: faster(same, lead)})
    answer = given(record, "one")
    assert answer.verdict == verdict
    assert answer.picks[0] == "fp8"
    assert len(answer.picks) == (2 if verdict != "clear" else 1)


def test_a_tie_that_only_a_wide_spread_makes_is_said_to_be_one() -> None:
    wide = cell_row(FP8, (1, 128), wobble=(1.0, 0.92, 1.08))
    answer = given(made_up_record(["bf16", "fp8"], [(1, 128)], {wide.key: wide}), "one")
    assert answer.verdict == "too close to call"
    assert any("only a wide spread keeps fp8 (9 % behind)" in caveat for caveat in answer.caveats)


def test_without_repeats_nothing_is_called() -> None:
    rows = [cell_row(build, (1, 128), wobble=(1.0,)) for build in (BF16, FP8)]
    answer = given(record_with(rows), "one")
    assert answer.verdict == "too close to call"
    assert any("no spread is known" in caveat for caveat in answer.caveats)


def test_a_noisy_load_is_not_ranked() -> None:
    noisy = cell_row(FORMATS["w8a8"], (8, 128), wobble=(3.0, 1.5, 4.5))
    record = made_up_record(["bf16", "w8a8"], [(8, 128), (64, 128)], {noisy.key: noisy})
    answer = given(record, "many")
    assert answer.picks == ("bf16",)
    assert any(caveat.startswith("8 × 128 varies") for caveat in answer.caveats)


def test_a_build_that_lacks_a_cell_is_not_compared() -> None:
    dead = failed(cell_row(BF16, (1, 128)), "prompts were served from the cache")
    answer = given(made_up_record(["bf16", "fp8"], changed={dead.key: dead}), "one")
    assert answer.picks == ("fp8",)
    assert any("bf16 lacks a cell" in caveat for caveat in answer.caveats)


@pytest.mark.parametrize("item", ["text", "thinking", "tool", "logprobs"])
def test_a_build_with_a_wrong_answer_is_never_picked(item: str) -> None:
    wrong = failed(next(row for row in serve_rows(BF16) if row.item == item), "WrongText: Accra")
    run = Run(made_up_record(["bf16", "fp8"], changed={wrong.key: wrong}))
    assert all("bf16" not in answer.picks for answer in answers(run))
    assert f"not considered: bf16 (serve: {item} failed)" in run_caveats(run)


def test_a_build_with_faulty_weights_is_never_picked() -> None:
    wrong = failed(quant_row(FORMATS["q4w4a16"]), "wrong_values in down_proj")
    record = made_up_record(changed={wrong.key: wrong})
    assert given(record, "fidelity").picks == ("q4w4a16ple4",)


def test_builds_that_are_out_stand_with_their_reasons() -> None:
    rows = [
        Row("quant", "fp8", "fidelity", "failed", "x", {}),
        Row("serve", "bf16", "text", "failed", "x", {}),
        Row("serve", "w8a8", "text", "failed", "x", {}),
    ]
    told = "not considered: fp8 (quant: fidelity failed); bf16 and w8a8 (serve: text failed)"
    assert told in run_caveats(Run(record_with(rows)))


def test_builds_of_others_and_a_shared_cpu_are_caveats() -> None:
    found = run_caveats(Run(record_with([], settings={"machine": "cpu", "found": ["fp8"]})))
    assert "made by others, and taken as they are: fp8" in found
    assert any("advisory" in each for each in found)
    assert run_caveats(Run(record_with([], machine="mi300x"))) == ()


def test_a_control_that_failed_is_no_builds_fault() -> None:
    control = Row("quant", "", "noise_is_off_the_grid", "failed", "assert 3 == 0", {})
    assert not any("not considered" in each for each in run_caveats(Run(record_with([control]))))


def test_a_boot_that_differs_is_a_caveat_and_no_exclusion() -> None:
    other = failed(serve_rows(BF16)[0], "WrongKernel: got Exllama")
    run = Run(made_up_record(["bf16", "fp8"], changed={other.key: other}))
    assert answers(run)[0].picks == ("bf16",)
    assert any(caveat.endswith("failed to boot: bf16") for caveat in run_caveats(run))


def test_fidelity_goes_to_the_grid_then_to_dense_tables_then_to_the_least_error() -> None:
    order = [each.build for each in given(made_up_record(), "fidelity").standings]
    assert order[:3] == ["q4w4a16", "q4w4a16ple4", "q4w4a16emb4"]
    assert order[3:6] == ["w8a8", "fp8", "fp8fnuz"]


def test_a_group_off_the_grid_loses_the_grids_place() -> None:
    row = quant_row(FORMATS["q4w4a16"])
    spoilt = with_numbers(row, groups_off_grid=1, as_served={"relative_rms_error": 0.05})
    answer = given(made_up_record(["fp8", "q4w4a16"], changed={row.key: spoilt}), "fidelity")
    assert answer.picks == ("fp8",)


def test_a_shared_card_takes_the_least_memory_among_the_fast_enough() -> None:
    answer = given(made_up_record(["bf16", "fp8", "fp8emb4"]), "shared")
    assert (answer.picks, answer.verdict) == (("fp8emb4",), "clear")
    slow = [faster(cell_row(EMB4, load), 0.4) for load in ((1, 128), (8, 128))]
    answer = given(
        made_up_record(["bf16", "fp8", "fp8emb4"], changed={row.key: row for row in slow}), "shared"
    )
    assert answer.picks == ("bf16",)
    assert any("fp8emb4 takes less" in caveat for caveat in answer.caveats)


def test_equal_memory_and_speed_are_equal() -> None:
    answer = given(made_up_record(["fp8emb4", "fp8fnuzemb4"], [(1, 128)]), "shared")
    assert answer.verdict == "equal"
    assert set(answer.picks) == {"fp8emb4", "fp8fnuzemb4"}


@pytest.mark.parametrize("key", ["one", "many", "fidelity", "shared"])
def test_nothing_measured_is_said_so(key: str) -> None:
    answer = given(record_with([]), key)
    assert (answer.picks, answer.verdict, answer.headline) == ((), "not measured", "not measured")


def test_only_one_request_measured_says_nothing_of_many() -> None:
    assert given(made_up_record(grid=[(1, 128)]), "many").verdict == "not measured"
    assert given(made_up_record(grid=[(8, 128)]), "one").verdict == "not measured"


def test_drift_is_a_caveat_past_three_per_cent() -> None:
    assert not any("at the end of the run" in each for each in run_caveats(Run(made_up_record(["bf16"]))))
    slower = faster(cell_row(BF16, (1, 128), nth=2), 0.9)
    run = Run(made_up_record(["bf16"], [(1, 128)], {slower.key: slower}))
    assert f"bf16 at the end of the run was {0.99 * 0.9:.2f}× its speed at the start" in run_caveats(run)


def test_drift_is_bf16s_alone_in_whatever_order_rows_stand() -> None:
    record = made_up_record(["bf16", "fp8"])
    assert drift_of(Run(replace(record, rows=record.rows[::-1]))) == pytest.approx(0.99)


def test_a_first_pass_that_failed_tells_no_drift() -> None:
    first = failed(cell_row(BF16, (1, 128)), "the server died")
    run = Run(made_up_record(["bf16"], [(1, 128)], {first.key: first}))
    assert not any("at the end of the run" in each for each in run_caveats(run))


def test_a_bf16_of_its_own_is_a_caveat() -> None:
    run = Run(made_up_record(bf16_source_hash="beef"))
    assert any("differs in weights" in caveat for caveat in run_caveats(run))


def test_every_figure_of_a_whole_grid_is_used() -> None:
    assert given(made_up_record(grid=ARTICLE), "many").basis.count("×") == 6


def _broken_off(*ran: str) -> Run:
    """A run that was to measure all ten builds and served a few; of the rest only the weights, or nothing."""
    weights = [quant_row(FORMATS[name]) for name in ("w8a8", "q4w4a16")]
    rows = [*made_up_record(ran, [(1, 128)]).rows, *weights]
    return Run(record_with(rows, builds=list(FORMATS)))


def test_a_run_that_broke_off_says_so_before_all_else() -> None:
    run = _broken_off("bf16", "fp8")
    assert unfinished(run) == "unfinished: 8 of 10 builds were not served"
    assert table(run.record)[0] == unfinished(run)
    assert unfinished(run) in markdown(run.record)[:200]
    assert unfinished(run) in page(run.record).partition("</header>")[0]
    assert summary(run.record)["caveats"][0] == unfinished(run)


@pytest.mark.parametrize("key", ["one", "shared"])
def test_an_answer_names_the_builds_that_were_not_served(key: str) -> None:
    found = next(each for each in answers(_broken_off("bf16", "fp8")) if each.key == key)
    names = ", ".join(list(FORMATS)[2:-1])
    assert found.caveats[-1] == f"unfinished: {names} and q4w4a16emb4 were not served and are not compared"


def test_fidelity_names_the_builds_whose_weights_were_not_measured() -> None:
    found = next(each for each in answers(_broken_off("bf16", "fp8")) if each.key == "fidelity")
    assert found.caveats[-1].startswith("fp8fnuz, fp8emb4,")
    assert "w8a8," not in found.caveats[-1]


def test_a_build_without_any_cell_is_unfinished_too() -> None:
    record = made_up_record(["bf16", "fp8", "w8a8"], [(1, 128)])
    rows = [row for row in record.rows if (row.suite, row.build) != ("sweep", "fp8")]
    run = Run(record_with(rows))
    assert unfinished(run) == "unfinished: 1 of 3 builds was served but not timed in any cell"
    assert answers(run)[0].caveats == (
        "unfinished: fp8 was served but not timed in any cell and is not compared",
    )


def test_what_was_not_begun_or_cannot_exist_is_not_unfinished() -> None:
    """The weights alone were asked for; or every cell of a build is one that cannot be."""
    assert unfinished(Run(record_with([quant_row(FP8)], builds=list(FORMATS)))) == ""
    cell = replace(cell_row(FP8, (1, 128)), outcome="infeasible")
    assert unfinished(Run(made_up_record(["bf16", "fp8"], [(1, 128)], {cell.key: cell}))) == ""
    assert unfinished(Run(made_up_record())) == ""


def test_one_lacks_and_two_lack() -> None:
    dead = [failed(cell_row(build, (1, 128)), "x") for build in (BF16, FP8)]
    for count, said in (
        (1, "bf16 lacks a cell and is not compared"),
        (2, "bf16 and fp8 lack a cell and are not"),
    ):
        changed = {row.key: row for row in dead[:count]}
        answer = given(made_up_record(["bf16", "fp8", "w8a8"], [(1, 128), (1, 1024)], changed), "one")
        assert any(said in caveat for caveat in answer.caveats)


def test_bf16_against_itself_has_no_interval() -> None:
    words = {each.build: each.words for each in given(made_up_record(["bf16", "fp8"]), "one").standings}
    assert words["bf16"].endswith("1.00× bf16")
    assert words["fp8"].endswith(")")
