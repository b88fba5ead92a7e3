"""Figures of a timing by hand, and the published ones by the same code: sums, ratios, rates, what binds, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.gemm.backends import Backend
from tests.support.gemm.figures import (
    Ceilings,
    ceilings_of,
    rates,
    ratios,
    sums,
)
from tests.support.gemm.rows import card_numbers, control_numbers, ending, product_numbers
from tests.support.gemm.samples import Cell, Timed, cell_of
from tests.support.gemm.shapes import Shape, Token, published_token
from tests.support.record import unfit

FOLDER = Path(__file__).parents[2] / "baselines" / "mi300x" / "published"
PUBLISHED = json.loads((FOLDER / "gemm.json").read_text())
MEASURED = {row["item"]: row["numbers"] for row in PUBLISHED["rows"]}
LISTED = published_token(PUBLISHED)
TOKEN = Token("two", (Shape("o_proj", 32, 64), Shape("o_proj", 32, 64), Shape("lm_head", 128, 64)))


def cell(
    shape: str, seconds: list[float], backend: str = "bf16", rows: int = 1, **other: Any
) -> dict[str, Any]:
    line = {"kind": "cell", "backend": backend, "rows": rows, "shape": shape, "outcome": "ok", "reason": ""}
    return {**line, "seconds": seconds, "kernel": "k", "error_over_bound": 0.5, "eager_s": None, **other}


def timed(*processes: list[dict[str, Any]]) -> Timed:
    shapes = [{"name": shape.name, "n": shape.n, "k": shape.k} for shape in TOKEN.shapes]
    return Timed({"control_side": 8, "rows": [1, 64], "shapes": shapes}, tuple(map(tuple, processes)))


HEAD, OUT = "lm_head 128x64", "o_proj 32x64"


@pytest.mark.parametrize(("backend", "rows"), [("fp8fnuz", 1), ("fp8fnuz", 8), ("fp8fnuz", 64), ("int8", 64)])
def test_published_ratios(backend: str, rows: int) -> None:
    """Each published ratio is bf16's published time over the format's, to the published digits."""
    numbers = MEASURED[f"{backend}-{rows}"]
    (ratio,) = ratios([MEASURED[f"bf16-{rows}"]["us_per_token"]], [numbers["us_per_token"]])
    assert round(ratio, 2) == numbers["ratio_bf16"]


def test_published_control() -> None:
    """fp8's ratio follows from its rate; int8's does not, and the file says so."""
    rate = {name: MEASURED[f"control-{name}"]["tflops"] for name in ("bf16", "fp8fnuz", "int8")}
    assert round(rate["fp8fnuz"] / rate["bf16"], 1) == MEASURED["control-fp8fnuz"]["ratio_bf16"]
    assert round(rate["int8"] / rate["bf16"], 2) == 0.69
    assert any("0.41 does not follow" in caveat for caveat in PUBLISHED["caveats"])


@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize("backend", [Backend.BF16, Backend.FP8FNUZ], ids=str)
def test_published_sum(backend: Backend, rows: int) -> None:
    """Shapes that share the published sum by their bytes add up to it again, through counts, medians and row."""
    us = MEASURED[f"{backend}-{rows}"]["us_per_token"]
    lines = [
        cell(shape.name, [us * 1e-6 * shape.weights / LISTED.weights] * 3, backend.label, rows)
        for shape in LISTED.shapes
    ]
    numbers = product_numbers(timed(lines), LISTED, backend, rows)
    assert numbers["us_per_token"] == pytest.approx(us, rel=1e-4)
    assert sum(each["count"] for each in numbers["shapes"].values()) == 141


def test_published_bf16_reads_at_three_fifths_of_a_copy() -> None:
    """2.257 thousand million weights of two bytes in 1,966 us, of 3.756 TB/s; 4.5 % of the dense rate at 1 row."""
    ceilings = Ceilings(MEASURED["card"]["copy_gb_per_s"] * 1e9, MEASURED["control-bf16"]["tflops"] * 1e12)
    found = rates(LISTED.weights, 1, MEASURED["bf16-1"]["us_per_token"] * 1e-6, Backend.BF16, ceilings)
    assert LISTED.weights == 2_257_059_840
    assert found.gb_per_s == pytest.approx(2295.9, rel=1e-4)
    assert found.share_copy == pytest.approx(0.6113, rel=1e-3)
    assert found.tflops == pytest.approx(2.2959, rel=1e-4)
    assert found.binds == "bandwidth"


@pytest.mark.parametrize(
    ("share_copy", "share_peak", "binds"),
    [
        (0.8, 0.1, "bandwidth"),
        (0.2, 0.7, "compute"),
        (0.34, 0.1, "bandwidth"),
        (0.1, 0.34, "compute"),
        (0.5, 0.5, "bandwidth"),
        (0.3, 0.3, "neither"),
        (None, 0.9, "unknown"),
        (0.9, None, "unknown"),
    ],
)
def test_what_binds(share_copy: float | None, share_peak: float | None, binds: str) -> None:
    ceilings = Ceilings(*(None if share is None else 2.0 / share for share in (share_copy, share_peak)))
    assert rates(1, 1, 1.0, Backend.BF16, ceilings).binds == binds


def test_bytes_of_a_weight() -> None:
    """int4 has a step of two bytes for every 32 weights."""
    sizes = {
        backend.label: rates(32, 1, 1.0, backend, Ceilings(None, None)).gb_per_s * 1e9 for backend in Backend
    }
    expected = {"bf16": 64, "fp16": 64, "fp8": 32, "fp8fnuz": 32, "int8": 32, "int4": 18}
    assert sizes == pytest.approx(expected)


def test_a_sum_counts_every_product() -> None:
    """Two o_proj of 1 and 3 s in two processes and a head of 10 s: 12 and 16 s."""
    cells = {OUT: Cell("ok", seconds=(1.0, 3.0)), HEAD: Cell("ok", seconds=(10.0, 10.0))}
    assert sums(cells, TOKEN.shapes) == (12.0, 16.0)


@pytest.mark.parametrize("outcome", ["unsupported", "not_run", "missing", "wrong"])
def test_no_sum_unless_every_shape_ran(outcome: str) -> None:
    cells = {OUT: Cell("ok", seconds=(1.0,)), HEAD: Cell(outcome, "because")}
    assert sums(cells, TOKEN.shapes) is None


def test_a_row_by_hand() -> None:
    """fp8 in half of bf16's time, three processes; the ratio is taken within each."""
    processes = [
        [
            cell(OUT, [1e-6 * slow], "bf16"),
            cell(HEAD, [4e-6 * slow], "bf16"),
            cell(OUT, [0.5e-6 * slow], "fp8"),
            cell(HEAD, [2e-6 * slow], "fp8"),
        ]
        for slow in (1, 2, 3)
    ]
    numbers = product_numbers(timed(*processes), TOKEN, Backend.FP8, 1)
    assert numbers["us_per_token"] == pytest.approx(6.0)
    assert numbers["ratio_bf16"] == pytest.approx(2.0)
    assert numbers["ratio_spread"] == pytest.approx(0.0)
    assert numbers["spread_us"] == pytest.approx(6.0)
    assert numbers["cv"] == pytest.approx(0.5)
    assert numbers["shapes"][OUT]["ratio_bf16"] == pytest.approx(2.0)
    assert (numbers["model"], numbers["processes"], numbers["kernel"]) == ("two", 3, "k")
    assert unfit(numbers) == ""
    bf16 = product_numbers(timed(*processes), TOKEN, Backend.BF16, 1)
    assert "ratio_bf16" not in bf16
    assert "ratio_bf16" not in bf16["shapes"][OUT]


