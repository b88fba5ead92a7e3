"""The published MI300X rows through record, statistics and report: the article's derived figures, to the printed digit.

The figures on the right were taken from the publication; nothing here was measured by this project.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.report import detail, pairs, tables
from tests.report.answer import answers
from tests.report.markdown import markdown
from tests.report.published import published_record
from tests.report.run import Gap, Run
from tests.report.standing import Answer
from tests.report.tables import Table
from tests.report.words import written
from tests.support.record import Record, read_record, write_record

PUBLISHED = Path(__file__).parents[2] / "baselines" / "mi300x" / "published"

RANGES = {
    "bf16": "1.00–1.00",
    "fp8": "0.75–1.08",
    "fp8fnuz": "0.75–1.09",
    "fp8emb4": "0.72–1.08",
    "fp8fnuzemb4": "0.72–1.06",
    "w8a8": "0.29–0.87",
    "w8a8emb4": "0.29–0.79",
    "q4w4a16": "0.14–0.63",
    "q4w4a16ple4": "0.14–0.63",
    "q4w4a16emb4": "0.14–0.63",
}
PAIRS_OF_8 = {
    "fp8fnuz / fp8": "0.995–1.014",
    "fp8fnuzemb4 / fp8emb4": "0.998–1.006",
    "fp8emb4 / fp8": "0.954–0.974",
    "w8a8emb4 / w8a8": "0.984–0.992",
    "q4w4a16emb4 / q4w4a16": "0.990–0.999",
    "q4w4a16ple4 / q4w4a16": "0.993–0.999",
    "fp8 / w8a8": "1.901–2.585",
    "fp8 / q4w4a16": "2.951–5.420",
    "w8a8 / q4w4a16": "1.423–2.097",
}
PAIRS_OF_9 = {
    "fp8fnuz / fp8": "0.995–1.160",
    "fp8fnuzemb4 / fp8emb4": "0.849–1.006",
    "fp8emb4 / fp8": "0.954–1.255",
    "w8a8emb4 / w8a8": "0.905–0.992",
    "q4w4a16emb4 / q4w4a16": "0.990–1.006",
    "q4w4a16ple4 / q4w4a16": "0.993–1.007",
}
WEIGHTS = {
    "bf16": ("9.42 GiB", "9,045,060", "205.4 s"),
    "fp8": ("7.07 GiB", "9,017,531", "181.9 s"),
    "fp8fnuz": ("7.07 GiB", "9,017,531", "181.7 s"),
    "fp8emb4": ("3.61 GiB", "9,422,004", "180.7 s"),
    "fp8fnuzemb4": ("3.61 GiB", "9,422,004", "159.9 s"),
    "w8a8": ("7.07 GiB", "9,025,606", "225.6 s"),
    "w8a8emb4": ("3.60 GiB", "9,419,957", "205.0 s"),
    "q4w4a16": ("6.32 GiB", "9,070,174", "161.6 s"),
    "q4w4a16ple4": ("3.18 GiB", "9,449,863", "181.4 s"),
    "q4w4a16emb4": ("2.85 GiB", "9,475,223", "159.1 s"),
}
EXTREMES = {
    "1 × 128": "7.26×",
    "1 × 1024": "6.85×",
    "1 × 8192": "5.19×",
    "8 × 128": "5.25×",
    "8 × 1024": "5.00×",
    "8 × 8192": "3.58×",
    "64 × 128": "3.23×",
    "64 × 1024": "2.98×",
    "64 × 8192": "1.71×",
}
# Both fp8 flavours count as one format, by the faster of the two; likewise their forms with int4 tables.
MEDALS = {
    "1 × 128": ("bf16", "fp8", "fp8emb4"),
    "1 × 1024": ("bf16", "fp8", "fp8emb4"),
    "1 × 8192": ("bf16", "fp8", "fp8emb4"),
    "8 × 128": ("fp8", "bf16", "fp8emb4"),
    "8 × 1024": ("fp8", "bf16", "fp8emb4"),
    "8 × 8192": ("fp8", "fp8emb4", "bf16"),
    "64 × 128": ("fp8", "bf16", "fp8emb4"),
    "64 × 1024": ("fp8", "fp8emb4", "bf16"),
    "64 × 8192": ("fp8emb4", "bf16", "fp8"),
}
SHARES_IDENTICAL = {
    "mlp.down_proj": "89.9",
    "mlp.gate_proj": "90.0",
    "mlp.up_proj": "90.2",
    "per_layer_input_gate": "92.3",
    "per_layer_projection": "91.1",
    "self_attn.k_proj": "90.4",
    "self_attn.o_proj": "89.7",
    "self_attn.q_proj": "90.1",
    "self_attn.v_proj": "91.1",
    "per_layer_model_projection": "90.2",
}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The published rows, written as a run's record and read back by its strict reader."""
    given = published_record(PUBLISHED)
    head = {name: value for name, value in given.header.items() if name != "kind"}
    return read_record(write_record(tmp_path_factory.mktemp("published"), head, given.rows))


@pytest.fixture(scope="module")
def run(record: Record) -> Run:
    """The same as the report sees it."""
    return Run(record)


