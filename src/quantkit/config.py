"""config.json of a build, as vLLM 0.32 and 0.33 read it.

Pure: a plan and the source's config in, a dictionary out. It writes compressed-tensors' keys and no others
beside them; where a build came from lies in another file. `verify` must not import it.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from quantkit.errors import NotEligible
from quantkit.formats import Scheme
from quantkit.model import Role
from quantkit.plan import LM_HEAD, Plan

TEXT_ARCHITECTURES = ["Gemma4ForCausalLM"]


def _text_only(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text half at the top level; what only the towers need is dropped."""
    nested = config.get("text_config")
    text = dict(nested if nested is not None else config)
    for key in (
        "dtype",
        "torch_dtype",
        "transformers_version",
        "eos_token_id",
        "bos_token_id",
        "pad_token_id",
    ):
        if key in config:
            text[key] = config[key]
    text.pop("quantization_config", None)
    text.pop("text_config", None)
    return text | {"architectures": TEXT_ARCHITECTURES, "model_type": "gemma4_text"}


def _weights(scheme: Scheme) -> dict[str, Any]:
    arguments = {"num_bits": scheme.bits, "type": scheme.arg_type, "symmetric": True, "dynamic": False}
    if scheme.group_size:
        return arguments | {"strategy": "group", "group_size": scheme.group_size}
    return arguments | {"strategy": "channel"}


def _activations(scheme: Scheme) -> dict[str, Any] | None:
    if not scheme.activations:
        return None
    arguments = {"num_bits": scheme.bits, "type": scheme.arg_type, "symmetric": True}
    return arguments | {"strategy": "token", "dynamic": True}


def _target(plan: Plan, kind: str) -> str:
    """A pattern for all modules of a kind, under the checkpoint's names and the engine's alike."""
    layered = any(
        re.search(rf"\.layers\.\d+\.{re.escape(kind)}$", decision.tensor.module)
        for decision in plan.decisions
    )
    stem = r"layers\.\d+\." if layered else ""
    return f"re:.*{stem}{re.escape(kind)}$"


def _targets(plan: Plan, scheme: Scheme) -> list[str]:
    kinds = dict.fromkeys(
        LM_HEAD if module == LM_HEAD else decision.tensor.kind
        for decision in plan.decisions
        if decision.scheme == scheme
        for module in decision.modules
    )
    return [_target(plan, kind) for kind in kinds]


def _group(plan: Plan, scheme: Scheme) -> dict[str, Any]:
    return {
        "targets": _targets(plan, scheme),
        "weights": _weights(scheme),
        "input_activations": _activations(scheme),
        "output_activations": None,
        "format": scheme.compressor,
    }


def _ignore_entry(module: str, modules: Mapping[str, Any]) -> str:
    """The module's name; where an engine loads k as v too, a pattern that covers the v it will ask for."""
    stem, _, last = module.rpartition(".")
    if last == "k_proj" and f"{stem}.v_proj" not in modules:
        layer = stem.partition("layers.")[2]
        return rf"re:.*layers\.{re.escape(layer)}\.[kv]_proj$"
    return module


def _ignored(plan: Plan) -> list[str]:
    schemes = plan.schemes
    dense = [
        _ignore_entry(decision.tensor.module, schemes)
        for decision in plan.decisions
        if decision.tensor.role is Role.LINEAR and decision.scheme is None
    ]
    return dense if plan.format.unties_lm_head else [*dense, LM_HEAD]


def _is_ignored(module: str, ignored: list[str]) -> bool:
    return any(
        re.match(entry[3:], module) if entry.startswith("re:") else entry == module for entry in ignored
    )


def _check_targets(
    plan: Plan, groups: Iterable[tuple[Scheme, Mapping[str, Any]]], ignored: list[str]
) -> None:
    """Each module must be matched by the group of its own scheme and by no other."""
    schemes = plan.schemes
    for scheme, group in groups:
        for target in group["targets"]:
            pattern = re.compile(target.removeprefix("re:"))
            matched = {module for module in schemes if pattern.match(module)}
            strays = sorted(m for m in matched if schemes[m] != scheme and not _is_ignored(m, ignored))
            if strays or not any(schemes[module] == scheme for module in matched):
                raise NotEligible(
                    f"target {target}", got=strays or "no module", expected=f"{scheme.name} modules"
                )


def quantization_config(plan: Plan) -> dict[str, Any] | None:
    """``quantization_config`` of a build; None where nothing is quantized."""
    schemes = [scheme for scheme in plan.format.schemes if any(d.scheme == scheme for d in plan.decisions)]
    if not schemes:
        return None
    groups = [_group(plan, scheme) for scheme in schemes]
    ignored = _ignored(plan)
    _check_targets(plan, zip(schemes, groups, strict=True), ignored)
    layouts = {scheme.compressor for scheme in schemes}
    return {
        "quant_method": "compressed-tensors",
        "format": layouts.pop() if len(layouts) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": {f"group_{number}": group for number, group in enumerate(groups)},
        "ignore": ignored,
        "kv_cache_scheme": None,
    }


def build_config(plan: Plan, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """The whole ``config.json``: text-only, tied or untied as the plan says."""
    config = _text_only(source_config)
    config["tie_word_embeddings"] = not plan.format.unties_lm_head
    quantization = quantization_config(plan)
    return config if quantization is None else config | {"quantization_config": quantization}
