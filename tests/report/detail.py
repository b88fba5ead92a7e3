"""The further tables: fidelity and by kind, log probabilities, environment. Pure, like `tables`."""

from collections.abc import Iterable, Mapping
from typing import Any

from tests.report.answer import ranked_loads, speed
from tests.report.fidelity import error_metric
from tests.report.run import Build, Gap, Run
from tests.report.tables import Column, Table
from tests.report.words import text

ERRORS = (
    ("relative RMS", "relative_rms_error", "error"),
    ("worst over row absmax", "max_err_over_row_absmax", "error"),
    ("worst per element", "max_rel_err_per_element", "error"),
)
COUNTS = (
    ("modules", "modules", "whole"),
    ("values", "values", "whole"),
    ("groups off grid", "groups_off_grid", "whole"),
)

QUALITY = (
    ("mean |Δ logprob|", "mean_abs_dlogprob", "error"),
    ("top-1 agreement", "top1_agreement", "percent"),
    ("KL", "kl", "error"),
)


def _share(run: Run, build: str) -> Any:
    same = run.figure("quant", build, "fidelity", "values_bit_identical")
    values = run.figure("quant", build, "fidelity", "values")
    return same / values if not isinstance(same, Gap) and not isinstance(values, Gap) and values else same


def fidelity(run: Run) -> Table:
    """Each quantized build's error against the source, as stored and as served."""
    columns = [Column("build"), *(Column(title, form) for title, _, form in COUNTS)]
    columns += [Column("bit-identical", "percent"), *(Column(title, form) for title, _, form in ERRORS)]
    columns += [Column("relative RMS as served", "error"), Column("tables, relative RMS", "error")]
    columns += [Column("tensors, Frobenius")]
    rows = []
    for build in run.builds:

        def figure(*path: str, build: Build = build) -> Any:
            return run.figure("quant", build.name, "fidelity", *path)

        spread = figure("per_tensor_frobenius")
        tensors = _ends(spread) if isinstance(spread, Mapping) else spread
        counts = [figure(name) for _, name, _ in COUNTS]
        if figure("groups") == 0:
            counts[2] = Gap("not stored in groups")
        errors = [figure(name) for _, name, _ in ERRORS]
        served = figure("as_served", "relative_rms_error")
        tables = figure("tables", "relative_rms_error")
        rows.append((build.name, *counts, _share(run, build.name), *errors, served, tables, tensors))
    caption = (
        "Error of the quantized weights against the source, as stored on disk and as the engine serves them"
    )
    return Table("fidelity", caption, tuple(columns), tuple(rows))


def _ends(spread: Mapping[str, Any]) -> Any:
    low, high = spread.get("min"), spread.get("max")
    return (
        f"{low:.3g}–{high:.3g}" if isinstance(low, float) and isinstance(high, float) else Gap("not recorded")
    )


def _kind_error(figures: Mapping[str, Any]) -> Any:
    for name in ("relative_rms_error", "per_tensor_frobenius_mean"):
        if isinstance(figures.get(name), int | float):
            return figures[name]
    same, values = figures.get("values_bit_identical"), figures.get("values")
    if isinstance(same, int) and isinstance(values, int) and values:
        return f"{same / values:.1%} identical"
    return Gap("not recorded")


def _views(run: Run, build: str) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Figures by kind of a build: of its linears as stored and as served, and of its int4 tables."""
    found = []
    for path, said in ((("kinds",), ""), (("tables", "kinds"), "table, ")):
        kinds = run.figure("quant", build, "fidelity", *path)
        if isinstance(kinds, Mapping) and kinds:
            found.append((build, f"{said}as stored", kinds))
            served = {kind: figures.get("as_served") or {} for kind, figures in kinds.items()}
            if any(served.values()):
                found.append((build, f"{said}as served", served))
    return found


def kinds(run: Run) -> Table:
    """Error by projection kind: a row a build and view, a column a kind."""
    views = [view for build in run.builds for view in _views(run, build.name)]
    names = sorted({kind for _, _, figures in views for kind in figures})
    rows = tuple(
        (
            build,
            view,
            *(_kind_error(figures[kind]) if kind in figures else Gap("no such kind") for kind in names),
        )
        for build, view, figures in views
    )
    caption = "Error by kind of projection: relative RMS error, or the mean of the tensors' relative Frobenius errors"
    return Table(
        "kinds", caption, (Column("build"), Column("view"), *(Column(n, "error") for n in names)), rows
    )


def tradeoff(run: Run) -> Table:
    """What the plots of speed against fidelity and memory show, as numbers."""
    title, error = error_metric(run)
    columns = [Column("build"), Column(title, "error"), Column("memory", "gib")]
    columns += [Column(f"{count} at once", "rate") for count in run.concurrencies]
    rows = []
    for build in run.builds:
        means = (speed(run, build.name, ranked_loads(run, count.__eq__)) for count in run.concurrencies)
        loaded = run.figure("serve", build.name, "boot", "loaded_gib")
        rates = (Gap("a cell is missing") if mean is None else mean.value for mean in means)
        rows.append((build.name, error(build), loaded, *rates))
    caption = "Error, memory, and output tokens a second (geometric mean over the prompts' lengths) by requests at once"
    return Table("tradeoff", caption, tuple(columns), tuple(rows) if run.grid else ())


def quality(run: Run) -> Table:
    """How far each build's log probabilities lie from bf16's, and from those of its own decoded weights."""
    own = Column("from its own weights", "error")
    rows = tuple(
        (
            build.name,
            *(run.figure("serve", build.name, "logprobs", key) for _, key, _ in QUALITY),
            run.figure("serve", build.name, "served weights", "mean_abs_dlogprob"),
        )
        for build in run.builds
    )
    columns = (Column("build"), *(Column(title, form) for title, _, form in QUALITY), own)
    return Table("quality", "Log probabilities of fixed texts against bf16's, as served", columns, rows)


def _flat(given: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value not in ("", None, [], ()):
            yield f"{prefix}{name}".replace("_", " "), text(value)


def environment(run: Run) -> Table:
    """Every fact of the header: machine, engine, source, settings, commit."""
    hidden = ("kind", "caveats")
    rows = tuple(_flat({name: value for name, value in run.header.items() if name not in hidden}))
    return Table(
        "environment", "Where and with what this was measured", (Column("fact"), Column("value")), rows, False
    )
