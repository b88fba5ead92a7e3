"""Matrix products as bars: a bar a number format, a panel a number of rows. Pure."""

from tests.report.plots.parts import LINEARS, Spec, field, spec_of
from tests.report.products import rows_name, token_rows
from tests.report.run import Run
from tests.report.words import rate


def products(run: Run) -> Spec | None:
    """Microseconds of a token's products."""
    rows = [
        {"build": name, "linears": name, "rows": rows_name(count), "us": us, "said": f"{rate(us)} µs"}
        for name, count, row in token_rows(run)
        if isinstance(us := row.numbers.get("us_per_token"), int | float)
    ]
    if not rows:
        return None
    names = list(dict.fromkeys(row["linears"] for row in rows))
    colours = [f"var(--linears-{name if name in LINEARS else 'unknown'})" for name in names]
    encoding = {
        "x": field("us", title="µs a token", axis={"tickCount": 4}),
        "y": field("linears", "nominal", sort=names, title=None),
        "color": field("linears", "nominal", scale={"domain": names, "range": colours}, legend=None),
        "tooltip": [field(name, "nominal") for name in ("linears", "rows", "said")],
    }
    mark = {"type": "bar", "cornerRadiusEnd": 3, "height": {"band": 0.7}}
    facet = field("rows", "nominal", sort=list(dict.fromkeys(row["rows"] for row in rows)), title=None)
    view = {"mark": mark, "encoding": encoding, "height": {"step": 22}}
    scale = {"scale": {"x": "independent"}}
    description = "Time of one token's matrix products by number format, a panel a number of rows"
    return spec_of(rows, description, facet=facet, spec=view, columns=3, resolve=scale)
