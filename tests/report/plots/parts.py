"""What all plots share: rows with a sentence, channels, colour by linears, shape by tables. Pure.

Colours are names of CSS variables, so that the page decides them for light, dark and print.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.report.run import Build, Run

Spec = dict[str, Any]
LINEARS = ("bf16", "fp8", "fp8fnuz", "int8", "int4", "unknown")
TABLES = {"bf16": "circle", "PLE int4": "diamond", "int4": "triangle-up", "unknown": "square"}


def spec_of(values: Sequence[Mapping[str, Any]], description: str, **rest: Any) -> Spec:
    """A specification with its rows and the sentence that a screen reader says."""
    return {"description": description, "data": {"values": list(values)}, **rest}


def field(name: str, kind: str = "quantitative", **rest: Any) -> Spec:
    """A channel that reads one field."""
    return {"field": name, "type": kind, **rest}


def order(run: Run) -> list[str]:
    """The builds in the order of every table."""
    return [build.name for build in run.builds]


def colour(rows: Sequence[Mapping[str, Any]]) -> Spec:
    """Colour by how the linears are stored; the legend names those that are drawn."""
    used = [name for name in LINEARS if any(row["linears"] == name for row in rows)]
    scale = {"domain": used, "range": [f"var(--linears-{name})" for name in used]}
    return field("linears", "nominal", scale=scale, legend={"title": "linears"})


def shape(rows: Sequence[Mapping[str, Any]]) -> Spec:
    """Shape by how the tables are stored."""
    used = [name for name in TABLES if any(row["tables"] == name for row in rows)]
    scale = {"domain": used, "range": [TABLES[name] for name in used]}
    return field("tables", "nominal", scale=scale, legend={"title": "tables"})


def style(build: Build) -> dict[str, str]:
    """What every row of data says of its build."""
    return {"build": build.name, "linears": build.linears, "tables": build.tables}