def test_a_products_row_by_hand() -> None:
    """Of two processes the medians' spread, all samples, the larger error, the first's time without a graph."""
    lines = [
        [
            cell(OUT, [2e-6, 4e-6, 6e-6], eager_s=9e-6, error_over_bound=0.25),
            cell(HEAD, [1e-6] * 3, kernel="a"),
        ],
        [cell(OUT, [6e-6] * 3, eager_s=1.0, error_over_bound=0.75), cell(HEAD, [1e-6] * 3)],
    ]
    for line, moved in zip(lines, (1.01, 0.96), strict=True):
        line.append({**cell("", [8e-6] * 3), "kind": "token", "shape": None})
        line.append({"kind": "drift", "backend": "bf16", "rows": 1, "before_s": 1.0, "after_s": moved})
    numbers = product_numbers(timed(*lines), TOKEN, Backend.BF16, 1)
    shape = numbers["shapes"][OUT]
    assert {name: shape[name] for name in ("count", "us", "spread_us", "samples")} == {
        "count": 2,
        "us": 5.0,
        "spread_us": 2.0,
        "samples": 6,
    }
    assert (shape["error_over_bound"], shape["eager_us"]) == (0.75, 9.0)
    assert (numbers["whole_token_us"], numbers["drift"], numbers["kernel"]) == (8.0, -0.04, "a, k")
    assert (numbers["us_per_token"], numbers["spread_us"], numbers["cv"]) == (
        11.0,
        4.0,
        0.25713,
    )  # of 9 and 13 us


def test_a_card_by_hand() -> None:
    """Facts of the first process without its seed; bytes over the median of each; a graph of nothing."""
    processes: list[list[dict[str, Any]]] = [
        [
            {"kind": "facts", "seed": 7, "device": device},
            {"kind": "copy", "bytes": 6e9, "seconds": seconds},
            {"kind": "empty", "seconds": [1e-6, empty, 9e-6]},
        ]
        for device, seconds, empty in (("x", [1.0, 2.0, 9.0], 2e-6), ("y", [1.5] * 3, 4e-6))
    ]
    assert card_numbers(timed(*processes)) == {
        "device": "x",
        "copy_gb_per_s": 3.5,
        "copy_spread_gb_per_s": 1.0,
        "empty_replay_us": 3.0,
    }
    ceilings = ceilings_of(timed(*processes), Backend.BF16)
    assert (ceilings.bytes_per_s, ceilings.flop_per_s) == (3.5e9, None)


