"""Plots with a line a build: latency with every repeat, memory, error by kind of projection. Pure."""

from typing import Any

from tests.report.detail import kinds
from tests.report.plots.parts import Spec, colour, field, order, spec_of, style
from tests.report.run import Gap, Run, load_name
from tests.report.words import gib, milliseconds, whole

_OWN_X = {"scale": {"x": "independent"}}


def _latency(run: Run, name: str, title: str) -> Spec | None:
    rows = []
    for build in run.builds:
        for load in run.grid:
            cell = run.cell(build.name, load)
            shared = {**style(build), "load": load_name(load)}
            if (value := getattr(cell, name)) is not None:
                rows.append({**shared, "ms": value * 1000, "what": "median", "said": milliseconds(value)})
            for each in cell.repeats:
                if (one := getattr(each, name)) is not None:
                    rows.append({**shared, "ms": one * 1000, "what": "repeat", "said": milliseconds(one)})
    if not rows:
        return None
    x = field("ms", title="ms", axis={"tickCount": 4}, scale={"zero": True, "nice": True})
    y = field("build", "nominal", sort=order(run), title=None)
    tooltip = [
        field("build", "nominal"),
        field("load", "nominal"),
        field("what", "nominal"),
        field("said", "nominal"),
    ]
    base = {"x": x, "y": y, "color": {**colour(rows), "legend": None}, "tooltip": tooltip}
    layers = [
        {
            "transform": [{"filter": "datum.what === 'repeat'"}],
            "mark": {"type": "tick", "thickness": 1.5},
            "encoding": base,
        },
        {
            "transform": [{"filter": "datum.what === 'median'"}],
            "mark": {"type": "point", "filled": True, "size": 60},
            "encoding": base,
        },
    ]
    facet = field("load", "nominal", sort=[load_name(load) for load in run.grid], title=None)
    view = {"layer": layers, "width": 230, "height": {"step": 15}}
    return spec_of(
        rows, f"{title} by build, a panel a load", facet=facet, spec=view, columns=3, resolve=_OWN_X
    )


def tpot(run: Run) -> Spec | None:
    """Time per output token, every repeat visible."""
    return _latency(run, "tpot_s", "Time per output token")


def ttft(run: Run) -> Spec | None:
    """Time to first token, every repeat visible."""
    return _latency(run, "ttft_s", "Time to first token")


def _memory_rows(run: Run) -> list[dict[str, Any]]:
    rows = []
    for build in run.builds:
        loaded, predicted, tokens = (
            run.figure("serve", build.name, "boot", name)
            for name in ("loaded_gib", "predicted_gib", "kv_tokens_log")
        )
        if isinstance(loaded, Gap):
            continue
        said = gib(loaded) + ("" if isinstance(tokens, Gap) else f", KV for {whole(tokens)} tokens")
        row = {**style(build), "loaded": loaded, "said": said}
        rows.append(row if isinstance(predicted, Gap) else {**row, "predicted": predicted})
    if rows and max(row["loaded"] for row in rows) < 0.1:
        scaled = ("loaded", "predicted")
        rows = [
            {name: value * 1024 if name in scaled else value for name, value in row.items()} for row in rows
        ]
        return [{**row, "unit": "MiB"} for row in rows]
    return [{**row, "unit": "GiB"} for row in rows]


def memory(run: Run) -> Spec | None:
    """Loaded memory as bars, the prediction as a tick on each."""
    rows = _memory_rows(run)
    if not rows:
        return None
    ticked = any("predicted" in row for row in rows)
    title = f"{rows[0]['unit']} after load" + ("; the tick is the prediction" if ticked else "")
    y = field("build", "nominal", sort=order(run), title=None)
    tooltip = [field("build", "nominal"), field("said", "nominal")]
    shade = {**colour(rows), "legend": None}
    bar = {
        "mark": {"type": "bar", "cornerRadiusEnd": 3, "height": {"band": 0.7}},
        "encoding": {"x": field("loaded", title=title), "y": y, "tooltip": tooltip, "color": shade},
    }
    tick = {
        "transform": [{"filter": "isValid(datum.predicted)"}],
        "mark": {"type": "tick", "thickness": 2, "color": "var(--ink)"},
        "encoding": {"x": field("predicted"), "y": y},
    }
    layers = [bar, tick] if ticked else [bar]
    return spec_of(rows, "Memory after load by build", layer=layers, height={"step": 24})


def kind_errors(run: Run) -> Spec | None:
    """Error by kind of projection, a dot a build and view."""
    table = kinds(run)
    styles = {build.name: style(build) for build in run.builds}
    rows = [
        {**styles[row[0]], "view": row[1], "kind": column.name, "error": value, "said": f"{value:.3g}"}
        for row in table.rows
        for column, value in zip(table.columns[2:], row[2:], strict=True)
        if isinstance(value, float)
    ]
    if not rows:
        return None
    encoding = {
        "x": field("error", title="relative error"),
        "y": field("kind", "nominal", title=None),
        "color": colour(rows),
        "shape": field("view", "nominal", legend={"title": "view"}),
        "tooltip": [field(name, "nominal") for name in ("build", "view", "kind", "said")],
    }
    mark = {"type": "point", "filled": True, "size": 70}
    rest = {"mark": mark, "encoding": encoding, "height": {"step": 20}}
    return spec_of(rows, "Error by kind of projection, a dot a build", **rest)
