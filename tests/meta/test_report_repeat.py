"""The command that a report prints measures the same again: run as printed, it has the settings of the run."""

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quantkit.machines import machines
from tests.meta.made_up import made_up_record
from tests.meta.small_project import make, pytest_in
from tests.report.repeat import commands
from tests.report.run import Run
from tests.support.plugins.options import OPTIONS, SETTINGS
from tests.support.plugins.recording import given_of
from tests.support.record import read_record

DEFAULTS: dict[str, Any] = {name[2:].replace("-", "_"): kwargs.get("default") for name, kwargs in OPTIONS}
MACHINES = machines()


def _config(machine: str, **given: Any) -> pytest.Config:
    """A config in which these options were given, and a source is set as every run sets it."""
    options = {**DEFAULTS, "source": MACHINES[machine].source or MACHINES["cpu"].source, **given}
    stash = {SETTINGS: SimpleNamespace(machine=MACHINES[machine])}
    return cast(pytest.Config, SimpleNamespace(stash=stash, getoption=options.__getitem__))


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machines_default_source_is_not_given(machine: str) -> None:
    assert given_of(_config(machine)) == {}


def test_what_is_given_is_kept_as_it_stands() -> None:
    given = {"source": "../weights/e2b", "checkpoints": "my builds", "bf16_source": "a/b@main"}
    assert given_of(_config("cpu", **given, price=2.5)) == {**given, "price": "2.5"}


def test_the_printed_line_gives_what_was_given_and_no_default() -> None:
    given = {"source": "../my weights", "bf16_source": "a/b"}
    words = shlex.split(commands(Run(made_up_record(given=given, bf16_source_hash="beef")))[0])
    assert {"--source=../my weights", "--bf16-source=a/b"} <= set(words)
    by_default = commands(Run(made_up_record(given={})))[0]
    assert "--source" not in by_default
    assert "--source checkpoint" in commands(Run(made_up_record()))[0], "an older record has the name alone"


def test_the_printed_line_run_as_printed_is_the_same_run(tmp_path: Path) -> None:
    project = make(tmp_path)
    (project / "source").rename(project / "my weights")
    args = ("--builds", "bf16", "--source", "my weights", "--checkpoints", "some/builds", "--rows", "2")
    assert pytest_in(project, "tests/sweep", *args, "--run", "first")[0] == 0
    first = read_record(project / "first")
    program, *words = shlex.split(commands(Run(first))[0])
    assert (program, words[-2:]) == ("pytest", ["--run", "RUN"])
    assert pytest_in(project, *words)[0] == 0
    again = read_record(project / "RUN")
    for name in ("given", "source_hash", "settings", "builds", "usd_per_hour"):
        assert again.header[name] == first.header[name]
    assert again.header["given"] == {"source": "my weights", "checkpoints": "some/builds"}
