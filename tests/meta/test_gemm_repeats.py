"""Two timings of one thing agree: ratios to bf16 of consecutive runs here lie within the spread that they report.

Takes minutes and runs real products on this host's CPU; no absolute time is asserted.
"""

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from quantkit.machines import machines
from tests.support.gemm.backends import Backend
from tests.support.gemm.baseline import judge, ratios_of
from tests.support.gemm.launch import bundle, run_program
from tests.support.gemm.plan import Timing, plan_for
from tests.support.gemm.rows import product_numbers
from tests.support.gemm.samples import Timed
from tests.support.gemm.shapes import Shape, Token

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("engine")]

RUNS, LEAST_AGREEING = (
    11,
    9,
)  # ten pairs, of which one may lie outside: medians of three iid values do in 1.4 %
TOKEN = Token(
    "one layer", (Shape("qkv_proj", 2560, 1536), Shape("o_proj", 1536, 2048), Shape("down_proj", 1536, 6144))
)
TIMING = Timing(
    processes=3,
    budget_s=2.0,
    least_samples=3,
    samples=15,
    control_side=256,
    copy_bytes=1 << 24,
    drift_limit=None,
)


def ratios_now(program: Path, plan: dict[str, Any], folder: Path) -> dict[str, dict[str, float]]:
    """int4's ratios of one run."""
    argv = (sys.executable, str(program), json.dumps(plan))
    lines = (tuple(run_program(argv, plan, folder / f"{nth}.jsonl", 600)) for nth in range(TIMING.processes))
    return ratios_of(product_numbers(Timed(plan, tuple(lines)), TOKEN, Backend.INT4, 1))


def test_runs_agree_nine_times_of_ten(tmp_path: Path) -> None:
    plan = plan_for(machines()["cpu"], TOKEN, [1], TIMING, [Backend.BF16, Backend.INT4])
    program = bundle(tmp_path / "program.pyz")
    runs = [ratios_now(program, plan, tmp_path / str(nth)) for nth in range(RUNS)]
    verdicts = [judge(now, then) for then, now in pairwise(runs)]
    agreeing = sum(verdict.verdict == "same" for verdict in verdicts)
    assert agreeing >= LEAST_AGREEING, verdicts
