"""pytest plugin: judges the sweep when the run ends, rewrites baselines when told to, and sets the exit status.

Joins record, baselines and gate; measures nothing and imports no suite. Runs in the controller alone.
"""

import os
import re
from collections.abc import Mapping
from math import exp
from typing import Any

import pytest

from quantkit.errors import BadRecord, QuantkitError
from quantkit.formats import FORMATS
from tests.support.gate import ab
from tests.support.gate.baseline import (
    ROOT,
    baseline_for,
    key_of,
    path_of,
    read_entries,
    write_all,
)
from tests.support.gate.figures import cell_rows, drift, seen_cells
from tests.support.gate.published import published_for
from tests.support.gate.regen import RegenRefused, new_entries, planned_files, refuse_here
from tests.support.gate.verdicts import Verdict, judge_run
from tests.support.gemm import baseline as gemm
from tests.support.plugins.collecting import RESUMED
from tests.support.plugins.options import SETTINGS
from tests.support.plugins.recording import LEDGER, ROW, suite_of
from tests.support.record import Key, Record, Row, read_record
from tests.support.settings import Settings

# Errors by what they say of a run; everything else that fails is a failed test.
REGRESSIONS = re.compile(r"\bRatioWorse\b")
REFUSALS = re.compile(r"\b(CellRefused|BadRecord|NotPinned|ImageMissing|DeviceMissing)\b")
INFRASTRUCTURE = re.compile(
    r"\b(PortInUse|CardTaken|Docker(Absent|Refused)|ForeignServer|Server(Died|Slow|Loops|Unhealthy))\b"
)
JUDGED = pytest.StashKey["Judged"]()
REGENERATED = pytest.StashKey[set[str]]()


class Judged:
    """What the gate found, for the closing lines and the exit status.

    Attributes
    ----------
    look
        Whether a yardstick has changed: a broken precondition until a person has looked.
    """

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.lines: list[str] = []
        self.failed = self.slower = self.refused = self.infrastructure = self.look = False

    def see(self, reason: str) -> None:
        """Sort one failure: a cell that is no number since its server died is the server's doing."""
        if INFRASTRUCTURE.search(reason):
            self.infrastructure = True
        elif REFUSALS.search(reason):
            self.refused = True
        elif REGRESSIONS.search(reason):
            self.slower = True
        else:
            self.failed = True

    @property
    def status(self) -> int:
        """The run's: 0; 1 a test failed; 10 regression; 11 broken precondition; 12 infrastructure.

        What a person must see first wins: a wrong answer before a slow one, a measured loss before a missing
        figure. What a dead server leaves behind is worth a retry, cells that are gone with it among it.
        """
        gaps = {verdict.verdict for verdict in self.verdicts if verdict.is_gap}
        if self.failed:
            return 1
        if self.slower or any(verdict.is_regression for verdict in self.verdicts):
            return 10
        if self.refused or self.look or gaps - ({"gone"} if self.infrastructure else set()):
            return 11
        return 12 if self.infrastructure else 0


def _require_rivals(settings: Settings) -> None:
    """Refuse a comparison that is none: one build, and another build or, in containers, another image."""
    images = settings.machine.engine == "docker"
    known = settings.against in FORMATS or (images and "@sha256:" in settings.against)
    if len(settings.builds) != 1 or not known:
        raise pytest.UsageError(
            f"--gate ab, got {len(settings.builds)} builds against {settings.against!r}, expected --builds B "
            f"--against A, A being a build{' or an image REF@sha256:...' if images else ''}"
        )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse at once what would be refused in the end."""
    config.stash[JUDGED] = Judged()
    settings = config.stash[SETTINGS]
    if settings.gate == "ab":
        _require_rivals(settings)
    if config.getoption("regen_all", False):
        raise pytest.UsageError(
            "--regen-all, got it, expected --force-regen: it overwrites and passes unseen"
        )
    workers = hasattr(config, "workerinput") or bool(config.getoption("numprocesses", None))
    if config.getoption("force_regen", False):
        try:
            refuse_here(os.environ, workers)
        except RegenRefused as wrong:
            raise pytest.UsageError(str(wrong)) from None
    elif settings.from_runs:
        raise pytest.UsageError("--from, got no --force-regen, expected both (--from names runs to merge)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --force-regen --from the named runs are the measurement: nothing is measured again."""
    if config.stash[SETTINGS].from_runs:
        away = [item for item in items if suite_of(item)]
        config.stash[REGENERATED] = {suite_of(item) for item in away}
        items[:] = [item for item in items if not suite_of(item)]
        config.hook.pytest_deselected(items=away)


