"""Record -> tables, in the order in which every report shows them. Pure: no markup, no files, no colours.

A table is columns with a form each (see `words`) and rows of values, a missing value being a Gap with its
reason. Terminal, Markdown and page all draw these.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.report.fidelity import fidelity_figure, on_grid
from tests.report.run import HEADLINE, Build, Cell, Gap, Run, load_name


@dataclass(frozen=True)
class Column:
    """One column: its heading, and the form its values are written in."""

    name: str
    form: str = "text"

    @property
    def numeric(self) -> bool:
        """Whether its values are numbers, and so stand to the right."""
        return self.form != "text"


@dataclass(frozen=True)
class Table:
    """A table with a name that anchors it and a caption that says what it shows.

    Attributes
    ----------
    by_build
        Whether the first column names a build, so that hiding a build hides its rows.
    """

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    by_build: bool = True

    def pairs(self, row: tuple[Any, ...]) -> Iterable[tuple[Column, Any]]:
        """A row's values with their columns."""
        return zip(self.columns, row, strict=True)

    @property
    def hollow(self) -> bool:
        """Whether no row holds a figure: only the names of builds, and gaps."""
        return bool(self.rows) and all(isinstance(value, Gap) for row in self.rows for value in row[1:])

    @property
    def gaps(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Why figures are missing: each reason once, with the rows it holds for."""
        found: dict[str, dict[str, None]] = {}
        for row in self.rows:
            for value in row:
                if isinstance(value, Gap):
                    found.setdefault(value.reason, {})[str(row[0])] = None
        everyone = len({row[0] for row in self.rows})
        return tuple(
            (why, ("all",) if len(who) == everyone > 1 else tuple(who)) for why, who in found.items()
        )


Maker = Callable[[Run, Build], Any]


def _of(suite: str, item: str, *path: str) -> Maker:
    return lambda run, build: run.figure(suite, build.name, item, *path)


def answered(run: Run, build: Build) -> Any:
    """Answers that were right, of the three kinds that count, as ``3/3``."""
    rows = [row for item in HEADLINE if (row := run.row("serve", build.name, item))]
    if not any(row.outcome == "ok" or row.numbers.get("prompt") for row in rows):
        reasons = [row.reason for row in rows if row.reason]
        return Gap(reasons[0] if reasons else "this run asked no questions")
    return f"{sum(row.outcome == 'ok' for row in rows)}/{len(HEADLINE)}"


def kernels(run: Run, build: Build) -> Any:
    """Kernel classes that the engine named, ``dense`` where it named none."""
    found = run.figure("serve", build.name, "boot", "kernels")
    return found if isinstance(found, Gap) else (found or "dense")


def fidelity_text(run: Run, build: Build) -> Any:
    """The least that says how near the weights are: on the grid, or the relative RMS error, or a near figure."""
    frobenius = run.figure("quant", build.name, "fidelity", "per_tensor_frobenius")
    rms = fidelity_figure(run, build)
    if on_grid(run, build):
        return "on grid"
    if isinstance(rms, Gap) and isinstance(frobenius, Mapping) and frobenius.get("min") is not None:
        return f"{frobenius['min']:.2g}–{frobenius['max']:.2g}"
    return rms if isinstance(rms, Gap) else f"{rms:.3g}"


def size_of(run: Run, build: Build) -> Any:
    """Bytes of all tensors of a build."""
    return run.figure("quant", build.name, "fidelity", "size_bytes")


OVERVIEW: tuple[tuple[Column, Maker], ...] = (
    (Column("build"), lambda _, build: build.name),
    (Column("linears"), lambda _, build: build.linears),
    (Column("tables"), lambda _, build: build.tables),
    (Column("bytes", "size"), size_of),
    (Column("fidelity"), fidelity_text),
    (Column("kernel"), kernels),
    (Column("memory", "gib"), _of("serve", "boot", "loaded_gib")),
    (Column("answers"), answered),
)


def overview(run: Run) -> Table:
    """A row a build: what it is, what it weighs, how near it is, what runs it, whether it answers."""
    rows = tuple(tuple(make(run, build) for _, make in OVERVIEW) for build in run.builds)
    caption = (
        "The builds: stored form, size on disk, error of the weights, kernel, loaded memory, right answers"
    )
    return Table("builds", caption, tuple(column for column, _ in OVERVIEW), rows)


def cell_value(cell: Cell, value: float | None) -> Any:
    """A figure of a cell, or a Gap that says how the cell ended."""
    if value is not None:
        return value
    if cell.outcome == "ok":
        return Gap("not recorded")
    return Gap(f"{cell.outcome.replace('_', ' ')}: {cell.reason}")


def by_cell(run: Run, name: str, caption: str, form: str, pick: Callable[[Cell], float | None]) -> Table:
    """A table of one figure, a row a build, a column a load."""
    columns = (Column("build"), *(Column(load_name(load), form) for load in run.grid))
    rows = tuple(
        (
            build.name,
            *(cell_value(cell, pick(cell)) for cell in (run.cell(build.name, load) for load in run.grid)),
        )
        for build in run.builds
    )
    return Table(name, caption, columns, rows)


def throughput(run: Run) -> Table:
    """Output tokens a second by build and load."""
    caption = "Output tokens a second, median of the repeats (requests at once × prompt tokens)"
    return by_cell(run, "throughput", caption, "rate", lambda cell: cell.tok_per_s)


def ratios(run: Run) -> Table:
    """Ratio to bf16 by build and load, and the range over all loads."""
    table = by_cell(
        run, "ratios", "Output tokens a second over bf16's in the same cell", "ratio", lambda c: c.ratio
    )
    rows = tuple((*row, _range(row[1:])) for row in table.rows)
    return Table(table.name, table.caption, (*table.columns, Column("range")), rows)


def _range(values: Sequence[Any]) -> Any:
    numbers = [value for value in values if not isinstance(value, Gap)]
    return f"{min(numbers):.2f}–{max(numbers):.2f}" if numbers else Gap("no ratio in any cell")


def tpot(run: Run) -> Table:
    """Time per output token by build and load."""
    caption = "Time per output token (TPOT), median of the requests"
    return by_cell(run, "tpot", caption, "ms", lambda cell: cell.tpot_s)


def ttft(run: Run) -> Table:
    """Time to first token by build and load."""
    caption = "Time to first token (TTFT), median of the requests"
    return by_cell(run, "ttft", caption, "ms", lambda cell: cell.ttft_s)


def variation(run: Run) -> Table:
    """How far the repeats of each cell lie apart."""
    caption = "Variation of output tokens a second between repeats (cv), or the published bound on it"
    return by_cell(run, "cv", caption, "percent", lambda cell: cell.known_cv)


def cost(run: Run, usd_per_hour: float) -> Table:
    """US dollars a million output tokens by build and load."""
    caption = f"US dollars per million output tokens, at ${usd_per_hour:.2f} an hour for the whole machine"

    def price(cell: Cell) -> float | None:
        return usd_per_hour / (cell.tok_per_s * 3600 / 1e6) if cell.tok_per_s else None

    return by_cell(run, "cost", caption, "usd", price)


MEMORY: tuple[tuple[Column, Maker], ...] = (
    (Column("build"), lambda _, build: build.name),
    (Column("predicted", "gib"), _of("serve", "boot", "predicted_gib")),
    (Column("loaded", "gib"), _of("serve", "boot", "loaded_gib")),
    (Column("KV tokens, predicted", "whole"), _of("serve", "boot", "predicted_kv_tokens")),
    (Column("KV tokens, log", "whole"), _of("serve", "boot", "kv_tokens_log")),
    (Column("KV tokens, metrics", "whole"), _of("serve", "boot", "kv_tokens_metrics")),
    (Column("boot", "s"), _of("serve", "boot", "boot_s")),
)


def memory(run: Run) -> Table:
    """Weights and KV cache by build, predicted and measured, and how long the boot took."""
    rows = tuple(tuple(make(run, build) for _, make in MEMORY) for build in run.builds)
    caption = "Memory: weights and room for KV as predicted and as found, and the boot's time"
    return Table("memory", caption, tuple(column for column, _ in MEMORY), rows)


def warnings(run: Run) -> Table:
    """What the engine warned of while it booted: each warning once, with the builds it was said of."""
    found: dict[str, list[str]] = {}
    for build in run.builds:
        said = run.figure("serve", build.name, "boot", "warnings")
        for warning in said if isinstance(said, list | tuple) else ():
            found.setdefault(str(warning), []).append(build.name)
    rows = tuple((warning, ", ".join(names)) for warning, names in found.items())
    caption = "Warnings of the engine at boot, of fallbacks, untuned shapes and the like"
    return Table("warnings", caption, (Column("warning"), Column("builds")), rows, by_build=False)
