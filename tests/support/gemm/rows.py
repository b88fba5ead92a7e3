"""Rows of the run record: the numbers of one backend at one number of rows, and how its item ends.

Pure: figures in, JSON out. The suite's tests call it, and so do the tests of the judge.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Any

from tests.support.gemm.backends import Backend
from tests.support.gemm.figures import Ceilings, ceilings_of, cells_of, rates, ratios, rounded, sums
from tests.support.gemm.samples import MISSING, Cell, Timed, spread
from tests.support.gemm.shapes import Shape, Token

Numbers = dict[str, Any]


@dataclass(frozen=True)
class Ending:
    """How an item ends: ok, failed, infeasible or not_run, and why."""

    outcome: str
    reason: str = ""


def ending(cells: Mapping[str, Cell], drift: float | None, drift_limit: float | None) -> Ending:
    """How the item of these cells ends: wrong values and missing results fail it, and so does a clock that moved.

    A refusal of every product makes it infeasible; an item of which nothing was timed is not run.
    """
    for outcome in ("wrong", MISSING):
        for name, cell in cells.items():
            if cell.outcome == outcome:
                return Ending("failed", f"{name}: {cell.reason}")
    if not any(cell.outcome == "ok" for cell in cells.values()):
        name, cell = next(iter(cells.items()))
        if all(cell.outcome == "unsupported" for cell in cells.values()):
            return Ending("infeasible", f"unsupported: {cell.reason}")
        return Ending("not_run", f"{name}: {cell.reason}")
    if drift_limit is not None and (drift is None or not abs(drift) <= drift_limit):
        seen = "not looked at" if drift is None else f"{drift:+.1%}"
        return Ending(
            "failed", f"clock drift around this cell, got {seen}, expected at most {drift_limit:.1%}"
        )
    return Ending("ok")


def ratio_numbers(bf16_s: Sequence[float], seconds: Sequence[float]) -> Numbers:
    """Ratio to bf16, median and spread over processes."""
    each = ratios(bf16_s, seconds)
    return {"ratio_bf16": rounded(median(each)), "ratio_spread": rounded(spread(each))}


def shape_numbers(
    shape: Shape, rows: int, backend: Backend, cell: Cell, bf16: Cell, ceilings: Ceilings
) -> Numbers:
    """One product: its rates and its ratio to bf16, or why there is none."""
    if cell.outcome != "ok":
        return {"count": shape.count, "outcome": cell.outcome, "reason": cell.reason}
    found = {"count": shape.count, **rates(shape.weights, rows, cell.median_s, backend, ceilings).to_dict()}
    found |= {"spread_us": rounded(spread(cell.seconds) * 1e6), "samples": cell.samples}
    found["error_over_bound"] = rounded(cell.error_over_bound)
    if bf16.outcome == "ok" and backend is not Backend.BF16:
        found |= ratio_numbers(bf16.seconds, cell.seconds)
    if cell.eager_s is not None:
        found["eager_us"] = rounded(cell.eager_s * 1e6)
    return found


def why_no_sum(cells: Mapping[str, Cell]) -> str:
    """The products that keep a token's sum from being one, and the reason of the first."""
    lacking = {name: cell for name, cell in cells.items() if cell.outcome != "ok"}
    reason = next(iter(lacking.values())).reason
    return f"{len(lacking)} of {len(cells)} shapes did not run ({', '.join(lacking)}): {reason}"


def token_numbers(
    shapes: Sequence[Shape],
    rows: int,
    backend: Backend,
    cells: Mapping[str, Cell],
    bf16: Mapping[str, Cell],
    ceilings: Ceilings,
) -> Numbers:
    """The sum over a token with its rates and ratio, or why there is none."""
    total = sums(cells, shapes)
    if total is None:
        return {"no_sum": why_no_sum(cells)}
    weights = sum(shape.count * shape.weights for shape in shapes)
    found = rates(weights, rows, median(total), backend, ceilings).to_dict()
    found["us_per_token"] = found.pop("us")
    found["spread_us"] = rounded(spread(total) * 1e6)
    if len(total) > 1:
        found["cv"] = rounded(stdev(total) / mean(total))
    base = sums(bf16, shapes)
    if base is not None and backend is not Backend.BF16:
        found |= ratio_numbers(base, total)
    return found


def product_numbers(timed: Timed, token: Token, backend: Backend, rows: int) -> Numbers:
    """All numbers of one item of the suite.

    Returns
    -------
    dict
        ``us_per_token``, ``tflops``, ``gb_per_s``, shares, ``binds``, ``ratio_bf16``, ``cv``, or ``no_sum`` with the
        reason; ``whole_token_us``, all products in one go; ``drift``; and ``shapes``, the same figures by shape.
    """
    shapes = token.shapes
    cells = cells_of(timed, backend, rows, shapes)
    bf16 = cells_of(timed, Backend.BF16, rows, shapes)
    ceilings = ceilings_of(timed, backend)
    found: Numbers = {"model": token.model, "processes": len(timed.processes), "needs": backend.needs}
    kernels = {cell.kernel for cell in cells.values() if cell.kernel}
    if kernels:
        found["kernel"] = ", ".join(sorted(kernels))
        found |= token_numbers(shapes, rows, backend, cells, bf16, ceilings)
    whole = timed.token(backend.label, rows)
    if whole.outcome == "ok":
        found["whole_token_us"] = rounded(whole.median_s * 1e6)
    drift = timed.drift(backend.label, rows)
    if drift is not None:
        found["drift"] = rounded(drift)
    found["shapes"] = {
        shape.name: shape_numbers(shape, rows, backend, cells[shape.name], bf16[shape.name], ceilings)
        for shape in shapes
    }
    return found


def control_numbers(timed: Timed, backend: Backend) -> tuple[Numbers, Ending]:
    """The square product: its rate, and its ratio to bf16."""
    cell, bf16 = timed.control(backend.label), timed.control(Backend.BF16.label)
    side = int(timed.plan["control_side"])
    if cell.outcome != "ok":
        return {"side": side}, ending({f"{side} cubed": cell}, None, None)
    found: Numbers = {
        "side": side,
        "kernel": cell.kernel,
        "us": rounded(cell.median_s * 1e6),
        "tflops": rounded(2 * side**3 / cell.median_s / 1e12),
        "error_over_bound": rounded(cell.error_over_bound),
        "samples": cell.samples,
    }
    if bf16.outcome == "ok" and backend is not Backend.BF16:
        found |= ratio_numbers(bf16.seconds, cell.seconds)
    return found, Ending("ok")


def card_numbers(timed: Timed) -> Numbers:
    """What the device is, how fast it copies, and what a graph of nothing costs."""
    copies = timed.copy_bytes_per_s()
    found: Numbers = {**timed.facts(), "copy_gb_per_s": rounded(median(copies) / 1e9)}
    found["copy_spread_gb_per_s"] = rounded(spread(copies) / 1e9)
    empty = timed.empty_s()
    if empty is not None:
        found["empty_replay_us"] = rounded(empty * 1e6)
    return found
