"""Builds against builds: ranges over cells, fastest over slowest, medals; none for a build that may not be picked.

Pure; published derived figures are reproduced by these rules and no others.
"""

from collections.abc import Sequence

from quantkit.formats import Format
from tests.report.caveats import fit
from tests.report.run import Build, Gap, Run, load_name
from tests.report.tables import Column, Table

MEDALS = ("gold", "silver", "bronze")
Loads = Sequence[tuple[int, int]]


def cell_ratios(run: Run, over: str, under: str, loads: Loads) -> list[float]:
    """Output tokens a second of one build over another's, in each cell that both have."""
    rates = [(run.cell(over, load).tok_per_s, run.cell(under, load).tok_per_s) for load in loads]
    return [a / b for a, b in rates if a and b]


def _flavours(one: Format, other: Format) -> bool:
    """Whether two formats differ only in the encoding of the same kind of code, as fp8's two flavours do."""
    a, b = one.linears, other.linears
    return a is not None and b is not None and a != b and (a.bits, a.arg_type) == (b.bits, b.arg_type)


def _twins(one: Build, other: Build) -> tuple[str, str] | None:
    """The pair as (over, under) where the two differ in one thing alone; None where in more."""
    a, b = one.format, other.format
    if a is None or b is None or (a.linears != b.linears and a.tables != b.tables) or a == b:
        return None
    if a.linears == b.linears:
        return (other.name, one.name) if len(b.tables) > len(a.tables) else (one.name, other.name)
    if a.linears is None or b.linears is None:
        return None  # against bf16 the table of ratios speaks
    return (other.name, one.name) if _flavours(a, b) else (one.name, other.name)


def pairs(run: Run) -> Table:
    """Pairs of builds that differ in one thing: the range of their ratio over the quiet cells, and over all."""
    quiet = [load for load in run.grid if load not in run.noisy]
    found = [
        pair
        for index, one in enumerate(run.builds)
        for other in run.builds[index + 1 :]
        if (pair := _twins(one, other))
    ]
    rows = []
    for over, under in found:
        ranges = [_range(cell_ratios(run, over, under, loads)) for loads in (quiet, run.grid)]
        if not isinstance(ranges[1], Gap):
            rows.append((f"{over} / {under}", *ranges))
    left_out = ", ".join(load_name(load) for load in run.grid if load in run.noisy)
    columns = (
        Column("pair"),
        Column(f"without {left_out}" if left_out else "quiet cells"),
        Column("all cells"),
    )
    return Table(
        "pairs", "Output tokens a second of builds that differ in one thing", columns, tuple(rows), False
    )


def _range(values: Sequence[float]) -> object:
    return f"{min(values):.3f}–{max(values):.3f}" if values else Gap("no cell that both have")


def extremes(run: Run) -> Table:
    """Fastest over slowest build in each cell."""
    rows = []
    for load in run.grid:
        rates = {b.name: rate for b in fit(run) if (rate := run.cell(b.name, load).tok_per_s)}
        if len(rates) > 1:
            fast, slow = max(rates, key=rates.__getitem__), min(rates, key=rates.__getitem__)
            rows.append((load_name(load), fast, slow, rates[fast] / rates[slow]))
    columns = (Column("cell"), Column("fastest"), Column("slowest"), Column("ratio", "ratio"))
    return Table("extremes", "Fastest over slowest build", columns, tuple(rows), False)


def _group(build: Build, builds: Sequence[Build]) -> str:
    """The build's name with a flavour's merged into the first of its kind: fp8fnuz stands with fp8."""
    for first in builds:
        a, b = first.format, build.format
        if a and b and (first is build or (a.tables == b.tables and _flavours(a, b))):
            return first.name
    return build.name


def medals(run: Run) -> Table:
    """Gold, silver and bronze in each cell, the two flavours of fp8 taken as one format by the faster of them."""
    rows, builds = [], fit(run)
    for load in run.grid:
        best: dict[str, float] = {}
        for build in builds:
            if rate := run.cell(build.name, load).tok_per_s:
                name = _group(build, builds)
                best[name] = max(best.get(name, 0.0), rate)
        ranked = sorted(best, key=lambda name: -best[name])[: len(MEDALS)]
        if len(ranked) == len(MEDALS):
            rows.append((load_name(load), *ranked))
    caption = "The three fastest formats in each cell; both fp8 flavours count as one format, by the faster of the two"
    return Table("medals", caption, (Column("cell"), *(Column(name) for name in MEDALS)), tuple(rows), False)
