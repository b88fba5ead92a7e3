"""What the suites' fixtures do about a server: in which order, what a test is told of its death, what it leaves.

Whole runs of pytest on a miniature, with an engine and a card that say what they are asked.
"""

import json
from pathlib import Path

import pytest

from tests.meta import small_project
from tests.support.record import read_record

pytestmark = pytest.mark.xdist_group("reaping")
PLUGIN = """
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.support.engine.base import Launch, PortInUse
from tests.support.host.preflight import Card
from tests.support.engine.process import ProcessEngine

pytest_plugins = ["tests.support.plugins.serving", "tests.support.plugins.gating"]

def tell(word):
    with Path("told").open("a") as file:
        file.write(f"{word} ")

class Engine(ProcessEngine):
    def start(self, launch):
        tell(launch.name)
        if launch.name == "q4w4a16" and Path("held").exists():
            raise PortInUse("port for the server")
        return super().start(launch)

    def reap_orphans(self):
        tell("reap")
        return []

    def close(self):
        tell("close")

class Host:
    def __init__(self, *_):
        pass

    def cards(self):
        tell("cards")
        return [Card(8 << 30, Path("held").exists() << 30)]

@contextmanager
def one_run(card):
    tell(f"take-{card}")
    yield
    tell("leave")

def launch_for(boot, checkpoint, settings):
    return Launch(str(boot), checkpoint, f"quantkit-{boot.build.name}", settings.run / "boot.log")

@pytest.fixture(scope="session")
def built():
    return lambda build: Path("build")

def pytest_configure():
    from tests.support.plugins import serving

    miniature = (sys.executable, "-m", "tests.support.miniatures.vllm_server", "none")
    serving.engine_for = lambda settings: Engine(miniature)
    serving.Host, serving.one_run, serving.launch_for = Host, one_run, launch_for
    serving.wait_fallen = partial(serving.wait_fallen, seconds=0)
"""
SUITE = """
import json
import os
from pathlib import Path

import pytest

PLAN = json.loads(Path("plan.json").read_text())

@pytest.fixture
def fault(server):
    return PLAN.get(server.boot.build.name)

@pytest.fixture
def scores(server, fault):
    if fault == "dies in setup":
        os.kill(server.pids[0], 9)
        raise OSError("no scores")

def test_boot(boot, server, row):
    row["boot_s"] = server.boot_s

def test_answers(boot, server, fault, scores, row):
    if fault == "dies":
        os.kill(server.pids[0], 9)
    if fault == "holds":
        Path("held").touch()
    elif fault:
        raise OSError("no answer")
"""


def run(folder: Path, **plan: str) -> tuple[int, str, dict[str, str], list[str]]:
    """Status, output, reasons by build and item, and what engine and card were asked."""
    project = small_project.make(folder, suite=SUITE, plugin=PLUGIN)
    (project / "plan.json").write_text(json.dumps(plan))
    args = ("-p", "pytest_datadir.plugin", "-p", "pytest_regressions.plugin", "--gate", "off")
    status, output = small_project.run(project, *args, "--builds", ",".join(plan))
    reasons = {f"{row.build} {row.item}": row.reason for row in read_record(project / "run").rows}
    return status, output, reasons, (project / "told").read_text().split()


def test_a_test_whose_server_died_says_so(tmp_path: Path) -> None:
    """A broken answer is what a test sees first; the run is worth a retry, and the next build is served."""
    status, output, reasons, told = run(tmp_path, fp8="dies", w8a8="dies in setup", q4w4a16="")
    assert status == 12, output
    for build in ("fp8", "w8a8"):
        assert reasons[f"{build} boot"] == ""
        assert f"ServerDied: server {build} ended, got signal 9" in reasons[f"{build} answers"], output
    assert reasons["q4w4a16 answers"] == ""
    served = " ".join(f"cards {build} cards" for build in ("fp8", "w8a8", "q4w4a16"))
    assert told == f"take-cpu reap {served} close leave".split()


def test_what_a_server_that_lives_answers_is_the_tests_to_judge(tmp_path: Path) -> None:
    """And a card that is still held when it has ended fails the test that left it so; the next is no matter of it."""
    status, output, reasons, _ = run(tmp_path, fp8="fails", w8a8="holds", q4w4a16="has no port")
    assert status == 1, output
    assert reasons["fp8 answers"] == "OSError: no answer"
    assert "MemoryHeld: card memory after the server ended" in reasons["w8a8 answers"], output
    assert "PortInUse: port for the server" in reasons["q4w4a16 boot"], output
