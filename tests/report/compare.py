"""A run against another, or against the committed baselines: verdicts by the gate's own rules, and differences.

Joins records and the gate; the tables it makes are drawn like any other. Reads baselines, writes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from quantkit.machines import machines
from tests.report.run import Cell, Gap, Run, load_name
from tests.report.sections import Section
from tests.report.tables import Column, Table, answered, fidelity_text, kernels
from tests.report.words import written
from tests.support.gate import baseline
from tests.support.gate.verdicts import Baseline, Expected, Seen, Verdict, judge_run
from tests.support.record import Record, Row, footer_of

FACTS = (
    ("kernel", "text", kernels),
    ("memory", "gib", lambda run, build: run.figure("serve", build.name, "boot", "loaded_gib")),
    ("KV tokens", "whole", lambda run, build: run.figure("serve", build.name, "boot", "kv_tokens_log")),
    ("fidelity", "text", fidelity_text),
    ("answers", "text", answered),
)
GONE = ("build", "linears", "tables")
CELLS = (
    ("change-throughput", "Output tokens a second, new / old", "tok_per_s"),
    ("change-tpot", "Time per output token, new / old", "tpot_s"),
    ("change-ttft", "Time to first token, new / old", "ttft_s"),
    ("change-ratio", "Ratio to bf16, new / old", "ratio"),
)


@dataclass(frozen=True)
class Old:
    """What a run is held against.

    Attributes
    ----------
    name
        For the title.
    run
        Its figures as a run; of baselines, the cells alone.
    baselines
        By build, as the gate sees them.
    """

    name: str
    run: Run
    baselines: Mapping[str, Baseline]


def _item(load: tuple[int, int]) -> str:
    return f"{load[0]}x{load[1]}"


def _expected(cell: Cell) -> Expected:
    repeats = tuple(each.tok_per_s for each in cell.repeats) or (cell.tok_per_s or 0.0,)
    return Expected((repeats,), () if cell.ratio is None else (cell.ratio,), cell.known_cv or 0.0)


def _differs(run: Run, other: Run) -> str:
    """In what two runs differ so that they cannot be compared; only what both tell of themselves counts."""
    if not run.published and not other.published:
        return "; ".join(baseline.differences(baseline.key_of(run.header), baseline.key_of(other.header)))
    pairs = [("machine", run.machine, other.machine), ("image", _image(run), _image(other))]
    return "; ".join(f"{name}: {old} then, {new} now" for name, new, old in pairs if new != old)


def _image(run: Run) -> str:
    settings = run.header.get("settings", {})
    return str(run.header.get("image") or settings.get("image") or "none")


def against_run(run: Run, other: Record, name: str) -> Old:
    """Another run, each of its builds a provisional baseline of one boot."""
    old = Run(other)
    differs = _differs(run, old)
    found = {}
    for build in old.builds:
        cells = {
            _item(c.load): _expected(c) for c in old.cells.values() if c.build == build.name and c.tok_per_s
        }
        if cells:
            found[build.name] = Baseline(
                {} if differs else cells, provisional=True, differs=differs, published=old.published
            )
    return Old(name, old, found)


def _row(build: str, cell: str, expected: Expected, times: Mapping[str, Sequence[float]]) -> Row:
    medians = {name: median(values) for name, values in times.items() if values}
    repeats = [{"tok_per_s": rate} for boot in expected.boots for rate in boot]
    numbers = {"tok_per_s": expected.tok_per_s, "repeats": repeats, **medians}
    return Row("sweep", build, cell, "ok", "", numbers)


def against_baselines(run: Run, root: Path = baseline.ROOT) -> Old:
    """The committed baselines of this run's machine that have its key."""
    machine, key = run.machine, baseline.key_of(run.header)
    entries = {b.name: baseline.read_entries(baseline.path_of(machine, b.name, root)) for b in run.builds}
    found = {name: base for name, given in entries.items() if (base := baseline.baseline_for(given, key))}
    rows = [
        _row(name, cell, expected, entry.times[cell])
        for name, given in entries.items()
        for entry in given
        if not baseline.differences(key, entry.key)
        for cell, expected in entry.cells.items()
    ]
    return Old("the baselines", Run(Record(run.header, tuple(rows), footer_of(rows))), found)


def verdicts(run: Run, old: Old) -> list[Verdict]:
    """Every cell of every build, judged as the gate judges."""
    machine = machines().get(run.machine)
    enforced = (
        not run.published and not old.run.published and machine is not None and not machine.advisory_speed
    )
    seen: dict[str, dict[str, Seen]] = {
        name: {} for name in [b.name for b in run.builds] + list(old.baselines)
    }
    for cell in run.cells.values():
        if cell.tok_per_s:
            repeats = tuple(r.tok_per_s for r in cell.repeats) or (cell.tok_per_s,)
            seen[cell.build][_item(cell.load)] = Seen(repeats, cell.ratio)
    return judge_run(seen, old.baselines, enforced)


def with_verdicts(record: Record, found: Sequence[Verdict]) -> Record:
    """The record with these verdicts in place of its own."""
    rows = [row for row in record.rows if row.suite != "gate"]
    for each in found:
        numbers = {name: value for name, value in vars(each).items() if name not in ("build", "cell")}
        rows.append(Row("gate", each.build, each.cell, "ok", "", numbers))
    return Record(record.header, tuple(rows), footer_of(rows))


def _change(new: float | None, old: float | None) -> Any:
    if new is None or old is None:
        return Gap("not in this run" if new is None else "not in the other")
    return new / old if old else Gap("nothing then")


def _cell_changes(run: Run, old: Run, name: str, caption: str, figure: str) -> Table:
    grid = sorted({*run.grid, *old.grid})
    rows = []
    for build in run.builds:
        pairs = [(run.cell(build.name, load), old.cell(build.name, load)) for load in grid]
        rows.append((build.name, *(_change(getattr(a, figure), getattr(b, figure)) for a, b in pairs)))
    return Table(
        name, caption, (Column("build"), *(Column(load_name(x), "ratio") for x in grid)), tuple(rows)
    )


def _facts(run: Run, old: Run) -> Table:
    """Facts that are not the same in both, a row each."""
    rows = []
    for build in run.builds:
        for name, form, make in FACTS:
            new, then = (make(each, build) for each in (run, old))
            said = [written(form, value) for value in (new, then)]
            if said[0] != said[1] and not isinstance(then, Gap):
                rows.append((build.name, name, said[1], said[0]))
    columns = (Column("build"), Column("fact"), Column("old"), Column("new"))
    return Table("changed", "Facts that differ", columns, tuple(rows))


def _gone(run: Run, old: Run) -> Table:
    names = {build.name for build in run.builds}
    rows = tuple((b.name, b.linears, b.tables) for b in old.builds if b.name not in names)
    return Table("gone", "Builds that the other had and this run has not", tuple(map(Column, GONE)), rows)


def section(run: Run, old: Old) -> Section:
    """The differences as the report's first section."""
    tables = [_cell_changes(run, old.run, *which) for which in CELLS]
    lead = f"Each figure of this run over that of {old.name}; the verdicts stand under Gate."
    shown = (_gone(run, old.run), _facts(run, old.run), *tables)
    return Section(
        "changes", f"Against {old.name}", lead, shown, open=3, empty="There is nothing to compare with."
    )
