"""Miniatures of wrong configs: ties, groups, targets, ignore lists and fields, one named defect each.

Each works on a draft before it is saved. `faults_checkpoint` lists them; nothing else imports this file.
"""

from typing import Any

from tests.meta.spoil_values import TABLE, UP
from tests.meta.toy import Draft


def tied_top(draft: Draft, source: Draft) -> str:
    """Tied at the top level although the embedding is packed."""
    draft.config["tie_word_embeddings"] = True
    return "tie_word_embeddings"


def tied_nested(draft: Draft, source: Draft) -> str:
    """Tied in a nested text config only."""
    draft.config["text_config"] = {"tie_word_embeddings": True}
    return "text_config.tie_word_embeddings"


def untied(draft: Draft, source: Draft) -> str:
    """Untied although no head is stored."""
    draft.config["tie_word_embeddings"] = False
    return "tie_word_embeddings"


def _groups(draft: Draft) -> dict[str, Any]:
    groups: dict[str, Any] = draft.config["quantization_config"]["config_groups"]
    return groups


def empty_group(draft: Draft, source: Draft) -> str:
    """A config group for modules that do not exist."""
    groups = _groups(draft)
    groups["group_9"] = dict(next(iter(groups.values()))) | {"targets": ["re:.*visual.*"]}
    return "group_9"


def greedy_group(draft: Draft, source: Draft) -> str:
    """A pattern whose end is not anchored, so that embed_tokens hits the per-layer table as well."""
    groups = _groups(draft)
    packed = f"{TABLE}.weight_packed" in draft
    own = "re:.*embed_tokens" if not packed else "re:.*"
    next(iter(groups.values()))["targets"] = [
        "re:.*_proj$",
        "re:.*per_layer_input_gate$",
        "re:.*projection$",
        own,
    ]
    return "embed_tokens"


def unmatched_module(draft: Draft, source: Draft) -> str:
    """No pattern matches up_proj, or the packed table, any more."""
    module = UP if f"{UP}.weight_scale" in draft else TABLE
    for group in _groups(draft).values():
        group["targets"] = [
            t for t in group["targets"] if module.rpartition(".")[2] not in t.replace("\\", "")
        ]
    return module


def checkpoint_names_only(draft: Draft, source: Draft) -> str:
    """Patterns that know the checkpoint's names and not the engine's."""
    for group in _groups(draft).values():
        group["targets"] = [t.replace("re:.*", "re:.*language_model.*", 1) for t in group["targets"]]
    return UP if f"{UP}.weight_scale" in draft else TABLE


def other_arguments(draft: Draft, source: Draft) -> str:
    """A group that gives the weights another number of bits."""
    group = next(iter(_groups(draft).values()))
    group["weights"]["num_bits"] = 6
    return "weights"


def ignores_nothing(draft: Draft, source: Draft) -> str:
    """An entry of the ignore list that names nothing."""
    draft.config["quantization_config"]["ignore"].append("model.no_such_module")
    return "ignore"


def head_not_ignored(draft: Draft, source: Draft) -> str:
    """The tied head is not on the ignore list."""
    draft.config["quantization_config"]["ignore"].remove("lm_head")
    return "lm_head"


def endless_pattern(draft: Draft, source: Draft) -> str:
    """A pattern that backtracks for ever."""
    draft.config["quantization_config"]["ignore"].append("re:(a+)+$")
    return "quantization_config"


def no_quantization_config(draft: Draft, source: Draft) -> str:
    """Nothing tells the engine that the weights are codes."""
    del draft.config["quantization_config"]
    return "quantization_config"


def needless_quantization_config(draft: Draft, source: Draft) -> str:
    """A quantization_config beside weights that are all bf16."""
    draft.config["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": {}}
    return "quantization_config"


def changed_field(draft: Draft, source: Draft) -> str:
    """Another window than the source's."""
    draft.config["sliding_window"] = 256
    return "sliding_window"
