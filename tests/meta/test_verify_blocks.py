"""The judge reads by blocks of rows: what it finds does not depend on where a block ends.

A toy's tensors fit one block each; here a block is a few rows, as it is a part of any real tensor.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantkit.convert import build
from quantkit.formats import FORMATS
from quantkit.verify import verify
from tests.meta.spoil_values import NAN_CODE, PREFIX, UP
from tests.meta.toy import make_toy, read_draft

ROWS_SPOILED = (0, 41, 95)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy source."""
    return make_toy(tmp_path_factory.mktemp("blocks") / "source", seed=2)


def rounded(value: Any) -> Any:
    """Figures to twelve digits: sums are added in another order."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return float(f"{value:.12g}") if isinstance(value, float) else value


def spoiled(built: Path, folder: Path) -> Path:
    """The build with a wrong code in three rows, and a wrong byte far inside a copied tensor and a side file."""
    draft = read_draft(built)
    packed = f"{UP}.weight_packed" in draft
    raw = draft[f"{UP}.weight_packed" if packed else f"{UP}.weight"]
    rows = np.frombuffer(raw.data, np.uint8).reshape(raw.shape[0], -1)
    for row in ROWS_SPOILED:
        rows[row, 1] = rows[row, 1] ^ 0x88 if packed else NAN_CODE[raw.dtype]
    draft[f"{PREFIX}norm.weight"].data[101] ^= 1
    draft.side["tokenizer.json"] = draft.side["tokenizer.json"][:-1] + b"?"
    return draft.save(folder)


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("name", ["fp8emb4", "fp8fnuz", "w8a8", "q4w4a16emb4"])
def test_a_few_rows_at_a_time_find_the_same(
    name: str, foreign: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(source, tmp_path / "good", FORMATS[name])
    built = spoiled(tmp_path / "good", tmp_path / "built")
    whole = verify(source, built, foreign=foreign).to_dict()
    monkeypatch.setattr("quantkit.verify_values.BLOCK_VALUES", 200)
    monkeypatch.setattr("quantkit.verify_files.BLOCK_BYTES", 10)
    parts = verify(source, built, foreign=foreign).to_dict()
    assert rounded(parts) == rounded(whole)
    found = {problem["kind"]: problem for problem in parts["problems"]}
    assert "byte at offset 101" in found["copied_differs"]["got"]
    if not foreign:
        assert "side_file_differs" in found
        assert found["level_not_nearest" if "q4" in name else "nan_code"]["count"] == len(ROWS_SPOILED)
    assert verify(source, tmp_path / "good", foreign=foreign).good


@pytest.mark.parametrize("name", ["fp8emb4", "fp8fnuzemb4", "w8a8", "q4w4a16emb4"])
def test_the_judge_s_two_ways_to_measure_agree(name: str, source: Path, tmp_path: Path) -> None:
    """Compiled kernels for our builds, numpy for others': the same figures, but for the order of float32 sums."""
    build(source, tmp_path / "built", FORMATS[name])
    ours, theirs = (verify(source, tmp_path / "built", foreign=f).to_dict() for f in (False, True))
    for one, other in ((ours, theirs), (ours["tables"], theirs["tables"])):
        assert figures_of(one) == {
            key: pytest.approx(value, rel=1e-5) for key, value in figures_of(other).items()
        }


def figures_of(value: Any, at: str = "") -> dict[str, Any]:
    """Every number of a section, under its path."""
    if not isinstance(value, dict):
        return {at: value} if isinstance(value, (int, float)) and not isinstance(value, bool) else {}
    inside = [
        figures_of(each, f"{at}/{key}") for key, each in value.items() if key not in ("rules", "tables")
    ]
    return {key: number for part in inside for key, number in part.items()}


def test_a_side_file_that_goes_on_behind_a_whole_block_is_found(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(source, tmp_path / "built", FORMATS["bf16"])
    tokenizer = tmp_path / "built" / "tokenizer.json"
    monkeypatch.setattr("quantkit.verify_files.BLOCK_BYTES", tokenizer.stat().st_size)
    assert verify(source, tmp_path / "built").good
    tokenizer.write_bytes(tokenizer.read_bytes() + b"more")
    assert [p.kind for p in verify(source, tmp_path / "built").problems] == ["side_file_differs"]
