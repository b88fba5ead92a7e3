"""--gate ab as it is run: the sweep's own pairs on scripted servers, of which one side is slow in one cell alone."""

import re
from pathlib import Path

import pytest

from tests.meta.test_load_sweep import Project
from tests.support.gate.ab import PAIRS

CONFTEST = """
import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
import pytest
from tests.support.miniatures.stream_server import MODEL, Script, StreamServer

pytest_plugins = {plugins}
SCRIPT = Script(first_s=0.02, per_token_s=0.003, tokens_per_chunk=4)

@dataclass
class Launch:
    name: str = ""
    log: Path = Path("boot.log")

class SlowAlone(StreamServer):
    async def _stream(self, *args):
        await asyncio.sleep(0.01)  # by then all that were sent together are here
        if self.counts["running"] == 1:
            await asyncio.sleep(0.1)
        return await super()._stream(*args)

def note(file, word):
    with Path(file).open("a") as log:
        log.write(word + " ")

@contextmanager
def scripted(engine, launch, boot):
    note("boots", launch.name)
    side = "B" if "-B-" in launch.name else "A"
    with (SlowAlone if side == "B" else StreamServer)(SCRIPT) as running:
        yield SimpleNamespace(boot=boot, base_url=running.base_url, model=MODEL,
                              checkpoint=Path("source"), alive=lambda: note("turns", side))

@pytest.fixture(scope="session")
def engine():
    return None

@pytest.fixture(scope="session")
def built():
    return lambda build: Path("source")

def pytest_collection_finish(session):
    for item in session.items:
        item.module.serve, item.module.launch_for = scripted, lambda *_: Launch()
"""


@pytest.mark.slow
def test_a_loss_is_found_confirmed_on_fresh_boots_and_named(tmp_path: Path) -> None:
    project = Project(tmp_path, CONFTEST)
    status, output = project.run("--gate", "ab", "--against", "fp8")
    assert status == 0, output  # cores are shared here: a loss is advice
    assert re.search(
        r"worse: bf16 1x128, -\d\d\.\d%; p 0\.004 .*, 0\.004 on a fresh boot \[advisory\]", output
    )
    assert f"compared with fp8 in {PAIRS} interleaved pairs a cell" in output
    assert re.search(r"bf16 pair-first-1-1x128: [\d.]+ tok/s against [\d.]+, 0\.\d{3}", output)

    boots = (tmp_path / "boots").read_text().split()
    assert boots == ["fp8-A-first", "bf16-B-first", "fp8-A-fresh", "bf16-B-fresh"]
    turns = (tmp_path / "turns").read_text().split()[::2]  # each measurement asks twice whether it is alive
    assert "".join(turns) == (PAIRS // 2) * "ABABBABA" + (PAIRS // 2) * "ABBA"  # two cells, then the one

    rows = project.record.of("sweep")
    fresh = [row for row in rows if "-fresh-" in row.item]
    assert {row.outcome for row in fresh if row.item.endswith("-1x128")} == {"ok"}
    assert {row.reason for row in fresh if row.item.endswith("-8x128")} == {
        "no loss that a fresh boot should confirm"
    }
    verdicts = {row.item: row.numbers["verdict"] for row in project.record.of("gate")}
    assert verdicts["1x128"] == "worse"
    assert verdicts["8x128"] != "worse"
