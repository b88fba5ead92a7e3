"""Other people's builds under `--foreign`: each rule is recognized by name and called good, each defect in it is found.

The table is rule x defect, and every defect befalls every rule.
"""

from pathlib import Path
from typing import Any

import pytest

from quantkit.cli import main
from quantkit.convert import build
from quantkit.formats import FORMATS
from quantkit.verify import Report, verify
from tests.meta.foreign_builds import RULES, Rule, foreign, nested
from tests.meta.spoil_foreign import DEFECTS, Defect
from tests.meta.spoil_tensors import KEY
from tests.meta.spoil_values import PREFIX, UP
from tests.meta.toy import Draft, make_toy, read_draft


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy source."""
    return make_toy(tmp_path_factory.mktemp("foreign") / "source")


def judged(source: Path, draft: Draft, folder: Path) -> Report:
    """The verdict on a draft as another's build."""
    return verify(source, draft.save(folder), foreign=True)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_of_others_is_recognized_and_good(
    rule: Rule, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = judged(source, foreign(rule, read_draft(source)), tmp_path / "built")
    assert [str(problem) for problem in report.problems] == []
    (found,) = report.rules().values()
    assert found["rule"] == rule.recognized
    assert report.to_dict()["rules"] == report.rules()
    assert main(["verify", "--foreign", str(source), str(tmp_path / "built")]) == 0
    assert f"scales: {rule.recognized}\n" in capsys.readouterr().out
    assert report.measure(report.judged[0].module.source.role).relative_rms() < 0.2


def _tie(config: dict[str, Any], top: bool | None, inner: bool | None) -> None:
    for level, flag in ((config, top), (config["text_config"], inner)):
        level.pop("tie_word_embeddings", None)
        if flag is not None:
            level["tie_word_embeddings"] = flag


@pytest.mark.parametrize(("top", "inner"), [(True, None), (None, True), (True, True), (None, None)])
def test_a_tie_may_be_declared_on_one_level(
    source: Path, tmp_path: Path, top: bool | None, inner: bool | None
) -> None:
    draft = foreign(RULES[0], read_draft(source))
    _tie(draft.config, top, inner)
    assert judged(source, draft, tmp_path / "built").good


@pytest.mark.parametrize(("top", "inner"), [(False, None), (None, False), (True, False), (False, True)])
def test_a_tie_that_is_none_is_found(
    source: Path, tmp_path: Path, top: bool | None, inner: bool | None
) -> None:
    draft = foreign(RULES[0], read_draft(source))
    _tie(draft.config, top, inner)
    assert {p.kind for p in judged(source, draft, tmp_path / "built").problems} == {"config_tie"}


@pytest.mark.parametrize(("top", "inner"), [(False, None), (None, False), (True, False), (None, None)])
def test_packed_tables_are_untied_on_every_level_that_says_so(
    source: Path, tmp_path: Path, top: bool | None, inner: bool | None
) -> None:
    """A lattice recovered by others, in a nested config: one flag suffices, and none or two that differ do not."""
    build(source, tmp_path / "ours", FORMATS["q4w4a16emb4"])
    draft = read_draft(tmp_path / "ours")
    draft.config = nested(draft.config) | {"quantization_config": draft.config["quantization_config"]}
    _tie(draft.config, top, inner)
    report = judged(source, draft, tmp_path / "built")
    assert report.rules()["int4"]["rule"] == "lattice"
    said = {flag for flag in (top, inner) if flag is not None}
    assert {p.kind for p in report.problems} == (set() if said == {False} else {"config_tie"})


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.spoil.__name__)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_defect_in_another_s_build_is_found(
    rule: Rule, defect: Defect, source: Path, tmp_path: Path
) -> None:
    draft = foreign(rule, read_draft(source))
    place = defect.spoil(draft)
    problems = judged(source, draft, tmp_path / "built").problems
    assert any(p.kind in defect.kinds and place in p.where for p in problems), [str(p) for p in problems]


def test_what_others_may_do_otherwise(source: Path, tmp_path: Path) -> None:
    """A linear left bf16 and ignored, side files in their own words, codes for keys that no layer reads."""
    draft = foreign(RULES[0], read_draft(source))
    original = read_draft(source)
    for suffix in ("weight", "weight_scale"):
        draft.drop(f"{UP}.{suffix}")
    draft.put(f"{UP}.weight", original[f"{UP}.weight"])
    draft.config["quantization_config"]["ignore"].append(UP)
    draft.side["tokenizer.json"] += b"\n"
    unread = f"{PREFIX}layers.3.self_attn.k_proj"
    for suffix in ("weight", "weight_scale"):
        draft.put(f"{unread}.{suffix}", draft[f"{KEY}.{suffix}"])
    assert [str(problem) for problem in judged(source, draft, tmp_path / "built").problems] == []
