"""The rest of config.json: the tie, and every field that must be the source's own.

Pure: two configs and the modules as found in, findings out. Only `verify` imports it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from quantkit.as_found import EMBEDDING, LM_HEAD, AsFound
from quantkit.findings import Finding, each

TIE = "tie_word_embeddings"
NESTED = "text_config"
TEXT_MODEL = {"model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"]}
# Fields that a text-only copy takes from the multimodal config's top level, where it has them.
TOP_LEVEL = ("dtype", "torch_dtype", "transformers_version", "eos_token_id", "bos_token_id", "pad_token_id")
JUDGED_ELSEWHERE = frozenset({TIE, NESTED, "quantization_config", *TEXT_MODEL})


def tie_flags(config: Mapping[str, Any], foreign: bool) -> dict[str, object]:
    """Where the tie is declared, and as what.

    A build of ours says so in so many words. Other people's often set only one of two flags: there, a level
    that says nothing follows the one that does, and where none does, Gemma's config class ties.
    """
    levels = {TIE: config}
    if isinstance(config.get(NESTED), Mapping):
        levels[f"{NESTED}.{TIE}"] = config[NESTED]
    said = {where: level[TIE] for where, level in levels.items() if TIE in level}
    if foreign:
        return said or {TIE: True}
    return {where: level.get(TIE) for where, level in levels.items()}


def judge_tie(config: Mapping[str, Any], found: AsFound, foreign: bool) -> Iterator[Finding]:
    """A packed embedding cannot be tied: every level must say so; a dense one is tied on every level."""
    wanted = all(module.name != LM_HEAD for module in found.modules)
    for where, flag in tie_flags(config, foreign).items():
        if flag is not wanted:
            packed = f"{EMBEDDING} is packed" if found.format.unties_lm_head else f"{LM_HEAD} is stored"
            stored = packed if not wanted else f"no {LM_HEAD} is stored"
            yield Finding("config_tie", where, repr(flag)[:80], f"{str(wanted).lower()}, since {stored}")


def expected_fields(source: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a text-only copy: the nested text config flattened, a few of the top level over it."""
    nested = source.get(NESTED)
    if not isinstance(nested, Mapping):
        fields = dict(source)
    else:
        fields = {**nested, **{key: source[key] for key in TOP_LEVEL if key in source}}
    return {key: value for key, value in fields.items() if key not in JUDGED_ELSEWHERE} | TEXT_MODEL


def judge_fields(config: Mapping[str, Any], source: Mapping[str, Any]) -> Iterator[Finding]:
    """Every other field must be the source's, none absent and none new."""
    wanted = expected_fields(source)
    for key in sorted(wanted):
        if key not in config:
            yield Finding("config_changed", key, "nothing", repr(wanted[key])[:80])
        elif not _identical(config[key], wanted[key]):
            yield Finding("config_changed", key, repr(config[key])[:80], repr(wanted[key])[:80])
    new = sorted(config.keys() - wanted.keys() - JUDGED_ELSEWHERE)
    yield from each("config_changed", [key[:80] for key in new], "no such field")
    if NESTED in config:
        yield Finding("config_changed", NESTED, "a nested text config", "a text-only config")


def _identical(one: object, other: object) -> bool:
    """Equal in JSON, where 1, 1.0 and true are three things."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_identical(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_identical, one, other))
    return one == other
