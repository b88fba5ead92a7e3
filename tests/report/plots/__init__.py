"""Record -> Vega-Lite specifications, by name; a plot that would be empty is left out. Pure.

Every row of data carries its `build`, so that the page can hide one.
"""

from collections.abc import Callable

from tests.report.plots.columns import products
from tests.report.plots.heat import heat
from tests.report.plots.parts import Spec
from tests.report.plots.scatter import footprint, tradeoff
from tests.report.plots.strips import kind_errors, memory, tpot, ttft
from tests.report.run import Run

PLOTS: dict[str, Callable[[Run], Spec | None]] = {
    "tradeoff": tradeoff,
    "footprint": footprint,
    "heat": heat,
    "tpot": tpot,
    "ttft": ttft,
    "memory": memory,
    "kinds": kind_errors,
    "products": products,
}


def specs(run: Run) -> dict[str, Spec]:
    """Every plot of this run that has anything to show."""
    made = {name: make(run) for name, make in PLOTS.items()}
    return {name: spec for name, spec in made.items() if spec}
