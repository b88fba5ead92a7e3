"""The grid of ratios to bf16 as a heat map: eight steps of colour, a word in every cell. Pure."""

from typing import Any

from tests.report.plots.parts import Spec, field, order, spec_of
from tests.report.run import BASE, NOISY_CV, Build, Cell, Run, is_noisy, load_name
from tests.report.words import ratio, share

HEAT_STEPS = (0.25, 0.5, 0.8, 0.95, 1.05, 1.25, 2.0)  # between them lie the eight colours
HEAT_NAMES = (
    "under 0.25",
    "to 0.5",
    "to 0.8",
    "to 0.95",
    "within 5 %",
    "to 1.25",
    "to 2",
    "over 2",
    "no figure",
)


def heat_class(value: float) -> int:
    """Which of the eight colours a ratio has."""
    return sum(value >= step for step in HEAT_STEPS)


def _heat_row(build: Build, cell: Cell) -> dict[str, Any]:
    other = cell.outcome if cell.outcome in ("failed", "infeasible") else "–"
    word = other if cell.ratio is None else f"{cell.ratio:.2f}"
    said = f"{ratio(cell.ratio)} {BASE}" if cell.ratio is not None else cell.reason or "no ratio"
    return {
        "build": build.name,
        "load": load_name(cell.load),
        "class": HEAT_NAMES[heat_class(cell.ratio)] if cell.ratio is not None else HEAT_NAMES[-1],
        "word": word + ("~" if is_noisy(cell) else ""),
        "said": said + (", noisy" if is_noisy(cell) else ""),
    }


def _step(variable: str) -> Spec:
    colours = [f"var(--{variable}-{index})" for index in range(len(HEAT_NAMES))]
    return field("class", "nominal", scale={"domain": list(HEAT_NAMES), "range": colours}, legend=None)


def heat(run: Run) -> Spec | None:
    """The grid of ratios to bf16: a rectangle a cell, a word in each."""
    rows = [_heat_row(build, run.cell(build.name, load)) for build in run.builds for load in run.grid]
    if not rows:
        return None
    loads = [load_name(load) for load in run.grid]
    x = field("load", "ordinal", sort=loads, title="requests at once × prompt tokens")
    x["axis"] = {"orient": "top", "labelAngle": 0, "domain": False, "ticks": False}
    y = field("build", "nominal", sort=order(run), title=None, axis={"domain": False, "ticks": False})
    tooltip = [field(name, "nominal") for name in ("build", "load", "said")]
    tile = {"type": "rect", "cornerRadius": 5, "stroke": "var(--paper)", "strokeWidth": 2}
    word = {"type": "text", "fontSize": 12, "aria": False}
    layers = [
        {"mark": tile, "encoding": {"color": _step("heat")}},
        {"mark": word, "encoding": {"text": field("word", "nominal"), "color": _step("heat-ink")}},
    ]
    rest = {"layer": layers, "encoding": {"x": x, "y": y, "tooltip": tooltip}, "height": {"step": 30}}
    return spec_of(
        rows,
        "Heat map of output tokens a second over bf16's, a row a build, a column a load"
        + ("; ~ marks a cell whose repeats vary by over " + share(NOISY_CV) if run.noisy else ""),
        resolve={"scale": {"color": "independent"}},
        **rest,
    )
