"""What a stranger tried on good builds, where the verdict must be exact: these findings, these names, and no more.

The catalogue in `faults_checkpoint` asks that a fault is among the findings; here nothing may stand beside it.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from quantkit.convert import build
from quantkit.errors import TensorSetMismatch
from quantkit.findings import MANY, Finding, each
from quantkit.formats import FORMATS
from quantkit.verify import verify
from tests.meta.spoil_values import UP
from tests.meta.toy import make_toy, read_draft

LABELS = {"w8a8": ("U8", "I8"), "fp8": ("F8_E5M2", "F8_E4M3"), "fp8fnuz": ("F8_E5M2FNUZ", "F8_E4M3FNUZ")}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy source."""
    return make_toy(tmp_path_factory.mktemp("strangers") / "source")


@pytest.mark.parametrize("name", LABELS)
def test_codes_under_a_label_of_no_scheme_are_held_against_their_like(
    name: str, source: Path, tmp_path: Path
) -> None:
    build(source, tmp_path / "built", FORMATS[name])
    draft = read_draft(tmp_path / "built")
    draft[f"{UP}.weight"].dtype, wanted = LABELS[name]
    found = verify(source, draft.save(tmp_path / "spoiled")).problems
    assert [(p.kind, p.where, p.expected) for p in found] == [("wrong_dtype", f"{UP}.weight", wanted)]


@pytest.mark.parametrize(
    ("target", "matches"),
    [("ParallelLMHead", True), ("LMHead", True), ("VocabParallelEmbedding", False), ("Linear", False)],
)
def test_a_head_is_matched_by_its_own_class(target: str, matches: bool, source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "built", FORMATS["w8a8emb4"])
    draft = read_draft(tmp_path / "built")
    for group in draft.config["quantization_config"]["config_groups"].values():
        group["targets"] = [target if "lm_head" in each else each for each in group["targets"]]
    found = verify(source, draft.save(tmp_path / "renamed")).problems
    assert (found == ()) is matches
    assert [p.kind for p in found if p.where == "lm_head"] == ([] if matches else ["config_module_unmatched"])


def test_a_module_belongs_to_one_group(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "built", FORMATS["w8a8"])
    draft = read_draft(tmp_path / "built")
    groups = draft.config["quantization_config"]["config_groups"]
    groups["group_9"] = groups["group_0"] | {"targets": ["re:.*up_proj$"]}
    found = verify(source, draft.save(tmp_path / "spoiled")).problems
    assert {(p.kind, p.expected) for p in found} == {("config_group_wrong", "one group")}
    assert UP in {p.where for p in found}


def test_a_shard_says_nothing_but_its_format(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "built", FORMATS["fp8"])
    draft = read_draft(tmp_path / "built")
    draft.metadata["quantization"] = "{}"
    found = verify(source, draft.save(tmp_path / "spoiled")).problems
    assert {(p.kind, p.where) for p in found} == {("metadata_differs", file) for file in draft.files}
    assert verify(source, tmp_path / "spoiled", foreign=True).good


@pytest.mark.parametrize("bits", [0x7F80, 0x7FC0, 0x6000], ids=["infinity", "NaN", "2^65"])
@pytest.mark.parametrize("name", ["fp8", "q4w4a16"])
def test_values_that_cannot_be_measured_are_the_source_s_fault(
    name: str, bits: int, source: Path, tmp_path: Path
) -> None:
    build(source, tmp_path / "built", FORMATS[name])
    draft = read_draft(source)
    draft[f"{UP}.weight"].view(np.uint16)[5, 7] = bits
    with pytest.raises(TensorSetMismatch, match=r"up_proj\.weight in the source"):
        verify(draft.save(tmp_path / "source"), tmp_path / "built")


def _hidden(folder: Path) -> None:
    (folder / ".cache").mkdir()
    (folder / ".gitattributes").write_text("x")


def _written(folder: Path) -> None:
    (folder / "README.md").write_text("a card")
    (folder / "quantkit.json").unlink()


@pytest.mark.parametrize("change", [_hidden, _written])
def test_what_no_loader_reads_may_lie_there(
    change: Callable[[Path], None], source: Path, tmp_path: Path
) -> None:
    build(source, tmp_path / "built", FORMATS["fp8"])
    change(tmp_path / "built")
    assert verify(source, tmp_path / "built").good


@pytest.mark.parametrize("name", ["modeling_gemma4.py", "added_tokens.json", "params.json", "evil.pkl"])
def test_another_s_build_may_bring_files_of_its_own_and_ours_may_not(
    name: str, source: Path, tmp_path: Path
) -> None:
    build(source, tmp_path / "built", FORMATS["fp8"])
    (tmp_path / "built" / name).write_text("x")
    found = verify(source, tmp_path / "built").problems
    assert [(p.kind, p.where) for p in found] == [("side_file_unexpected", name)]
    assert verify(source, tmp_path / "built", foreign=True).good


def test_a_file_that_the_source_has_is_not_unexpected(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "source")
    (tmp_path / "source" / "added_tokens.json").write_text("{}")
    build(tmp_path / "source", tmp_path / "built", FORMATS["fp8"])
    assert verify(tmp_path / "source", tmp_path / "built").good


def test_what_each_maker_writes_anew_is_not_compared(source: Path, tmp_path: Path) -> None:
    """The card and the record of any build; of another's, all that no engine reads."""
    shutil.copytree(source, tmp_path / "source")
    for name in ("README.md", "quantkit.json", "NOTICE"):
        (tmp_path / "source" / name).write_text("the source's own")
    build(tmp_path / "source", tmp_path / "built", FORMATS["fp8"])
    (tmp_path / "built" / "README.md").write_text("the build's own")
    assert verify(tmp_path / "source", tmp_path / "built").good
    (tmp_path / "built" / "NOTICE").unlink()
    assert verify(tmp_path / "source", tmp_path / "built", foreign=True).good
    found = verify(tmp_path / "source", tmp_path / "built").problems
    assert [(p.kind, p.where) for p in found] == [("side_file_missing", "NOTICE")]


def test_a_finding_is_one_line_whatever_a_name_holds() -> None:
    finding = Finding("config_changed", "\x1b[2J\ngood\ud800", "\u202e")
    assert str(finding).isprintable()
    assert finding.to_dict()["message"].isprintable()
    assert r"\x1b[2J\ngood\ud800" in str(finding)


def test_very_many_places_are_counted_and_few_are_named() -> None:
    few, many = [f"k{n}" for n in range(MANY)], [f"k{n}" for n in range(MANY + 1)]
    assert [finding.where for finding in each("config_changed", few)] == few
    (finding,) = each("config_changed", many, "none")
    assert (finding.where, finding.count, finding.expected) == ("k0", MANY + 1, "none")
