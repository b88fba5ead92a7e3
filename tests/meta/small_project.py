"""A project of made-up tests on the real plumbing, and pytest run in it as a user would.

For the judge's own tests of plugins; knows no suite.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGINS = ("options", "recording", "collecting", "starting", "billing", "closing")
LEAN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # four times as fast: only the plugins that a run here needs
MACHINE = {"arch": "cpu", "memory_gib": 0, "fp8": "e4m3fn", "engine": "process", "image": "", "devices": [],
           "last_level_cache_mib": 64, "usd_per_hour": 1.0}  # fmt: skip
SUITE = """
import pytest

pytestmark = pytest.mark.xdist_group("engine")

@pytest.mark.row("boot")
def test_boot(boot, row):
    row["boot_s"] = 1.5

@pytest.mark.parametrize("cell", ["1x128", "8x128"])
@pytest.mark.row("")
def test_cell(boot, row, cell):
    row["tok_per_s"] = 10.0
"""


def make(folder: Path, *, suite: str = SUITE, plugin: str = "") -> Path:
    """Make the project in a folder, with one suite and a plugin of its own."""
    shutil.copytree(
        ROOT / "tests/support", folder / "tests/support", ignore=shutil.ignore_patterns("__pycache__")
    )
    (folder / "tests/sweep").mkdir()
    (folder / "tests/sweep/test_made_up.py").write_text(suite)
    (folder / "source").mkdir()
    (folder / "source/config.json").write_text("{}")
    plugins = [f"tests.support.plugins.{name}" for name in PLUGINS]
    (folder / "conftest.py").write_text(f"pytest_plugins = {[*plugins, 'made_up_plugin']}\n")
    (folder / "made_up_plugin.py").write_text(plugin)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def describe(project: Path, name: str, **facts: object) -> None:
    """Write a machine's record to the project's ``more.toml``: a CPU's, but for these facts."""
    lines = (f"{key} = {json.dumps(value)}" for key, value in {**MACHINE, **facts}.items())
    (project / "more.toml").write_text("\n".join([f"[{name}]", *lines, ""]))


def pytest_in(
    folder: Path, *args: str, env: Mapping[str, str] | None = None, timeout_s: float = 120
) -> tuple[int, str]:
    """Status and output of a pytest started in a folder; `env` is added to this process's own."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args],
        cwd=folder, env={**os.environ, **(env or {})},
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def run(project: Path, *args: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Status and output of pytest in the project."""
    source = () if "--source" in args else ("--source", "source")
    words = ("-p", "xdist", "--run", "run", "tests", *args, *source)
    return pytest_in(project, *words, env={**LEAN, **(env or {})})
