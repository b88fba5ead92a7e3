"""Real SIGKILLs: every resume ends with the bytes of an undisturbed build, and no final name holds half a file.

Twenty here; the program takes `--kills 200`.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_twenty_kills(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.unit.killing", str(source), str(tmp_path), "--kills", "20"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    seen = json.loads(ended.stdout)
    assert seen["killed"] >= 20
    assert (seen["wrong"], seen["half_written"]) == (0, 0)
    assert seen["reused"] > 0
