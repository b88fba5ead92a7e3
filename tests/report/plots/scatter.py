"""Speed against what it costs: fidelity, and memory. One dot a build, a panel a concurrency. Pure."""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from tests.report.answer import ranked_loads, speed
from tests.report.caveats import disqualified
from tests.report.fidelity import error_metric
from tests.report.plots.parts import Spec, colour, field, shape, spec_of, style
from tests.report.run import Build, Gap, Run
from tests.report.words import gib, rate

NEAR = (0.35, 0.06)  # points this close, of the panel's width and height, share one label


def _front(points: list[dict[str, Any]], out: Container[str]) -> None:
    """Mark and label the points that no other beats in both, less of x and more of y, but for the builds left out."""
    rivals = [point for point in points if point["build"] not in out]
    for point in points:
        better = (o for o in rivals if o["x"] <= point["x"] and o["y"] >= point["y"])
        beaten = any((o["x"], o["y"]) != (point["x"], point["y"]) for o in better)
        point["front"] = point["build"] not in out and not beaten
        point["label"] = point["build"] if point["front"] else ""


def _share_labels(points: list[dict[str, Any]]) -> None:
    """Give points that all but coincide one label with all their names, each on a line."""
    width, height = (max((point[axis] for point in points), default=0.0) or 1.0 for axis in "xy")
    kept: list[dict[str, Any]] = []
    for point in (each for each in points if each["front"]):
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
        _front(group, disqualified(run))
        _share_labels(group)
        points += group
    return points


def _labels(x: Spec, y: Spec, **look: Any) -> Spec:
    return {
        "mark": {
            **look,
            "type": "text",
            "aria": False,
            "lineBreak": "\n",
            "fontWeight": 600,
            "align": "left",
            "dx": 9,
            "dy": 4,
        },
        "encoding": {"x": x, "y": y, "text": field("label", "nominal")},
    }


def _scatter(points: Sequence[Mapping[str, Any]], description: str, x_title: str) -> Spec | None:
    if not points:
        return None
    x = field("x", title=x_title, axis={"grid": False, "tickCount": 5})
    y = field("y", title=None, scale={"zero": True})
    tooltip = [field(name, "nominal") for name in ("build", "linears", "tables")] + [
        field("said", "nominal", title="figures")
    ]
    shade = {"condition": {"test": "datum.front", "value": 1}, "value": 0.55}
    look = {"color": colour(points), "shape": shape(points), "opacity": shade}
    dots = {
        "mark": {"type": "point", "filled": True, "size": 95, "aria": True},
        "encoding": {"x": x, "y": y, "tooltip": tooltip, **look},
    }
    bars = {
        "mark": {"type": "rule", "strokeWidth": 1.5, "aria": False},
        "encoding": {
            "x": x,
            "y": field("low", title=None),
            "y2": {"field": "high"},
            "color": colour(points),
        },
    }
    panels = list(dict.fromkeys(point["at once"] for point in points))
    facet = field("at once", "nominal", sort=panels, title=None)
    halo = _labels(x, y, stroke="var(--paper)", strokeWidth=4, strokeJoin="round", strokeOpacity=0.85)
    view = {"layer": [bars, halo, dots, _labels(x, y)], "height": 230}
    return spec_of(
        points, description, facet=facet, spec=view, columns=3, resolve={"scale": {"y": "independent"}}
    )


def tradeoff(run: Run) -> Spec | None:
    """Speed against fidelity, one dot a build and a panel a concurrency; not drawn where it would leave out most."""
    title, figure = error_metric(run)
    points = _speed_points(run, figure, lambda x: f"{x:.3g}")
    if 2 * len({point["build"] for point in points}) < len(run.builds):
        return None
    return _scatter(points, f"Output tokens a second over {title}, one dot a build", title)


def footprint(run: Run) -> Spec | None:
    """Speed against memory after load, in GiB, or in MiB where that would be nothing."""

    def loaded(build: Build) -> Any:
        return run.figure("serve", build.name, "boot", "loaded_gib")

    points = _speed_points(run, loaded, gib)
    if points and max(point["x"] for point in points) < 0.1:
        points = [{**point, "x": point["x"] * 1024} for point in points]
        return _scatter(
            points, "Output tokens a second over memory after load, one dot a build", "MiB after load"
        )
    return _scatter(
        points, "Output tokens a second over memory after load, one dot a build", "GiB after load"
    )