class Watcher:
    """Sees every report in the controller: sorts failures, and shows each cell as it is measured."""

    def __init__(self, config: pytest.Config) -> None:
        self.judged = config.stash[JUDGED]
        self.reporter = config.pluginmanager.get_plugin("terminalreporter")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Sort a failure by its error; a line for each cell."""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.judged.see(str(crash.message if crash else report.longrepr))
        line = getattr(report, ROW, None)
        if line and line["suite"] == "sweep" and line["outcome"] == "ok" and self.reporter:
            self.reporter.ensure_newline()
            self.reporter.write_line("   " + shown(line))


def shown(line: Mapping[str, Any]) -> str:
    """A cell, or a repeat of one, on one line: tokens a second and milliseconds."""
    numbers = line["numbers"]
    if "log_ratio" in numbers:
        sides = f"{numbers['b_tok_per_s']:.1f} tok/s against {numbers['a_tok_per_s']:.1f}"
        return f"{line['build']} {line['item']}: {sides}, {exp(numbers['log_ratio']):.3f}"
    if "tok_per_s" not in numbers:
        return f"{line['build']} {line['item']}"
    times = f"TTFT {numbers['ttft_s'] * 1e3:.1f} ms, TPOT {numbers['tpot_s'] * 1e3:.2f} ms"
    ratio = numbers.get("ratio_bf16")
    return f"{line['build']} {line['item']}: {numbers['tok_per_s']:.1f} tok/s, {times}" + (
        f", {ratio:.2f} of bf16" if ratio else ""
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Watch, where reports arrive."""
    if session.config.stash[LEDGER].writes:
        session.config.pluginmanager.register(Watcher(session.config), "quantkit-watcher")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Judge before the record is made, so that the verdicts stand in it; then set the exit status."""
    config = session.config
    ledger, settings, judged = config.stash[LEDGER], config.stash[SETTINGS], config.stash[JUDGED]
    if not ledger.writes:
        return
    swept = any(key[0] == "sweep" for key in ledger.rows)
    try:
        if settings.from_runs:
            _regenerate(config.stash.get(REGENERATED, set()), settings, judged)
        elif settings.gate == "ab" and swept:
            _judge_ab(config, settings, judged)
        elif settings.gate == "baseline" and swept:
            _judge(config, settings, judged)
    except QuantkitError as wrong:
        judged.refused = True
        judged.lines.append(f"{type(wrong).__name__}: {wrong}")
    resumed = session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and config.stash.get(RESUMED, 0)
    if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or resumed or judged.look:
        session.exitstatus = judged.status or session.exitstatus


def _judge(config: pytest.Config, settings: Settings, judged: Judged) -> None:
    ledger = config.stash[LEDGER]
    machine, public = settings.machine.name, published_for(settings.machine.name, ledger.header, ROOT)
    swept, key = cell_rows(ledger.rows.values()), key_of(ledger.header)
    baselines = {
        build: found
        for build in swept
        if (found := baseline_for(read_entries(path_of(machine, build, ROOT)), key) or public.get(build))
    }
    seen = {build: seen_cells(rows) for build, rows in swept.items()}
    judged.verdicts = judge_run(seen, baselines, not settings.machine.advisory_speed)
    for verdict in judged.verdicts:
        ledger.write(gate_row(verdict))
    for cell, ratio in drift(ledger.rows.values()).items():
        judged.lines.append(f"drift of bf16 over the run, {cell}: {ratio - 1:+.1%}")


def _judge_ab(config: pytest.Config, settings: Settings, judged: Judged) -> None:
    ledger = config.stash[LEDGER]
    pairs = ab.pairs_of(ledger.rows.values())
    (build,) = settings.builds
    judged.verdicts = ab.verdicts(build.name, pairs, not settings.machine.advisory_speed)
    for verdict in judged.verdicts:
        ledger.write(gate_row(verdict))
    judged.lines.append(f"compared with {settings.against} in {ab.PAIRS} interleaved pairs a cell")


def gate_row(verdict: Verdict) -> Row:
    """A verdict as a row of the record, failed where it can fail the run."""
    key: Key = ("gate", verdict.build, verdict.cell)
    numbers = {name: value for name, value in vars(verdict).items() if name not in ("build", "cell")}
    bad = verdict.is_regression or verdict.is_gap
    return Row(*key, "failed" if bad else "ok", sentence(verdict) if bad else "", numbers)


def sentence(verdict: Verdict) -> str:
    """A verdict for the terminal."""
    text = f"{verdict.verdict.replace('_', ' ')}: {verdict.build} {verdict.cell}"
    if verdict.ratio is not None:
        text += f", {verdict.ratio - 1:+.1%}"
    if verdict.tolerance is not None:
        text += f" (tolerance {verdict.tolerance:.1%})"
    if verdict.ratio_bf16 is not None:
        text += f", ratio to bf16 {verdict.ratio_bf16 - 1:+.1%}"
    advisory = "" if verdict.enforced or verdict.verdict in ("new", "same", "better") else " [advisory]"
    return text + (f"; {verdict.why}" if verdict.why else "") + advisory


def _runs_to_merge(settings: Settings) -> dict[str, Record]:
    records = {run.name: read_record(run) for run in settings.from_runs}
    if len(records) != len(settings.from_runs):
        raise BadRecord("--from", got="two runs of one name", expected="each run once")
    for name, record in records.items():
        if (machine := record.header["settings"]["machine"]) != settings.machine.name:
            raise RegenRefused(f"machine of run {name}", got=machine, expected=settings.machine.name)
    return records


def _regenerate(asked: set[str], settings: Settings, judged: Judged) -> None:
    """New baselines of the suites that were asked for and run: all are planned before the first is written."""
    judged.look = True
    machine, reason, records = settings.machine.name, settings.accept_regression, _runs_to_merge(settings)
    suites = asked & {"gemm", "sweep"} & {row.suite for record in records.values() for row in record.rows}
    if not suites:
        raise RegenRefused("runs to merge", got="no row of gemm or sweep that was asked for", expected="some")
    builds = {build.name for build in settings.builds}
    entries = new_entries(records, reason, builds) if "sweep" in suites else {}
    files, found = planned_files(machine, entries, ROOT)
    judged.lines += map(str, found)
    if "gemm" in suites:
        path, content, told = gemm.planned(list(records.values()), machine, reason, ROOT)
        judged.lines += told
        gemm.write(path, content)
        judged.lines.append(f"wrote {path.relative_to(ROOT.parent)}")
    write_all(files)
    if any(entry.provisional for entry in entries.values()):
        judged.lines.append(
            f"provisional: {len(records)} of 3 boots; name 3 runs for a baseline that knows boots"
        )
    judged.lines += [f"wrote {path.relative_to(ROOT.parent)}" for path in files]
    judged.lines.append(
        "look at the differences and commit them; this run exits non-zero so that somebody does"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What the gate found, worst first; cells that are the same are counted."""
    judged = config.stash[JUDGED]
    if not judged.verdicts and not judged.lines:
        return
    terminalreporter.section("gate")
    same = sum(verdict.verdict == "same" for verdict in judged.verdicts)
    order = {name: index for index, name in enumerate(("worse", "gone", "not_comparable", "better", "new"))}
    told = sorted((v for v in judged.verdicts if v.verdict != "same"), key=lambda v: order[v.verdict])
    for verdict in told:
        terminalreporter.write_line(sentence(verdict), red=verdict.is_regression or verdict.is_gap)
    if judged.verdicts:
        terminalreporter.write_line(f"{same} of {len(judged.verdicts)} cells are the same")
    for line in judged.lines:
        terminalreporter.write_line(line)
