"""Builds that others made and that lie under --checkpoints by name: taken as they are, and verified as others' work."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from quantkit.convert import build
from quantkit.formats import FORMATS
from quantkit.verify import verify
from tests.meta.small_project import pytest_in
from tests.nano import NANO
from tests.support.record import Record, read_record

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def other_rule(folder: Path) -> Path:
    """An fp8 build whose scales are rounded to bfloat16, as many who publish builds have them."""
    build(NANO, folder, FORMATS["fp8"])
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        narrow = {name: t.bfloat16() for name, t in tensors.items() if name.endswith("weight_scale")}
        save_file({**tensors, **narrow}, path, metadata={"format": "pt"})
    return folder


def run(checkpoints: Path) -> tuple[int, str, Record]:
    """Status, output and record of the fidelity suite on a found build and one of ours."""
    where = (f"--checkpoints={checkpoints}", f"--run={checkpoints}/run")
    words = ("tests/quant/test_fidelity.py", "--builds", "fp8,q4w4a16", *where)
    status, output = pytest_in(ROOT, *words, timeout_s=500)
    return status, output, read_record(checkpoints / "run")


def test_a_found_build_is_taken_as_it_is_and_judged_by_bounds(tmp_path: Path) -> None:
    found = other_rule(tmp_path / "fp8")
    assert not verify(NANO, found).good  # as ours it would be refused: its scales are not those of our rule
    before = {path.name: path.read_bytes() for path in found.iterdir()}
    status, output, record = run(tmp_path)
    assert status == 0, output
    assert record.header["settings"]["found"] == ["fp8"]
    outcomes = {(row.build, row.item): row.outcome for row in record.rows}
    assert (outcomes["fp8", "fidelity"], outcomes["fp8", "bounds"]) == ("ok", "infeasible")
    assert (outcomes["q4w4a16", "bounds"], outcomes["q4w4a16", "grid"]) == ("ok", "ok")
    foreign = {row.build: row.numbers["foreign"] for row in record.rows if row.item == "fidelity"}
    assert foreign == {"fp8": True, "q4w4a16": False}
    assert {path.name: path.read_bytes() for path in found.iterdir()} == before
    assert [path.name for path in tmp_path.glob("*/*/config.json")] == ["config.json"]  # q4w4a16's alone
    assert "made by others, and taken as they are: fp8" in (tmp_path / "run/report.md").read_text()


def test_a_found_build_of_another_format_is_a_failure(tmp_path: Path) -> None:
    build(NANO, tmp_path / "w8a8", FORMATS["w8a8"])
    shutil.move(tmp_path / "w8a8", tmp_path / "fp8")
    status, output, record = run(tmp_path)
    assert status == 1, output
    assert [row.key for row in record.rows if row.outcome == "failed"] == [("quant", "fp8", "fidelity")]


def test_a_found_build_with_a_wrong_weight_is_a_failure(tmp_path: Path) -> None:
    found = other_rule(tmp_path / "fp8")
    path = next(found.glob("*.safetensors"))
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("down_proj.weight"))
    tensors[name] = tensors[name].roll(1, 0)
    save_file(tensors, path, metadata={"format": "pt"})
    status, output, record = run(tmp_path)
    assert status == 1, output
    assert [row.key for row in record.rows if row.outcome == "failed"] == [("quant", "fp8", "fidelity")]
