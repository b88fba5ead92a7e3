"""A server that dies in the middle of the sweep: its cells fail with that reason, and the next build goes on.

The whole suite of the sweep as a user runs it, on a miniature engine.
"""

import textwrap
from pathlib import Path

import pytest

from tests.meta.small_project import pytest_in
from tests.support.record import Record, read_record

ROOT = Path(__file__).parents[2]
DIES_AT = 20  # 9 requests are the first cell's, 8 the second's warm-up: this one is under load
ENGINE = textwrap.dedent("""
    import os
    import sys

    def pytest_configure():
        import tests.support.plugins.serving
        from tests.support.engine.process import ProcessEngine

        miniature = "tests.support.miniatures.mortal_server"
        command = (sys.executable, "-m", miniature, "quantkit-fp8", os.environ["DIES_AT"])
        tests.support.plugins.serving.engine_for = lambda settings: ProcessEngine(command)
""")
REPEATS = [f"repeat-{repeat}-{cell}" for repeat in (1, 2, 3) for cell in ("1x128", "8x128")]
ITEMS = [*REPEATS, "1x128", "8x128"]


def sweep(folder: Path, dies_at: int, *args: str) -> tuple[int, str, Record]:
    """Status, output and record of a sweep of two builds, of which fp8's server dies."""
    (folder / "mortal_engine.py").write_text(ENGINE)
    where = (f"--run={folder}/run", f"--checkpoints={folder}/made")
    words = ("-p", "mortal_engine", "tests/sweep", "--builds", "fp8,w8a8", *where, *args)
    status, output = pytest_in(
        ROOT, *words, env={"PYTHONPATH": str(folder), "DIES_AT": str(dies_at)}, timeout_s=300
    )
    return status, output, read_record(folder / "run")


@pytest.mark.slow
@pytest.mark.xdist_group("engine")
def test_a_server_that_dies_fails_its_own_cells_and_a_retry_mends_them(tmp_path: Path) -> None:
    status, output, record = sweep(tmp_path, DIES_AT)
    assert status == 12, output  # infrastructure: worth a retry, and no test's fault
    assert "EngineCore encountered a fatal error: out of luck" in output  # the log's last lines
    rows = {row.item: row for row in record.of("sweep") if row.build == "fp8"}
    assert list(rows) == ITEMS
    assert {item for item, row in rows.items() if row.outcome == "ok"} == {ITEMS[0]}
    for item in ITEMS[1:]:
        assert rows[item].outcome == "failed"
        assert "ServerDied: server fp8 ended, got exit code 1" in rows[item].reason, item
    assert {row.outcome for row in record.of("sweep") if row.build == "w8a8"} == {"ok"}

    status, output, again = sweep(tmp_path, 0, "--retry-failed")
    assert status == 0, output
    assert {row.outcome for row in again.of("sweep")} == {"ok"}
    assert again.row("sweep", "fp8", ITEMS[0]) == rows[ITEMS[0]]
    assert again.row("sweep", "w8a8", "8x128") == record.row("sweep", "w8a8", "8x128")
