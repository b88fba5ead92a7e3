"""Other people's builds by rules that no decoder here reads: refused by name with exit status 2, never called faulty.

And the forms that are read although Google's export has none: an engine's names for tensors, a dense head untied,
activations paired otherwise.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantkit.cli import main
from quantkit.errors import UnknownRule
from quantkit.verify import Report, verify
from tests.meta.foreign_builds import RULES, TOWER, Rule, foreign
from tests.meta.nibbles import float32, pack, unpack
from tests.meta.spoil_tensors import NORM
from tests.meta.spoil_values import PREFIX, UP
from tests.meta.toy import Draft, Raw, bf16, make_toy, read_draft

BY_NAME = {rule.name: rule for rule in RULES}
ROWS, WIDTH = 96, 64  # of up_proj in the toy
ATTENTION = f"{PREFIX}layers.0.self_attn"
ENGINE_UP = UP.replace("model.language_model.", "model.")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy source."""
    return make_toy(tmp_path_factory.mktemp("unknown") / "source")


def made(rule: str, source: Path) -> Draft:
    """Another's build by a rule."""
    return foreign(BY_NAME[rule], read_draft(source))


def put(dtype: str, shape: tuple[int, ...], name: str) -> Callable[[Draft], None]:
    """Puts a tensor of ones there, in place of what was."""
    sizes = {"F32": 4, "BF16": 2, "I32": 4, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1}
    values = int(np.prod(shape))
    return lambda draft: draft.put(name, Raw(dtype, shape, bytearray(b"\1" * (sizes[dtype] * values))))


