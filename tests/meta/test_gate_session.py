"""Whole pytest runs: the gate's exit status, its words, and --force-regen from the command line."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests.meta.small_project import LEAN, pytest_in
from tests.support.record import read_record

ROOT = Path(__file__).parents[2]
PLUGINS = ("options", "recording", "collecting", "closing", "gating")
PYTEST = ("-p", "xdist", "-p", "pytest_datadir.plugin", "-p", "pytest_regressions.plugin")
SUITE = """
import json
from pathlib import Path
import pytest
from tests.support.load.cellcheck import CellRefused
from tests.support.engine.base import ServerDied
from tests.support.miniatures.sweep_runs import cell_row

FIGURES = json.loads(Path("figures.json").read_text())

@pytest.fixture
def server(cell):
    if FIGURES[cell] == "died":
        raise ServerDied("server ended", log=Path("boot.log"))

@pytest.mark.parametrize("cell", FIGURES)
@pytest.mark.row("")
def test_cell(boot, cell, server, row):
    figure = FIGURES[cell]
    if figure == "refused":
        raise CellRefused("cell is no number")
    if figure == "after it":  # as a cell says it whose repeat died
        raise CellRefused("repeat 1", got="tests.support.engine.base.ServerDied: server ended", expected="a number")
    assert figure != "failed"
    repeats = [figure, figure * 1.001, figure * 0.999]
    row.update(cell_row(boot.build.name, cell, repeats, 1.0 if boot.build.name == "bf16" else 0.8).numbers)
"""
PRODUCTS = """
import pytest

@pytest.mark.row("int4-1")
def test_products(row):
    row.update(model="toy", shapes={}, ratio_bf16=2.0, ratio_spread=0.1)

def test_card(row):
    row.update(device="a card")
"""
CONFTEST = """
from pathlib import Path

pytest_plugins = {plugins}

def pytest_configure():
    import tests.support.plugins.gating
    from quantkit.machines import Machine

    tests.support.plugins.gating.ROOT = Path("baselines").resolve()
    if Path("card").exists():
        Machine.advisory_speed = False
"""


class Project:
    """A project with a made-up sweep on the real plumbing and gate."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.count = 0
        shutil.copytree(ROOT / "tests/support", root / "tests/support")
        (root / "tests/sweep").mkdir()
        (root / "tests/sweep/test_made_up.py").write_text(SUITE)
        (root / "tests/gemm").mkdir()
        (root / "tests/gemm/test_made_up_products.py").write_text(PRODUCTS)
        (root / "source").mkdir()
        (root / "source/config.json").write_text("{}")
        plugins = [f"tests.support.plugins.{name}" for name in PLUGINS]
        (root / "conftest.py").write_text(CONFTEST.replace("{plugins}", str(plugins)))
        (root / "card").touch()
        shutil.copy(ROOT / "pyproject.toml", root)

    def run(self, figures: Mapping[str, object], *args: str, ci: str = "") -> tuple[int, str]:
        """Exit status and output of one run; its folder is run1, run2, ..."""
        self.count += 1
        (self.root / "figures.json").write_text(json.dumps(figures))
        words = (
            *PYTEST,
            "--source",
            "source",
            "--builds",
            "bf16",
            "--run",
            f"run{self.count}",
            "tests",
            *args,
        )
        return pytest_in(self.root, *words, env={**LEAN, "CI": ci})


