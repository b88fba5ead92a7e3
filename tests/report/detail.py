"""The further tables: fidelity by kind, products, answers, gate, comparisons, environment. Pure, like `tables`."""

from collections.abc import Iterable, Mapping
from typing import Any

from tests.report.run import QUESTIONS, Build, Gap, Run
from tests.report.tables import Column, Table
from tests.report.words import text
from tests.support.record import Row

ERRORS = (
    ("relative RMS", "relative_rms_error", "error"),
    ("worst over row absmax", "max_err_over_row_absmax", "error"),
    ("worst per element", "max_rel_err_per_element", "error"),
)
COUNTS = (
    ("modules", "modules", "whole"),
    ("values", "values", "whole"),
    ("groups off grid", "groups_off_grid", "whole"),
    ("bit-identical", "values_bit_identical", "whole"),
)

QUALITY = (
    ("mean |Δ logprob|", "mean_abs_dlogprob", "error"),
    ("top-1 agreement", "top1_agreement", "percent"),
    ("KL", "kl", "error"),
)
TOLD = ("prompt", "reasoning", "answer", "text", "tool_call")  # an answer's words, where a row has them


def _share(run: Run, build: str) -> Any:
    same = run.figure("quant", build, "fidelity", "values_bit_identical")
    values = run.figure("quant", build, "fidelity", "values")
    return same / values if not isinstance(same, Gap) and not isinstance(values, Gap) and values else same


def fidelity(run: Run) -> Table:
    """Each quantized build's error against the source, as stored and as served."""
    columns = [Column("build"), *(Column(title, form) for title, _, form in COUNTS[:3])]
    columns += [Column("bit-identical", "percent"), *(Column(title, form) for title, _, form in ERRORS)]
    columns += [Column("relative RMS as served", "error"), Column("tensors, Frobenius")]
    rows = []
    for build in run.builds:

        def figure(*path: str, build: Build = build) -> Any:
            return run.figure("quant", build.name, "fidelity", *path)

        spread = figure("per_tensor_frobenius")
        tensors = f"{spread['min']:.3g}–{spread['max']:.3g}" if isinstance(spread, Mapping) else spread
        counts = [figure(name) for _, name, _ in COUNTS[:3]]
        if figure("groups") == 0:
            counts[2] = Gap("not stored in groups")
        errors = [figure(name) for _, name, _ in ERRORS]
        served = figure("as_served", "relative_rms_error")
        rows.append((build.name, *counts, _share(run, build.name), *errors, served, tensors))
    caption = (
        "Error of the quantized weights against the source, as stored on disk and as the engine serves them"
    )
    return Table("fidelity", caption, tuple(columns), tuple(rows))


def _kind_error(figures: Mapping[str, Any]) -> Any:
    for name in ("relative_rms_error", "per_tensor_frobenius_mean"):
        if isinstance(figures.get(name), int | float):
            return figures[name]
    same, values = figures.get("values_bit_identical"), figures.get("values")
    if isinstance(same, int) and isinstance(values, int) and values:
        return f"{same / values:.1%} identical"
    return Gap("not recorded")


def _kinds(run: Run, build: str, *path: str) -> Mapping[str, Any]:
    found = run.figure("quant", build, "fidelity", *path)
    return found if isinstance(found, Mapping) else {}


def kinds(run: Run) -> Table:
    """Error by projection kind: a row a build and view, a column a kind."""
    views = [(build.name, "as stored", _kinds(run, build.name, "kinds")) for build in run.builds]
    views += [
        (build.name, "as served", _kinds(run, build.name, "as_served", "kinds")) for build in run.builds
    ]
    views = sorted(
        (view for view in views if view[2]), key=lambda view: [b.name for b in run.builds].index(view[0])
    )
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


def _product(row: Row) -> tuple[Any, ...]:
    numbers = row.numbers
    why = Gap(row.reason or numbers.get("unsupported") or "not recorded")
    keys = ("us_per_token", "ratio_bf16", "cv", "tflops", "gb_per_s")
    return (row.item, *(numbers.get(key) if numbers.get(key) is not None else why for key in keys))


def products(run: Run) -> Table:
    """Matrix products by number format and rows: time of a token's products and what binds them."""
    columns = (
        Column("format and rows"),
        Column("µs a token", "rate"),
        Column("ratio to bf16", "ratio"),
        Column("cv", "percent"),
        Column("TFLOP/s", "rate"),
        Column("GB/s", "rate"),
    )
    rows = tuple(_product(row) for row in run.record.of("gemm"))
    caption = "Matrix products that one token needs, timed alone on this card"
    return Table("products", caption, columns, rows, by_build=False)


def asked(run: Run) -> Table:
    """What each build answered to each question: a row an answer."""
    rows = []
    for build in run.builds:
        for item in QUESTIONS:
            row = run.row("serve", build.name, item)
            if row is not None:
                outcome = "right" if row.outcome == "ok" else row.outcome.replace("_", " ")
                rows.append((build.name, item, outcome, _said(row), row.reason or "–"))
    columns = tuple(Column(name) for name in ("build", "question", "outcome", "answer", "reason"))
    return Table("answers", "Answers, checked for their content", columns, tuple(rows))


def _said(row: Row) -> Any:
    told = {
        name: row.numbers[name]
        for name in ("prompt", "reasoning", "answer", "text", "tool_call")
        if name in row.numbers
    }
    if not told:
        return Gap("the answer's text was not recorded")
    return "\n".join(f"{name}: {text(value)}" for name, value in told.items())


def quality(run: Run) -> Table:
    """How far each build's log probabilities lie from bf16's."""
    rows = tuple(
        (build.name, *(run.figure("serve", build.name, "logprobs", key) for _, key, _ in QUALITY))
        for build in run.builds
    )
    columns = (Column("build"), *(Column(title, form) for title, _, form in QUALITY))
    return Table("quality", "Log probabilities of fixed texts against bf16's, as served", columns, rows)


def gate(run: Run) -> Table:
    """The gate's verdicts: a row a cell that was judged."""
    rows = tuple(_verdict(row) for row in run.record.of("gate"))
    columns = (
        Column("build"),
        Column("cell"),
        Column("verdict"),
        Column("ratio", "ratio"),
        Column("tolerance", "percent"),
        Column("why"),
    )
    return Table("gate", "The gate: each cell against its baseline", columns, rows)


def _verdict(row: Row) -> tuple[Any, ...]:
    numbers, gap = row.numbers, Gap(row.reason or "not recorded")
    verdict = numbers.get("verdict") or row.outcome
    ratio = next((numbers[key] for key in ("ratio", "ratio_to_baseline") if key in numbers), None)
    tolerance = numbers.get("tolerance")
    why = row.reason or numbers.get("why") or "–"
    return (
        row.build or "–",
        row.item,
        str(verdict).replace("_", " "),
        gap if ratio is None else ratio,
        gap if tolerance is None else tolerance,
        why,
    )


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
