"""The order of the report: section after section, each with its lead, its tables and the name of its plots. Pure.

Every form of the report walks this list, so that page, Markdown and terminal tell the same story.
"""

from dataclasses import dataclass

from quantkit.machines import machines
from tests.report import detail, judged, pairs, products, spoken, tables
from tests.report.answer import ranked_loads
from tests.report.caveats import drift_of
from tests.report.run import BASE, NOISY_CV, Run, load_name
from tests.report.tables import Table
from tests.report.troubles import troubles
from tests.report.words import listed, ratio, share


@dataclass(frozen=True)
class Section:
    """One part of the report.

    Attributes
    ----------
    lead
        What to look for, in a sentence or two.
    tables
        Those without rows are not shown; a section without any says `empty`.
    plots
        Names of plots that `plots.specs` may have for it.
    open
        Tables that stand open on the page; the rest lie in folds.
    """

    key: str
    title: str
    lead: str
    tables: tuple[Table, ...]
    plots: tuple[str, ...] = ()
    open: int = 1
    empty: str = "Nothing of this kind was measured in this run."

    @property
    def shown(self) -> tuple[Table, ...]:
        """The tables that have rows."""
        return tuple(table for table in self.tables if table.rows)


def price_of(run: Run) -> float:
    """US dollars an hour: the run's own price, else the machine's list price, 0 where nothing is billed."""
    own = run.header.get("usd_per_hour")
    if isinstance(own, int | float) and not isinstance(own, bool):
        return float(own)
    machine = machines().get(run.machine)
    return machine.usd_per_hour if machine else 0.0


def _noise(run: Run) -> str:
    """Which loads varied too much, and whether the answers rest on them for want of steadier ones."""
    ranked = {*ranked_loads(run, lambda n: n == 1), *ranked_loads(run, lambda n: n > 1)}
    kinds = {
        "shown, not ranked": run.noisy - ranked,
        "ranked all the same, for want of steadier ones": run.noisy & ranked,
    }
    said = ""
    for ends, loads in kinds.items():
        if loads:
            names = [load_name(load) for load in run.grid if load in loads]
            said += f" {listed(names)} varied by over {share(NOISY_CV)} between repeats: {ends}."
    return said


def _speed(run: Run) -> Section:
    price = price_of(run)
    made: tuple[Table, ...] = (
        tables.ratios(run),
        tables.throughput(run),
        tables.variation(run),
        pairs.pairs(run),
        pairs.extremes(run),
    )
    made += (pairs.medals(run),) + ((tables.cost(run, price),) if price else ())
    lead = f"Each cell is a number of requests at once × tokens of prompt; the ratio is to {BASE} in the same cell."
    lead += _noise(run)
    drift = drift_of(run)
    if drift is not None:
        lead += f" {BASE} at the end of the run had {ratio(drift)} its speed at the start."
    return Section("speed", "Throughput", lead, made if run.grid else (), ("heat",), open=2)


def sections(run: Run) -> tuple[Section, ...]:
    """All sections in the order of the report; the answers come before them."""
    return (
        Section("builds", "The builds", "", (tables.overview(run),)),
        Section(
            "tradeoff",
            "Speed against fidelity",
            "Up is faster; left is nearer to the source. A build is worth serving if none stands above and left of it: "
            "those have their names; builds whose answers or weights failed have none.",
            (detail.tradeoff(run), detail.quality(run)),
            ("tradeoff", "footprint"),
        ),
        _speed(run),
        Section(
            "latency",
            "Latency",
            "Time per output token and to the first token. A tick is a repeat, the dot the cell's median.",
            (tables.tpot(run), tables.ttft(run)) if run.grid else (),
            ("tpot", "ttft"),
        ),
        Section(
            "memory",
            "Memory",
            "Weights and room for KV as predicted from the headers alone, and as the engine reports them after load.",
            (tables.memory(run), tables.warnings(run)),
            ("memory",),
        ),
        Section(
            "fidelity",
            "Fidelity of the weights",
            "Every value was decoded by an independent reader and compared with the source.",
            (detail.fidelity(run), detail.kinds(run)),
            ("kinds",),
            open=2,
        ),
        Section(
            "products",
            "Matrix products",
            "What each number format can give on this card before an engine is involved.",
            (products.products(run), products.explained(run)),
            ("products",),
        ),
        Section(
            "answers",
            "Answers",
            "The words were checked, not only the status.",
            (spoken.by_question(run), spoken.said(run)),
        ),
        Section(
            "gate",
            "Gate",
            "",
            (judged.counts(run), judged.verdicts(run)),
            empty="No cell was judged against a baseline in this run.",
        ),
        Section(
            "troubles",
            "What is missing",
            "",
            (troubles(run),),
            empty="Everything that was planned ended well.",
        ),
        Section("environment", "Environment and settings", "", (detail.environment(run),)),
    )