def test_a_square_by_hand() -> None:
    """2 x 8 x 8 x 8 operations in 1 us, in half of bf16's time; a refusal ends its item and names the square."""
    squares = [
        {**cell("", [seconds] * 3, backend), "kind": "control", "rows": None, "shape": None}
        for backend, seconds in (("bf16", 2e-6), ("fp8", 1e-6))
    ]
    squares.append({**squares[0], "backend": "int8", "outcome": "unsupported", "reason": "no"})
    numbers, end = control_numbers(timed(squares), Backend.FP8)
    expected = {
        "side": 8,
        "kernel": "k",
        "us": 1.0,
        "tflops": 0.001024,
        "error_over_bound": 0.5,
        "samples": 3,
    }
    assert numbers == {**expected, "ratio_bf16": 2.0, "ratio_spread": 0.0}
    assert end.outcome == "ok"
    assert "ratio_bf16" not in control_numbers(timed(squares), Backend.BF16)[0]
    numbers, end = control_numbers(timed(squares), Backend.INT8)
    assert (numbers, end.outcome, end.reason) == ({"side": 8}, "infeasible", "unsupported: no")


@pytest.mark.parametrize(("seconds", "peak"), [(1e-6, 2 * 64 * 128 * 64 / 1e-6), (1.0, 2 * 8**3 / 1e-6)])
def test_the_peak_is_the_fastest_that_was_seen(seconds: float, peak: float) -> None:
    """The square of 8 in 1 us, or a product at 64 rows that beats it: no share is above 1."""
    square = {"kind": "control", "backend": "bf16", "outcome": "ok", "reason": "", "seconds": [1e-6] * 3}
    found = timed([square, cell(HEAD, [seconds] * 3, rows=64), cell(OUT, [1.0] * 3)])
    assert ceilings_of(found, Backend.BF16).flop_per_s == pytest.approx(peak)
    assert ceilings_of(timed([cell(HEAD, [seconds] * 3)]), Backend.BF16).flop_per_s is None


def test_fewer_than_three_samples_are_no_figure() -> None:
    lines = [cell(OUT, [1e-6, 1e-6]), cell(HEAD, [1e-6] * 3)]
    numbers = product_numbers(timed(lines), TOKEN, Backend.BF16, 1)
    assert "us_per_token" not in numbers
    assert numbers["no_sum"] == "1 of 2 shapes did not run (o_proj 32x64): 2 samples, 3 are the least"
    assert numbers["shapes"][OUT] == {
        "count": 2,
        "outcome": "not_run",
        "reason": "2 samples, 3 are the least",
    }


def test_a_product_that_one_process_never_told_is_missing() -> None:
    lines = [cell(OUT, [1e-6] * 3), cell(HEAD, [1e-6] * 3)]
    found = timed(lines, lines[:1])
    assert [found.cell("bf16", 1, name).outcome for name in (OUT, HEAD)] == ["ok", "missing"]
    assert cell_of([]).outcome == "missing"


def test_a_format_that_is_refused_has_no_kernel_and_no_sum() -> None:
    lines = [cell(name, [], "fp8", outcome="unsupported", reason="no", kernel="") for name in (OUT, HEAD)]
    numbers = product_numbers(timed(lines), TOKEN, Backend.FP8, 1)
    assert not {"kernel", "no_sum", "us_per_token", "whole_token_us", "drift"} & numbers.keys()
    assert numbers["shapes"][OUT] == {"count": 2, "outcome": "unsupported", "reason": "no"}


@pytest.mark.parametrize(
    ("cells", "drift", "outcome"),
    [
        ({"a": Cell("ok")}, 0.01, "ok"),
        ({"a": Cell("ok"), "b": Cell("not_run", "slow")}, -0.02, "ok"),
        ({"a": Cell("ok")}, 0.04, "failed"),
        ({"a": Cell("ok")}, -0.04, "failed"),
        ({"a": Cell("ok")}, float("nan"), "failed"),
        ({"a": Cell("ok")}, None, "failed"),
        ({"a": Cell("ok"), "b": Cell("wrong", "x")}, 0.0, "failed"),
        ({"a": Cell("ok"), "b": Cell("missing", "x")}, 0.0, "failed"),
        ({"a": Cell("unsupported", "no")}, 0.0, "infeasible"),
        ({"a": Cell("unsupported", "no"), "b": Cell("not_run", "slow")}, 0.0, "not_run"),
    ],
)
def test_how_an_item_ends(cells: dict[str, Cell], drift: float | None, outcome: str) -> None:
    assert ending(cells, drift, 0.03).outcome == outcome


def test_on_a_cpu_drift_only_informs() -> None:
    assert ending({"a": Cell("ok")}, 9.0, None).outcome == "ok"
