"""Matrix products: what each number format gives, and the share of a served token that they explain. Pure."""

from collections.abc import Mapping
from typing import Any

from tests.report.run import Build, Gap, Run
from tests.report.tables import Column, Table
from tests.support.gemm.backends import Backend, backend_of
from tests.support.gemm.shapes import LM_HEAD
from tests.support.record import Row

TWINS = {Backend.FP8: Backend.FP8FNUZ, Backend.FP8FNUZ: Backend.FP8}
FIGURES = (
    ("µs a token", "us_per_token", "rate"),
    ("ratio to bf16", "ratio_bf16", "ratio"),
    ("cv", "cv", "percent"),
    ("TFLOP/s", "tflops", "error"),
    ("GB/s", "gb_per_s", "error"),
    ("of copy", "share_copy", "percent"),
    ("of peak", "share_peak", "percent"),
    ("binds", "binds", "text"),
)


def token_rows(run: Run) -> list[tuple[str, int, Row]]:
    """The rows that sum a token's products: number format, rows multiplied at once, row of the record."""
    found = []
    for row in run.record.of("gemm"):
        name, _, rows = row.item.rpartition("-")
        if rows.isdigit():
            found.append((name, int(rows), row))
    return sorted(found, key=lambda each: each[1])


def rows_name(count: int) -> str:
    """``1 row``, ``8 rows``."""
    return f"{count} row" if count == 1 else f"{count} rows"


def products(run: Run) -> Table:
    """Time, rates and limits of a token's products: a row a number format and rows."""
    rows = []
    for name, count, row in token_rows(run):
        numbers = row.numbers
        why = Gap(str(row.reason or numbers.get("no_sum") or "not recorded"))
        figures = (numbers.get(key) for _, key, _ in FIGURES)
        rows.append((name, count, *(why if value is None else value for value in figures)))
    columns = (Column("number format"), Column("rows", "whole"), *(Column(t, form) for t, _, form in FIGURES))
    model = next((row.numbers.get("model") for _, _, row in token_rows(run) if row.numbers.get("model")), "")
    caption = "Matrix products that one token needs" + (f", shapes of {model}" if model else "")
    return Table("products", caption, columns, tuple(rows), by_build=False)


def _shapes(run: Run, backend: Backend, rows: int) -> Mapping[str, Any]:
    found = run.row("gemm", "", f"{backend.label}-{rows}")
    shapes = found.numbers.get("shapes") if found else None
    return shapes if isinstance(shapes, Mapping) else {}


def _shape_us(run: Run, backend: Backend, rows: int, name: str) -> float | None:
    for each in (backend, TWINS.get(backend)):
        shape = _shapes(run, each, rows).get(name, {}) if each else {}
        if isinstance(shape.get("us"), int | float):
            return float(shape["us"]) * int(shape.get("count", 1))
    return None


def products_us(run: Run, build: Build, rows: int) -> Any:
    """Microseconds of a token's products as this build multiplies them, or a Gap unless every one ran."""
    names = list(_shapes(run, Backend.BF16, rows))
    if build.format is None:
        return Gap("no such format")
    if not names:
        return Gap(f"no products by shape at {rows_name(rows)}")
    total = 0.0
    for name in names:
        kind = LM_HEAD if name.split()[0] == LM_HEAD else name
        us = _shape_us(run, backend_of(build.format, kind), rows, name)
        if us is None:
            return Gap(f"{name} did not run at {rows_name(rows)}")
        total += us
    return total


def _beside_tpot(run: Run, build: Build, concurrency: int) -> tuple[Any, Any]:
    """The share of TPOT that the products explain, and the seconds that they leave; or twice why not."""
    us = products_us(run, build, concurrency)
    models = {row.numbers["model"] for _, _, row in token_rows(run) if "model" in row.numbers}
    served = str(run.header.get("source", ""))
    if models and not any(model in served or served in model for model in models):
        us = Gap(f"the products are those of {', '.join(sorted(models))}, the model served is {served}")
    cells = (run.cell(build.name, load) for load in run.grid if load[0] == concurrency)
    tpot = next((cell.tpot_s for cell in cells if cell.tpot_s), None)
    if isinstance(us, Gap) or tpot is None:
        gap = us if isinstance(us, Gap) else Gap("no time per output token")
        return gap, gap
    return us / 1e6 / tpot, tpot - us / 1e6


def explained(run: Run) -> Table:
    """What the products explain of a served token's time, and what they leave: a row a build."""
    counts = sorted({count for _, count, _ in token_rows(run)} & set(run.concurrencies))
    ends = (("at once", "percent"), ("at once, left", "ms"))
    columns = (Column("build"), *(Column(f"{count} {end}", form) for count in counts for end, form in ends))
    rows = tuple(
        (build.name, *(each for count in counts for each in _beside_tpot(run, build, count)))
        for build in run.builds
    )
    caption = "Share of a served token's time (TPOT, shortest prompt) that its matrix products explain, and the rest"
    return Table("explained", caption, columns, rows if counts else ())
