"""Blocks of rows: they cover every tensor once, depend on the source alone, and bound the memory of a build."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.shaped import fewer_layers, make_checkpoint, real_config, shrunk
from quantkit import blocks
from quantkit.blocks import BLOCK_BYTES, Workspace, cut
from quantkit.convert import build
from quantkit.formats import format_named
from tests.unit.files import contents
from tests.unit.headers import plan_of

PEAK_MB = 400  # of a whole build on two workers, interpreter and compiled kernels included


@pytest.mark.parametrize("size", ["E2B", "31B"])
def test_blocks_cover_every_row_once(size: str) -> None:
    plan = plan_of(shrunk(real_config(size)), "fp8emb4")
    ends: dict[str, int] = {}
    for number, block in enumerate(cut(plan.decisions)):
        name = block.decision.tensor.name
        assert block.number == number
        assert block.start == ends.get(name, 0) < block.stop
        ends[name] = block.stop
    for decision in plan.decisions:
        shape = decision.tensor.shape
        assert ends[decision.tensor.name] == (shape[0] if len(shape) > 1 else 1)


@pytest.mark.parametrize("size", ["E2B", "E4B", "12B", "31B"])
def test_no_block_is_larger_than_a_mebibyte(size: str) -> None:
    found = list(cut(plan_of(real_config(size), "q4w4a16").decisions))
    assert max(block.size_bytes for block in found) <= BLOCK_BYTES
    assert sum(block.size_bytes for block in found) == 2 * sum(
        decision.tensor.values for decision in plan_of(real_config(size), "bf16").decisions
    )


def test_the_cuts_depend_on_the_source_alone() -> None:
    config = shrunk(real_config("E2B"))
    cuts = [
        [(b.decision.tensor.name, b.start, b.stop) for b in cut(plan_of(config, name).decisions)]
        for name in ("bf16", "fp8emb4", "q4w4a16")
    ]
    assert cuts[0] == cuts[1] == cuts[2]


def test_a_row_larger_than_a_block_is_a_block() -> None:
    config = shrunk(real_config("12B"), 6)
    config["text_config"]["hidden_size"] = 1 << 20
    rows = {
        block.stop - block.start
        for block in cut(plan_of(config, "fp8").decisions)
        if block.decision.tensor.kind == "self_attn.q_proj"
    }
    assert rows == {1}


@pytest.mark.parametrize("name", ["fp8emb4", "w8a8", "q4w4a16", "q4w4a16emb4"])
def test_blocks_of_a_few_rows_give_the_same_files(
    source: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a block begins inside a tensor, as all but the first do in a real one."""
    build(source, tmp_path / "whole", format_named(name))
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 700)
    build(source, tmp_path / "cut", format_named(name))
    whole, parts = contents(tmp_path / "whole"), contents(tmp_path / "cut")
    hashes = {"quantkit.json"}  # they are taken block by block
    assert {file for file in whole.keys() | parts.keys() if whole.get(file) != parts.get(file)} <= hashes


def test_a_workspace_holds_what_any_scheme_stores() -> None:
    one_wide = shrunk(real_config("12B"))  # its scales are larger than its weights
    one_wide["text_config"]["hidden_size"] = 1
    plans = [plan_of(shrunk(real_config("E2B")), name) for name in ("fp8", "w8a8", "q4w4a16emb4", "bf16")]
    for plan in [*plans, plan_of(one_wide, "fp8"), plan_of(one_wide, "w8a8")]:
        for block in cut(plan.decisions):
            room = Workspace(block.size_bytes).room(block)
            for array, stored in zip(room[:2], block.decision.stored[0], strict=False):
                assert array.nbytes == (block.stop - block.start) * stored.row_bytes


@pytest.mark.slow
def test_peak_memory_is_bounded_whatever_the_tensors(tmp_path: Path) -> None:
    config = fewer_layers(real_config("E2B"), 3, vocabulary=163_840)  # tables of 503 and 252 MB
    source = make_checkpoint(tmp_path / "source", config)
    children = Path(__file__).parents[2] / "benchmarks" / "children.py"
    for tool in ("quantkit", "verify"):
        command = [sys.executable, str(children), tool, str(source), str(tmp_path / "out"), "q4w4a16emb4"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
        assert json.loads(ended.stdout)["peak_mb"] <= PEAK_MB