UNKNOWN = [  # rule of the miniature, what is put there, what the refusal must say
    ("int4-7-bf16", ("I32", (ROWS // 8, WIDTH // 32), f"{UP}.weight_zero_point"), "zero points"),
    ("int8-127-bf16", ("I8", (ROWS, 1), f"{UP}.weight_zero_point"), "zero points"),
    ("int4-7-bf16", ("I32", (WIDTH,), f"{UP}.weight_g_idx"), "another order"),
    ("int4-7-bf16", ("I32", (WIDTH // 8, ROWS), f"{UP}.qweight"), "GPTQ or AWQ"),
    ("int4-7-bf16", ("U8", (ROWS, WIDTH // 2), f"{UP}.weight_packed"), "codes packed into U8"),
    ("int4-7-bf16", ("I32", (ROWS, WIDTH // 4), f"{UP}.weight_packed"), "codes of 8 bits"),
    ("int4-7-bf16", ("I32", (ROWS, WIDTH // 16), f"{UP}.weight_packed"), "codes of 2 bits"),
    ("int4-7-bf16", ("I32", (ROWS, 7), f"{UP}.weight_packed"), "codes of 3 bits"),
    ("int4-7-bf16", ("F32", (1,), f"{UP}.weight_global_scale"), "a second scale"),
    ("int4-7-bf16", ("F8_E4M3", (ROWS, WIDTH // 32), f"{UP}.weight_scale"), "scales in F8_E4M3"),
    ("fp8-448-bf16", ("F32", (1,), f"{UP}.weight_scale"), "one scale for the whole tensor"),
    ("fp8-448-bf16", ("BF16", (), f"{UP}.weight_scale"), "one scale for the whole tensor"),
    ("fp8-448-bf16", ("F32", (1, 1), f"{UP}.weight_scale_inv"), "scales of blocks"),
    ("fp8-448-bf16", ("F32", (1,), f"{UP}.input_scale"), "static scales of activations"),
    ("fp8-448-bf16", ("F32", (1,), f"{ATTENTION}.k_scale"), "static scales of a KV cache"),
    ("fp8-448-bf16", ("F8_E8M0", (ROWS, 2), f"{UP}.weight_scale"), "scales in F8_E8M0"),
    ("int8-127-bf16", ("BF16", (ROWS, 2), f"{UP}.weight_scale"), "8-bit codes with scales of groups"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "tensor", "said"), UNKNOWN, ids=[f"{r}-{t[2][-20:]}-{s}" for r, t, s in UNKNOWN]
)
def test_a_rule_that_is_not_known_is_refused_by_name(
    rule: str,
    tensor: tuple[Any, ...],
    said: str,
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    draft = made(rule, source)
    put(*tensor)(draft)
    draft.save(tmp_path / "built")
    assert main(["verify", "--foreign", str(source), str(tmp_path / "built")]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert said in sentence
    assert tensor[2] in sentence
    assert "one scale a row" in sentence


def test_scales_beside_a_dense_linear_are_too_many(source: Path, tmp_path: Path) -> None:
    draft = made("fp8-448-bf16", source)
    draft.put(f"{UP}.weight", read_draft(source)[f"{UP}.weight"])
    put("F32", (ROWS, 2), f"{UP}.weight_scale")(draft)
    assert ("unexpected_tensor", f"{UP}.weight_scale") in problems(source, draft, tmp_path)


def test_scales_of_blocks_are_refused_by_name(tmp_path: Path) -> None:
    source = make_toy(tmp_path / "source", intermediate_size=160)
    draft = made("fp8-448-bf16", source)
    put("F32", (2, 1), f"{UP}.weight_scale")(draft)
    with pytest.raises(UnknownRule, match="blocks of 128 x 128"):
        judged(source, draft, tmp_path)


def judged(source: Path, draft: Draft, folder: Path) -> Report:
    """The verdict on a draft as another's build."""
    return verify(source, draft.save(folder / "built"), foreign=True)


def problems(source: Path, draft: Draft, folder: Path) -> list[tuple[str, str]]:
    """Kind and place of all that is wrong with a draft as another's build."""
    return [(problem.kind, problem.where) for problem in judged(source, draft, folder).problems]


def _compensated(draft: Draft) -> None:
    """Codes two levels from the nearest here and there, as those that make up for earlier errors are."""
    rng = np.random.default_rng(2)
    for name in [name for name in draft.names() if name.endswith((".weight_packed", ".weight"))]:
        raw = draft[name]
        if raw.dtype == "I32":
            levels = unpack(raw.view(np.int32))
            off = rng.choice([0, 2], size=levels.shape, p=[0.95, 0.05])
            raw.data = pack(levels - np.sign(levels) * off)
        elif raw.dtype == "I8":
            codes = raw.view(np.int8)
            codes -= (np.sign(codes) * rng.choice([0, 2], size=codes.shape, p=[0.95, 0.05])).astype(np.int8)


def _folded(source: Path, *, multiply: bool = True) -> Draft:
    """A source as AWQ leaves it: norms divided, and the columns of what they feed multiplied."""
    draft, rng = read_draft(source), np.random.default_rng(3)
    feeds = {"input_layernorm": "self_attn.[qkv]_proj", "pre_feedforward_layernorm": "mlp.(gate|up)_proj"}
    for norm, fed in feeds.items():
        by = np.exp(rng.normal(size=WIDTH) * 0.5)
        for name in draft.names():
            bits = draft[name].view(np.uint16)
            if name.endswith(f"{norm}.weight"):
                bits[:] = bf16(float32(bits) / by)
            elif multiply and re.search(fed, name):
                bits[:] = bf16(float32(bits) * by)
    return draft


@pytest.mark.parametrize("rule", ["int4-7.5-bf16", "int8-127-bf16", "fp8-448-bf16"])
def test_scales_folded_into_norms_are_refused_by_name(rule: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownRule, match=rf"rule of {NORM}.*columns behind it.*AWQ"):
        judged(source, foreign(BY_NAME[rule], _folded(source)), tmp_path)


def test_norms_that_nothing_makes_up_for_are_a_fault(source: Path, tmp_path: Path) -> None:
    draft = foreign(BY_NAME["fp8-448-bf16"], _folded(source, multiply=False))
    found = problems(source, draft, tmp_path)
    assert {kind for kind, _ in found} == {"copied_differs"}
    assert len(found) == 4 * 2  # layers, norms in each


def test_a_norm_of_another_shape_is_a_fault(source: Path, tmp_path: Path) -> None:
    draft = foreign(BY_NAME["fp8-448-bf16"], _folded(source))
    for name in draft.names():
        if name.endswith("layernorm.weight"):
            draft[name].shape = (2, WIDTH // 2)
    assert {kind for kind, _ in problems(source, draft, tmp_path)} >= {"copied_differs", "wrong_shape"}


@pytest.mark.parametrize(
    ("rule", "known"), [("int4-7.5-bf16", "absmax / 8"), ("int8-127-fp32", "absmax / 128")]
)
def test_codes_that_are_nowhere_the_nearest_are_another_rule(
    rule: str, known: str, source: Path, tmp_path: Path
) -> None:
    draft = made(rule, source)
    _compensated(draft)
    with pytest.raises(UnknownRule, match=rf"errors beyond every known rule in \d+ of \d+ modules.*{known}"):
        judged(source, draft, tmp_path)


def test_a_further_fault_is_named_where_a_rule_is_not_known(source: Path, tmp_path: Path) -> None:
    draft = made("int8-127-fp32", source)
    _compensated(draft)
    draft[NORM].data[3] ^= 1
    assert ("copied_differs", NORM) in problems(source, draft, tmp_path)


def engine_names(draft: Draft) -> Draft:
    """As an export of the text model alone has it: an engine's names, a flat config, no tower."""
    draft.drop(TOWER)
    for tensors in draft.files.values():
        renamed = {name.replace(PREFIX, "model."): raw for name, raw in tensors.items()}
        tensors.clear()
        tensors.update(renamed)
    draft.config = draft.config["text_config"] | {"quantization_config": draft.config["quantization_config"]}
    return draft


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_an_engine_s_names_are_read(rule: Rule, source: Path, tmp_path: Path) -> None:
    assert problems(source, engine_names(made(rule.name, source)), tmp_path) == []


def test_a_fault_is_named_as_the_file_names_its_tensor(source: Path, tmp_path: Path) -> None:
    draft = engine_names(made("fp8-448-bf16", source))
    draft[f"{ENGINE_UP}.weight"].data[7] = 0x7F
    norm = NORM.replace(PREFIX, "model.")
    draft[norm].data[3] ^= 1
    found = problems(source, draft, tmp_path)
    assert ("nan_code", ENGINE_UP) in found
    assert ("copied_differs", norm) in found
    assert not any("language_model" in place for _, place in found)


def test_two_names_for_one_tensor_are_not_taken_for_one(source: Path, tmp_path: Path) -> None:
    draft = made("fp8-448-bf16", source)
    draft.put(NORM.replace(PREFIX, "model."), draft[NORM])
    assert ("unexpected_tensor", NORM.replace(PREFIX, "model.")) in problems(source, draft, tmp_path)


def untied(draft: Draft) -> Draft:
    """The embedding written out as a head beside it, and the config says so."""
    draft.put("lm_head.weight", draft[f"{PREFIX}embed_tokens.weight"])
    draft.config["text_config"]["tie_word_embeddings"] = draft.config["tie_word_embeddings"] = False
    return draft


@pytest.mark.parametrize("rule", ["int4-7.5-bf16", "fp8-448-bf16"])
def test_a_dense_head_may_be_untied(rule: str, source: Path, tmp_path: Path) -> None:
    assert problems(source, untied(made(rule, source)), tmp_path) == []


def test_an_untied_head_is_the_embedding(source: Path, tmp_path: Path) -> None:
    draft = untied(made("fp8-448-bf16", source))
    head = draft.drop("lm_head.weight")
    draft.put("lm_head.weight", Raw(head.dtype, head.shape, bytearray(head.data)))
    draft["lm_head.weight"].data[-1] ^= 1
    assert problems(source, draft, tmp_path) == [("copied_differs", "lm_head.weight")]


def test_a_head_that_is_stored_is_not_tied(source: Path, tmp_path: Path) -> None:
    draft = untied(made("fp8-448-bf16", source))
    draft.config["text_config"]["tie_word_embeddings"] = True
    assert problems(source, draft, tmp_path) == [("config_tie", "text_config.tie_word_embeddings")]


def test_a_head_of_which_a_part_is_there_is_incomplete(source: Path, tmp_path: Path) -> None:
    draft = untied(made("fp8-448-bf16", source))
    draft.drop("lm_head.weight")
    put("F32", (96, 1), "lm_head.weight_scale")(draft)
    assert ("missing_tensor", "lm_head.weight") in problems(source, draft, tmp_path)


@pytest.mark.parametrize(
    "activations", [None, {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}]
)
@pytest.mark.parametrize("rule", ["int4-7.5-bf16", "int8-127-bf16", "fp8-448-bf16"])
def test_activations_may_be_paired_otherwise(
    rule: str, activations: Any, source: Path, tmp_path: Path
) -> None:
    draft = made(rule, source)
    draft.config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = activations
    assert problems(source, draft, tmp_path) == []


@pytest.mark.parametrize(
    ("order", "good"), [("weight", True), ("static", True), ("group", False), ("other", False)]
)
def test_an_order_that_moves_no_column_is_none(order: str, good: bool, source: Path, tmp_path: Path) -> None:
    draft = made("int4-7.5-bf16", source)
    draft.config["quantization_config"]["config_groups"]["group_0"]["weights"]["actorder"] = order
    assert (problems(source, draft, tmp_path) == []) is good


def test_the_section_may_stand_in_the_nested_config(source: Path, tmp_path: Path) -> None:
    draft = made("int4-7.5-bf16", source)
    draft.config["text_config"]["quantization_config"] = draft.config.pop("quantization_config")
    assert problems(source, draft, tmp_path) == []
    draft.config["text_config"]["quantization_config"]["ignore"].append(UP)
    assert ("config_ignored_but_quantized", UP) in problems(source, draft, tmp_path)
