"""Speed against what it costs: fidelity, and memory. One dot a build, a panel a concurrency. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.report.answer import ranked_loads, speed
from tests.report.fidelity import fidelity_figure
from tests.report.plots.parts import Spec, colour, field, shape, spec_of, style
from tests.report.run import BASE, Build, Gap, Run
from tests.report.words import gib, rate

NEAR = (0.3, 0.06)  # points this close, of the panel's width and height, share one label
RIGHT = 0.55  # past this share of the width a label ends above its point instead of beginning beside it


def _front(points: list[dict[str, Any]]) -> None:
    """Mark the points that no other beats in both: less of x and more of y. Those are labelled."""
    for point in points:
        better = (o for o in points if o["x"] <= point["x"] and o["y"] >= point["y"])
        point["front"] = all((o["x"], o["y"]) == (point["x"], point["y"]) for o in better)
        point["label"] = point["build"] if point["front"] else ""


def _share_labels(points: list[dict[str, Any]]) -> None:
    """Give points that all but coincide one label with all their names, each on a line."""
    width = max((point["x"] for point in points), default=0.0) or 1.0
    height = max((point["y"] for point in points), default=0.0) or 1.0
    kept: list[dict[str, Any]] = []
    for point in (each for each in points if each["label"]):
        point["side"] = "left" if point["x"] > RIGHT * width else "right"
        near = (
            each
            for each in kept
            if abs(each["x"] - point["x"]) < NEAR[0] * width
            and abs(each["y"] - point["y"]) < NEAR[1] * height
        )
        if other := next(near, None):
            other["label"], point["label"] = f"{other['label']}\n{point['label']}", ""
        else:
            kept.append(point)


def _speed_points(
    run: Run, x_of: Callable[[Build], Any], x_form: Callable[[float], str]
) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = []
    for concurrency in run.concurrencies:
        loads = ranked_loads(run, lambda n, wanted=concurrency: n == wanted)  # type: ignore[misc]
        group = []
        for build in run.builds:
            x, y = x_of(build), speed(run, build.name, loads)
            if isinstance(x, Gap) or y is None:
                continue
            row = {
                **style(build),
                "at once": f"{concurrency} at once",
                "x": x,
                "y": y.value,
                "low": y.low,
                "high": y.high,
            }
            group.append({**row, "said": f"{x_form(x)}, {rate(y.value)} tok/s"})
        _front(group)
        _share_labels(group)
        points += group
    return points


def _labels(side: str, x: Spec, y: Spec) -> Spec:
    place = {"align": "right", "dx": 5, "dy": -11} if side == "left" else {"align": "left", "dx": 10, "dy": 5}
    mark = {"type": "text", "lineBreak": "\n", **place}
    return {
        "transform": [{"filter": f"datum.side === '{side}'"}],
        "mark": {**mark, "fontWeight": 600},
        "encoding": {"x": x, "y": y, "text": field("label", "nominal")},
    }


def _scatter(points: Sequence[Mapping[str, Any]], description: str, x_title: str) -> Spec | None:
    if not points:
        return None
    x = field("x", title=x_title, axis={"grid": False, "tickCount": 5})
    y = field("y", title="output tokens a second", scale={"zero": True})
    tooltip = [field(name, "nominal") for name in ("build", "linears", "tables")] + [
        field("said", "nominal", title="figures")
    ]
    dots = {
        "mark": {"type": "point", "filled": True, "size": 95, "aria": True},
        "encoding": {"x": x, "y": y, "color": colour(points), "shape": shape(points), "tooltip": tooltip},
    }
    dots["encoding"]["opacity"] = {"condition": {"test": "datum.front", "value": 1}, "value": 0.55}
    bars = {
        "mark": {"type": "rule", "strokeWidth": 1.5},
        "encoding": {
            "x": x,
            "y": field("low", title=y["title"]),
            "y2": {"field": "high"},
            "color": colour(points),
        },
    }
    words = [_labels(side, x, y) for side in ("left", "right")]
    panels = list(dict.fromkeys(point["at once"] for point in points))
    facet = field("at once", "nominal", sort=panels, title=None)
    view = {"layer": [bars, dots, *words], "height": 230}
    return spec_of(
        points, description, facet=facet, spec=view, columns=3, resolve={"scale": {"y": "independent"}}
    )


def error_metric(run: Run) -> tuple[str, Callable[[Build], Any]]:
    """What stands for fidelity: log probabilities as served where they were measured, else the weights' error."""

    def served(build: Build) -> Any:
        found = run.figure("serve", build.name, "logprobs", "mean_abs_dlogprob")
        return 0.0 if isinstance(found, Gap) and build.name == BASE else found

    measured = [build for build in run.builds if not isinstance(served(build), Gap)]
    if len(measured) > 1:
        return "mean |Δ log probability| against bf16, as served", served
    return "relative RMS error of the weights", lambda build: fidelity_figure(run, build.name)


def tradeoff(run: Run) -> Spec | None:
    """Speed against fidelity, one dot a build and a panel a concurrency."""
    title, figure = error_metric(run)
    points = _speed_points(run, figure, lambda x: f"{x:.3g}")
    return _scatter(
        points, f"Speed against fidelity: output tokens a second over {title}, one dot a build", title
    )


def footprint(run: Run) -> Spec | None:
    """Speed against memory after load."""
    points = _speed_points(run, lambda build: run.figure("serve", build.name, "boot", "loaded_gib"), gib)
    return _scatter(points, "Speed against loaded memory, one dot a build", "GiB after load")