def column(table: Table, name: str) -> dict[str, Any]:
    """A column of a table as it is written, by the first column."""
    index = [each.name for each in table.columns].index(name)
    return {row[0]: written(table.columns[index].form, row[index]) for row in table.rows}


def answer(run: Run, key: str) -> Answer:
    """One of the four answers."""
    return next(each for each in answers(run) if each.key == key)


def test_every_build_and_cell_is_there(run: Run) -> None:
    assert [build.name for build in run.builds] == list(RANGES)
    assert len(run.cells) == 90
    assert all(cell.tok_per_s and cell.tpot_s for cell in run.cells.values())


def test_it_is_never_shown_as_measured_here(run: Run, record: Record) -> None:
    assert run.published
    text = markdown(record)
    assert "Published figures, not measured here" in text
    for fact in ("2026-10-07", "sha256:ec62abecc13923172cf1225c0270b8cea7d84b652eacd3c8dffe2dd35dd73e37"):
        assert fact in text
    assert "time to first token" in run.header["unknown"]
    assert isinstance(tables.ttft(run).rows[0][1], Gap)


def test_ranges_against_bf16(run: Run) -> None:
    assert column(tables.ratios(run), "range") == RANGES


def test_the_noisy_cell_is_the_one_that_was_left_out(run: Run) -> None:
    assert run.noisy == {(64, 8192)}


@pytest.mark.parametrize("pair", PAIRS_OF_8)
def test_pairs_without_the_noisy_cell(run: Run, pair: str) -> None:
    assert column(pairs.pairs(run), "without 64 × 8192")[pair] == PAIRS_OF_8[pair]


@pytest.mark.parametrize("pair", PAIRS_OF_9)
def test_pairs_over_all_cells(run: Run, pair: str) -> None:
    assert column(pairs.pairs(run), "all cells")[pair] == PAIRS_OF_9[pair]


def test_fastest_over_slowest_follows_the_data(run: Run) -> None:
    """Press reports say 7.8 times; the widest cell of the data gives 7.26."""
    found = column(pairs.extremes(run), "ratio")
    assert found == EXTREMES
    assert max(float(each.rstrip("×")) for each in found.values()) == 7.26


def test_weights_table(run: Run) -> None:
    table = tables.memory(run)
    found = zip(*(column(table, name).items() for name in ("loaded", "KV tokens, log", "boot")), strict=True)
    assert {loaded[0]: (loaded[1], tokens[1], boot[1]) for loaded, tokens, boot in found} == WEIGHTS


def test_fidelity_table(run: Run) -> None:
    table = detail.fidelity(run)
    rms, rows, each = (
        column(table, name) for name in ("relative RMS", "worst over row absmax", "worst per element")
    )
    assert (rms["fp8"], rms["fp8fnuz"]) == ("0.0264", "0.0264")
    assert (rows["fp8"], rows["fp8fnuz"]) == ("0.0357", "0.0333")
    assert each["q4w4a16"] == "0.0109"
    assert column(table, "tensors, Frobenius")["w8a8"] == "0.00589–0.0171"
    assert column(table, "modules")["q4w4a16"] == "276"
    assert column(table, "values")["fp8"] == "1,876,819,968"
    assert column(table, "groups off grid")["q4w4a16"] == "0"
    assert column(table, "bit-identical")["q4w4a16"] == "90.0 %"
    assert "90.03%" in answer(run, "fidelity").standings[0].words


@pytest.mark.parametrize("kind", SHARES_IDENTICAL)
def test_identical_values_by_kind(run: Run, kind: str) -> None:
    assert column(detail.kinds(run), kind)["q4w4a16"] == f"{SHARES_IDENTICAL[kind]}% identical"


def test_medals(run: Run) -> None:
    assert {row[0]: row[1:] for row in pairs.medals(run).rows} == MEDALS


def test_which_one_for_one_request(run: Run) -> None:
    found = answer(run, "one")
    assert (found.picks, found.verdict) == (("bf16",), "clear")


def test_which_one_for_many(run: Run) -> None:
    """fp8 in either flavour; the third is kept in by nothing but its own spread, and the answer says so."""
    found = answer(run, "many")
    assert found.picks[:2] == ("fp8fnuz", "fp8")
    assert found.picks[2:] == ("fp8emb4",)
    assert found.verdict == "too close to call"
    assert any("only a wide spread keeps fp8emb4" in caveat for caveat in found.caveats)
    assert any("64 × 8192" in caveat for caveat in found.caveats)


def test_which_one_for_fidelity(run: Run) -> None:
    assert answer(run, "fidelity").picks == ("q4w4a16",)


def test_which_one_on_a_shared_card(run: Run) -> None:
    found = answer(run, "shared")
    assert set(found.picks) == {"fp8emb4", "fp8fnuzemb4"}
    assert found.standings[0].words.startswith("3.61 GiB")
    assert any("q4w4a16emb4 takes less, 2.85 GiB" in caveat for caveat in found.caveats)


def test_cost_at_the_list_price(run: Run) -> None:
    table = tables.cost(run, 1.99)
    assert column(table, "1 × 128")["bf16"] == "$1.61"  # 1.99 / (343.44 * 3600 / 1e6)
    assert column(table, "64 × 1024")["fp8fnuz"] == "$0.057"
