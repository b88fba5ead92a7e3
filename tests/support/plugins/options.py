"""pytest plugin: the command line that all suites share, and the run's settings made from it.

Declares options as a table; every default stands here and nowhere else. Imports no suite.
"""

import re
import time
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from quantkit.errors import NotACheckpoint, QuantkitError
from quantkit.machines import Machine, UnknownMachine, machines
from tests.support.engine.process import SECRET
from tests.support.host.machine import detected
from tests.support.settings import GATES, GRIDS, Settings, named_builds
from tests.support.sources.source import folder_of, hub_source

SETTINGS = pytest.StashKey[Settings]()
WHOLE = "config.json"  # written last: a build that has it is whole


def _counts(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) for word in words):
        raise ArgumentTypeError(f"got {text!r}, expected whole numbers above 0, such as 1,8,64")
    return tuple(dict.fromkeys(map(int, words)))


def _dollars(text: str) -> float:
    if not re.fullmatch(r"[0-9]*[.]?[0-9]+", text):
        raise ArgumentTypeError(f"got {text!r}, expected US dollars, such as 1.99")
    return float(text)


OPTIONS: tuple[tuple[str, dict[str, object]], ...] = (
    (
        "--source",
        {
            "default": "",
            "help": "QAT checkpoint that every build is made from: a folder, or OWNER/NAME[@REVISION] of the hub; "
            "by default the machine's",
        },
    ),
    (
        "--bf16-source",
        {"default": "", "help": "another checkpoint to serve as bf16; the QAT copy is then bf16qat"},
    ),
    ("--builds", {"default": "all", "help": "comma-separated builds, or all"}),
    (
        "--checkpoints",
        {
            "default": "checkpoints",
            "help": "folder that builds are made in; one that lies there by its name, as FOLDER/fp8, is taken as it is "
            "and verified as others' work",
        },
    ),
    ("--run", {"default": "", "help": "folder of this run; named again, the run resumes"}),
    (
        "--from",
        {"default": "", "dest": "from_runs", "help": "comma-separated runs that --force-regen merges"},
    ),
    (
        "--retry-failed",
        {"action": "store_true", "help": "measure again what failed in the run that is resumed"},
    ),
    (
        "--grid",
        {"default": "", "choices": (*GRIDS, ""), "help": "cells of the sweep; by default the machine's"},
    ),
    (
        "--rows",
        {"type": _counts, "default": "1,8,64", "help": "comma-separated rows of the timed matrix products"},
    ),
    ("--machines", {"default": "", "help": "a file of further machine records, like machines.toml"}),
    ("--image", {"default": "", "help": "engine image as REF@sha256:..., instead of the machine's"}),
    (
        "--engine-arg",
        {"action": "append", "default": [], "help": "further argument for vLLM, may be repeated"},
    ),
    ("--engine-env", {"action": "append", "default": [], "help": "NAME=VALUE for vLLM, may be repeated"}),
    ("--gate", {"default": "baseline", "choices": GATES, "help": "what the run is compared with"}),
    (
        "--against",
        {
            "default": "",
            "help": "what --gate ab compares the one build of --builds with: a build, or an image REF@sha256:...",
        },
    ),
    (
        "--accept-regression",
        {"default": "", "help": "reason for which --force-regen may write a worse baseline"},
    ),
    ("--price", {"type": _dollars, "default": None, "help": "US dollars an hour of this machine"}),
    (
        "--budget",
        {"type": _dollars, "default": None, "help": "US dollars after which no further item starts"},
    ),
    (
        "--dry-run",
        {"action": "store_true", "help": "say what would run, for how long and for how much; run nothing"},
    ),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the shared options."""
    group = parser.getgroup("quantkit")
    for name, kwargs in OPTIONS:
        group.addoption(name, **kwargs)


def records(config: pytest.Config) -> dict[str, Machine]:
    """The machine records of this run: those shipped, and those of ``--machines``."""
    more = config.getoption("machines")
    return machines(Path(more).resolve() if more else None)


def demanded(markexpr: str, known: Mapping[str, Machine] | None = None) -> Machine | None:
    """The machine that ``-m`` asks for: one whose mark decides the expression."""
    known = machines() if known is None else known
    if not markexpr:
        return None
    try:
        expression = Expression.compile(markexpr)
    except SyntaxError:  # which pytest reports
        return None

    def holds(only: str) -> bool:
        return expression.evaluate(lambda mark, /, **_kwargs: mark == only)

    return next((machine for name, machine in known.items() if holds(name) and not holds("")), None)


def _run_folder(option: pytest.Config) -> Path:
    if not option.getoption("run"):  # set, so that xdist's workers are told the same
        option.option.run = f"runs/{time.strftime('%Y%m%d-%H%M%S')}"
    run = Path(option.getoption("run")).resolve()
    if run.exists() and not run.is_dir():
        raise pytest.UsageError(f"--run, got a file, {run}, expected a folder")
    return run


def _pairs(texts: list[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise pytest.UsageError(f"--engine-env, got {text!r}, expected NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def _no_secrets(option: str, texts: Iterable[str]) -> None:
    """What the engine is given stands in the record, in its process list and in `docker inspect`."""
    for name in (re.split(r"[=\s]", text)[0] for text in texts):
        if SECRET.search(name):
            raise pytest.UsageError(f"{option}, got {name}, expected no secret: it would stand in the record")


def _settings(config: pytest.Config) -> Settings:
    get = config.getoption
    _no_secrets("--engine-env", get("engine_env"))
    _no_secrets("--engine-arg", get("engine_arg"))
    known = records(config)
    machine = demanded(get("markexpr"), known) or detected(records=known)
    checkpoints = Path(get("checkpoints")).resolve()
    for name in ("source", "grid"):  # set, so that whoever asks for the option, workers too, hears the same
        setattr(config.option, name, get(name) or getattr(machine, name) or getattr(known["cpu"], name))
    if get("grid") not in GRIDS:
        raise UnknownMachine(
            f"grid of {machine.name}", got=repr(get("grid")), expected=f"one of {', '.join(GRIDS)}"
        )
    source = folder_of(get("source"), checkpoints)
    if hub_source(get("source"), checkpoints) is None and not (source / WHOLE).is_file():
        raise NotACheckpoint(
            "--source", got=f"no {WHOLE} in {source}", expected="a checkpoint, or OWNER/NAME"
        )
    builds = named_builds(get("builds"), bool(get("bf16_source")))
    price = machine.usd_per_hour if get("price") is None else get("price")
    if get("budget") is not None and not price:
        raise pytest.UsageError(f"--budget, got no price of an hour of {machine.name}, expected --price too")
    return Settings(
        source=source,
        bf16_source=folder_of(get("bf16_source"), checkpoints) if get("bf16_source") else None,
        builds=builds,
        checkpoints=checkpoints,
        run=_run_folder(config),
        from_runs=tuple(Path(run).resolve() for run in get("from_runs").split(",") if run),
        retry_failed=get("retry_failed"),
        grid=get("grid"),
        rows=get("rows"),
        image=get("image") or machine.image,
        engine_args=tuple(get("engine_arg")),
        engine_env=_pairs(get("engine_env")),
        gate=get("gate"),
        against=get("against"),
        accept_regression=get("accept_regression"),
        price=price,
        budget=get("budget"),
        dry_run=get("dry_run"),
        machine=machine,
        found=tuple(build.name for build in builds if (checkpoints / build.name / WHOLE).exists()),
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make the settings once; a wrong value is one sentence, not a traceback."""
    try:
        for name, machine in records(config).items():
            config.addinivalue_line("markers", f"{name}: for a machine of architecture {machine.arch}")
        config.stash[SETTINGS] = _settings(config)
    except QuantkitError as wrong:
        raise pytest.UsageError(str(wrong)) from None


@pytest.fixture(scope="session")
def settings(pytestconfig: pytest.Config) -> Settings:
    """The run's settings."""
    return pytestconfig.stash[SETTINGS]