GOOD: dict[str, object] = {"1x128": 100.0, "8x128": 400.0}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose first run has been made the baseline."""
    project = Project(tmp_path_factory.mktemp("gate"))
    status, output = project.run(GOOD)
    assert (status, "new: bf16 1x128; no baseline yet" in output) == (0, True), output
    assert ("   bf16 1x128: 100.0 tok/s" in output, "    int4-1" in output) == (True, False), (
        "only cells are told"
    )
    status, output = project.run(GOOD)
    assert (status, "new: bf16 1x128; no baseline yet" in output) == (0, True), (
        "a second run writes no baseline"
    )
    status, output = project.run(GOOD, "--force-regen", "--from", "run1")
    assert status == 11
    assert not (project.root / "run3").exists(), "nothing is measured where runs are merged"
    assert "bf16 8x128: old none, new 400.00" in output
    assert "provisional: 1 of 3 boots" in output
    assert "gemm int4-1: token, old none, new 2.000" in output
    assert json.loads((project.root / "baselines/cpu/gemm.json").read_text())["key"]["device"] == "a card"
    return project


# figures, further arguments -> exit status, words; a whole pytest run each, so that most are for `make ci`
CASES: dict[str, tuple[dict[str, object], tuple[str, ...], int, str]] = {
    "the same": (GOOD, (), 0, "2 of 2 cells are the same"),
    "half speed": ({**GOOD, "8x128": 200.0}, (), 10, "worse: bf16 8x128, -50.0%"),
    "half speed, gate off": ({**GOOD, "8x128": 200.0}, ("--gate", "off"), 0, ""),
    "faster": ({**GOOD, "8x128": 600.0}, (), 0, "better: bf16 8x128, +50.0%"),
    "a cell more": ({**GOOD, "64x128": 900.0}, (), 0, "new: bf16 64x128"),
    "a cell gone": ({"1x128": 100.0}, (), 11, "gone: bf16 8x128"),
    "a cell is no number": ({**GOOD, "8x128": "refused"}, (), 11, "gone: bf16 8x128"),
    "a test failed": ({**GOOD, "8x128": "failed"}, (), 1, ""),
    "the server died": ({"1x128": "died", "8x128": "after it"}, (), 12, "gone: bf16 8x128"),
    "no server came up": ({"1x128": "died", "8x128": "died"}, ("--gate", "off"), 12, "ServerDied"),
    "another engine": (GOOD, ("--engine-arg=--x",), 11, "not comparable: bf16 1x128; settings:"),
}


QUICK = ("half speed", "a cell gone", "the server died")


def params(cases: Mapping[str, tuple[object, ...]]) -> list[ParameterSet]:
    """The cases, all but the quick ones marked slow."""
    return [
        pytest.param(*case, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name, case in cases.items()
    ]


@pytest.mark.parametrize(("figures", "args", "status", "words"), params(CASES))
def test_exit_status(
    first: Project, figures: dict[str, object], args: tuple[str, ...], status: int, words: str
) -> None:
    found, output = first.run(figures, *args)
    assert found == status, output
    assert words in output


@pytest.mark.slow
def test_a_second_run_without_baseline_is_still_new(first: Project) -> None:
    baselines = first.root / "baselines"
    baselines.rename(first.root / "aside")
    try:
        for _ in range(2):
            status, output = first.run(GOOD)
            assert (status, "new: bf16 1x128; no baseline yet" in output) == (0, True), output
        assert not baselines.exists()
    finally:
        (first.root / "aside").rename(baselines)


def test_on_shared_cores_a_loss_is_advice(first: Project) -> None:
    (first.root / "card").unlink()
    try:
        status, output = first.run({**GOOD, "8x128": 200.0})
    finally:
        (first.root / "card").touch()
    assert status == 0, output
    assert "worse: bf16 8x128, -50.0%" in output
    assert "[advisory]" in output


@pytest.mark.slow
def test_a_finished_run_named_again_is_judged_again(first: Project) -> None:
    slow = {**GOOD, "8x128": 200.0}
    assert first.run(slow)[0] == 10
    run = ("--run", f"run{first.count}")
    status, output = first.run(slow, *run)
    assert (status, "worse: bf16 8x128" in output) == (10, True), output
    status, output = first.run(slow, *run, "--gate", "off")
    assert status == 0, output


@pytest.mark.slow
def test_verdicts_stand_in_the_record(first: Project) -> None:
    first.run({**GOOD, "8x128": 200.0})
    rows = {row.item: row for row in read_record(first.root / f"run{first.count}").of("gate")}
    assert rows["1x128"].numbers["verdict"] == "same"
    assert (rows["8x128"].outcome, rows["8x128"].numbers["verdict"]) == ("failed", "worse")
    assert rows["8x128"].numbers["ratio"] == pytest.approx(0.5)


@pytest.mark.slow
def test_regen_refuses_and_leaves_the_files(first: Project) -> None:
    path = first.root / "baselines/cpu/sweep/bf16.json"
    products = first.root / "baselines/cpu/gemm.json"
    before = path.read_bytes(), products.stat().st_mtime_ns
    first.run({**GOOD, "8x128": 200.0})
    worse = f"run{first.count}"
    refusals = {
        ("--force-regen", "--from", worse): (11, "ratio 0.500 WORSE"),
        ("--force-regen", "--from", "absent"): (11, "expected a finished run"),
        ("--force-regen", "--from", "run1", "--builds", "fp8"): (11, "no sweep cell asked for"),
        ("--force-regen", "--from", "run1", "-n", "2"): (4, "under xdist"),
        ("--from", "run1"): (4, "got no --force-regen"),
        ("--regen-all",): (4, "expected --force-regen"),
    }
    for args, (expected, words) in refusals.items():
        status, output = first.run(GOOD, *args)
        assert (status, words in output) == (expected, True), output
    status, output = first.run(GOOD, "--force-regen", "--from", "run1", ci="true")
    assert (status, "in CI" in output) == (4, True), output
    record = first.root / worse / "record.jsonl"
    record.write_text("".join(record.read_text().splitlines(keepends=True)[:-1]))
    status, output = first.run(GOOD, "--force-regen", "--from", worse)
    assert (status, "no footer" in output) == (11, True), output
    assert (path.read_bytes(), products.stat().st_mtime_ns) == before


@pytest.mark.slow
def test_a_damaged_baseline_breaks_the_run(first: Project) -> None:
    path = first.root / "baselines/cpu/sweep/bf16.json"
    before = path.read_text()
    path.write_text(before.replace("400.0", "NaN"))
    try:
        status, output = first.run(GOOD)
    finally:
        path.write_text(before)
    assert status == 11, output
    assert "finite positive numbers" in output
