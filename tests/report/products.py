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
    if build.format is None or not names:
        return Gap(f"no products by shape at {rows} rows")
    total = 0.0
    for name in names:
        kind = LM_HEAD if name.split()[0] == LM_HEAD else name
        us = _shape_us(run, backend_of(build.format, kind), rows, name)
        if us is None:
            return Gap(f"{name} did not run at {rows} rows")
        total += us
    return total


def _share(run: Run, build: Build, concurrency: int) -> Any:
    models = {row.numbers["model"] for _, _, row in token_rows(run) if "model" in row.numbers}
    served = str(run.header.get("source", ""))
    if models and not any(model in served or served in model for model in models):
        return Gap(f"the products are those of {', '.join(sorted(models))}, the model served is {served}")
    us = products_us(run, build, concurrency)
    cells = [run.cell(build.name, load) for load in run.grid if load[0] == concurrency]
    tpot = next((cell.tpot_s for cell in cells if cell.tpot_s), None)
    if isinstance(us, Gap):
        return us
    return us / (tpot * 1e6) if tpot else Gap("no time per output token")


def explained(run: Run) -> Table:
    """The share of a served token's time that the products explain: a row a build, a column a concurrency."""
    counts = sorted({count for _, count, _ in token_rows(run)} & set(run.concurrencies))
    columns = (Column("build"), *(Column(f"{count} at once", "percent") for count in counts))
    rows = tuple((build.name, *(_share(run, build, count) for count in counts)) for build in run.builds)
    caption = "Share of a served token's time (TPOT, shortest prompt) that its matrix products explain"
    return Table("explained", caption, columns, rows if counts else ())
