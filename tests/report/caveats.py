"""What limits a run's figures: builds that no rule may pick or that never ran, another bf16, drift. Pure."""

from tests.report.run import BASE, Build, Run
from tests.report.spread import geometric_mean
from tests.report.words import is_, listed, ratio, was
from tests.support.record import Row

FACTS = ("boot", "image refused")  # of serving; a build that fails these still says the right thing
SERVED, TIMED = "not served", "served but not timed in any cell"
DRIFT = 0.03  # bf16 measured twice may differ by this much before a caveat says so


def _spoils(row: Row) -> bool:
    """Whether a failed row says that the build's words or weights are wrong, not merely that a fact differs."""
    wrong_words = row.suite == "serve" and row.item not in FACTS
    return row.outcome == "failed" and bool(row.build) and (row.suite == "quant" or wrong_words)


def disqualified(run: Run) -> dict[str, str]:
    """Builds that no rule may pick, with the reason: a wrong answer, a fault in the weights."""
    found: dict[str, str] = {}
    for row in run.record.rows:
        if _spoils(row):
            found.setdefault(row.build, f"{row.suite}: {row.item} failed")
    return found


def fit(run: Run) -> list[Build]:
    """The builds that may be picked."""
    out = disqualified(run)
    return [build for build in run.builds if build.name not in out]


def _without(run: Run, suite: str) -> list[str]:
    """Planned builds of which nothing of a suite ended ok, though it can exist and the suite was begun."""
    rows = run.record.of(suite)
    ends: dict[str, set[str]] = {row.build: set() for row in rows}
    for row in rows:
        ends[row.build].add(row.outcome)
    names = [build.name for build in run.planned] if rows else []
    return [name for name in names if "ok" not in ends.get(name, ()) and ends.get(name) != {"infeasible"}]


def unserved(run: Run) -> dict[str, list[str]]:
    """Planned builds that no answer on speed or memory can count, by what they lack."""
    never = _without(run, "serve")
    silent = [name for name in _without(run, "sweep") if name not in never]
    return {words: names for words, names in ((SERVED, never), (TIMED, silent)) if names}


def left_unserved(run: Run) -> tuple[str, ...]:
    """What an answer says of the builds that it leaves out because they never ran."""
    return tuple(
        f"unfinished: {listed(names)} {was(names)} {words} and {is_(names)} not compared"
        for words, names in unserved(run).items()
    )


def unfinished(run: Run) -> str:
    """One line for the first screen: how many planned builds never ran; empty where all did."""
    parts = [
        f"{len(names)} of {len(run.planned)} builds {was(names)} {words}"
        for words, names in unserved(run).items()
    ]
    return f"unfinished: {listed(parts)}" if parts else ""


def run_caveats(run: Run) -> tuple[str, ...]:
    """What limits every speed of this run: another bf16, drift, an advisory machine, builds left out."""
    caveats = [str(note) for note in run.header.get("caveats", ())]
    if run.header.get("bf16_source_hash"):
        caveats.append(f"{BASE} is a checkpoint of its own, so it differs in weights as well as in format")
    if found := run.header.get("settings", {}).get("found"):
        caveats.append(f"made by others, and taken as they are: {listed(found)}")
    if run.machine == "cpu":
        caveats.append("on a CPU shared with the client speeds are advisory and say nothing of a GPU")
    drift = drift_of(run)
    if drift is not None and abs(drift - 1) > DRIFT:
        caveats.append(f"{BASE} at the end of the run was {ratio(drift)} its speed at the start")
    out = disqualified(run)
    if out:
        whose = {why: [name for name in out if out[name] == why] for why in out.values()}
        caveats.append(
            "not considered: " + "; ".join(f"{listed(names)} ({why})" for why, names in whose.items())
        )
    boots = [row.build for row in run.record.of("serve") if row.item == "boot" and row.outcome == "failed"]
    if boots := [name for name in boots if name not in out]:
        caveats.append(f"the engine did not run as expected, or failed to boot: {listed(boots)}")
    return tuple(caveats)


def drift_of(run: Run) -> float | None:
    """bf16's speed at the end of the run over that at its start, geometric mean over its cells."""
    last = {c.load: c.tok_per_s for c in run.all_cells if c.build == BASE and c.nth == 2 and c.tok_per_s}
    pairs = [(rate, run.cell(BASE, load).tok_per_s) for load, rate in last.items()]
    ratios = [second / first for second, first in pairs if first]
    return geometric_mean(ratios) if ratios else None
