"""Whether config.json tells an engine the truth about the tensors beside it.

Pure: a config, the source's config and the modules as found; no file is read. Group by group and module by
module, under the checkpoint's names and the engine's. Only `verify` imports it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quantkit.as_found import CHECKPOINT_PREFIX, ENGINE_PREFIX, LM_HEAD, AsFound, Module
from quantkit.errors import BadHeader
from quantkit.findings import Finding, each
from quantkit.formats import Scheme
from quantkit.model import Role
from quantkit.patterns import Budget, Patterns, parse_patterns

SECTION = "quantization_config"
NESTED = "text_config"
CLASS_OF_ROLE = {Role.LINEAR: "Linear", Role.TABLE: "VocabParallelEmbedding"}
HEAD_CLASS = "ParallelLMHead"
SECTION_KEYS = frozenset(
    {"quant_method", "format", "quantization_status", "config_groups", "ignore", "kv_cache_scheme"}
)
MAX_GROUP_NAME = 100
MAX_GROUPS = 64  # one a scheme, or a few; each is tried on every module
GROUP_KEYS = frozenset({"targets", "weights", "input_activations", "output_activations", "format"})
CHANGES_THE_MODEL = ("sparsity_config", "transform_config")  # engines act on these, and refuse some
REQUIRED = {"quant_method": "compressed-tensors", "quantization_status": "compressed"}
# Defaults of the argument records; a key that is absent means this.
ARGUMENT_DEFAULTS = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False, "group_size": None}
ARGUMENT_KEYS = frozenset({*ARGUMENT_DEFAULTS, "strategy"})
NEUTRAL_ARGUMENTS = frozenset(
    {"actorder", "block_structure", "observer", "observer_kwargs", "scale_dtype", "zp_dtype"}
)
NOTHING: tuple[object, ...] = (None, {}, False)
SAME_ORDER = (*NOTHING, "weight", "static")  # orders of activations that leave columns where they were


def names_of(module: str) -> tuple[str, ...]:
    """What checkpoint and engine call a module."""
    if module.startswith(CHECKPOINT_PREFIX):
        return module, ENGINE_PREFIX + module.removeprefix(CHECKPOINT_PREFIX)
    return (module,)


def _arguments(scheme: Scheme, group: int | None) -> dict[str, Any]:
    strategy = {"strategy": "group", "group_size": group} if group else {}
    base = {"num_bits": scheme.bits, "type": scheme.arg_type, "strategy": "channel"}
    return {**ARGUMENT_DEFAULTS, **base, **strategy}


def _activations(scheme: Scheme) -> dict[str, Any] | None:
    if not scheme.activations:
        return None
    wanted = {"num_bits": scheme.bits, "type": scheme.arg_type, "strategy": "token", "dynamic": True}
    return {**ARGUMENT_DEFAULTS, **wanted}


def _same_arguments(found: object, wanted: Mapping[str, Any] | None) -> bool:
    if found is None or wanted is None:
        return found is None and wanted is None
    if not isinstance(found, Mapping) or set(found) - ARGUMENT_KEYS - NEUTRAL_ARGUMENTS:
        return False
    if any(found.get(key) not in NOTHING for key in NEUTRAL_ARGUMENTS - {"observer", "actorder"}):
        return False
    if found.get("actorder") not in SAME_ORDER:
        return False
    full = {**ARGUMENT_DEFAULTS, **found}
    return all(type(full.get(k)) is type(v) and full.get(k) == v for k, v in wanted.items())


def _differing_fields(
    group: Mapping[str, Any], scheme: Scheme, size: int | None, layout: object, foreign: bool
) -> Iterator[tuple[str, str, str]]:
    """(key, got, expected) of a group that does not describe its modules' scheme; `size` values share a scale."""
    wanted = _arguments(scheme, size)
    if not _same_arguments(group.get("weights"), wanted):
        yield "weights", _short(group.get("weights")), _short(wanted)
    if not (
        _same_arguments(group.get("input_activations"), _activations(scheme))
        or (foreign and _leaves_weights_alone(group.get("input_activations")))
    ):
        yield "input_activations", _short(group.get("input_activations")), _short(_activations(scheme))
    if group.get("output_activations") is not None:
        yield "output_activations", _short(group.get("output_activations")), "null"
    own = group.get("format", layout)
    if own != scheme.compressor:
        yield "format", _short(own), scheme.compressor


def _leaves_weights_alone(activations: object) -> bool:
    """Whether activations stay as they are or are rounded as they come: others pair them as they like."""
    return activations is None or (isinstance(activations, Mapping) and activations.get("dynamic") is True)


def _short(value: object) -> str:
    return repr(value)[:200]


def _matches(module: Module, patterns: Patterns) -> frozenset[str]:
    by_name = patterns.matching(names_of(module.name))
    kind = HEAD_CLASS if module.name == LM_HEAD else CLASS_OF_ROLE[module.source.role]
    return by_name | patterns.classes(kind)


def _targets(groups: Mapping[str, Any], budget: Budget) -> dict[str, Patterns]:
    found = {}
    for name, group in groups.items():
        targets = group.get("targets") if isinstance(group, Mapping) else None
        if not isinstance(targets, list) or not targets:
            raise BadHeader(f"targets of {name}", expected="a list of patterns")
        found[name] = parse_patterns(targets, f"{name[:80]}.targets", budget)
    return found


def _declared_size(group: Mapping[str, Any]) -> int | None:
    weights = group.get("weights")
    size = weights.get("group_size") if isinstance(weights, Mapping) else None
    return size if isinstance(size, int) else None


def _judge_groups(
    groups: Mapping[str, Any],
    targets: Mapping[str, Patterns],
    modules: Sequence[Module],
    ignored: frozenset[str],
    layout: object,
    foreign: bool,
) -> Iterator[Finding]:
    for name, group in groups.items():
        hit = [m for m in modules if m.name not in ignored and _matches(m, targets[name])]
        quantized = [m for m in hit if m.scheme is not None]
        if not quantized:
            yield Finding(
                "config_group_empty", f"{SECTION}.config_groups.{name}", _short(group.get("targets"))
            )
            continue
        scheme = quantized[0].scheme
        assert scheme is not None
        size = _declared_size(group) if foreign else scheme.group_size
        yield from (
            Finding("config_group_wrong", m.name, f"matched by {name}")
            for m in hit
            if m.scheme != scheme or (foreign and m.group != (size or m.source.shape[1]))
        )
        for key, got, expected in _differing_fields(group, scheme, size, layout, foreign):
            yield Finding("config_field", f"{SECTION}.config_groups.{name}.{key}", got, expected)
        used = frozenset().union(*(_matches(m, targets[name]) for m in quantized))
        unused = [
            f"{SECTION}.config_groups.{name} target {_short(target)}"
            for target in group["targets"]
            if target not in used
        ]
        yield from each("config_group_empty", unused)


def _judge_modules(
    modules: Sequence[Module], targets: Mapping[str, Patterns], ignore: Patterns
) -> Iterator[Finding]:
    for module in modules:
        ignored = ignore.matching(names_of(module.name))
        groups = [name for name, patterns in targets.items() if _matches(module, patterns)]
        if module.scheme is None:
            if module.source.role is Role.LINEAR and not _ignored_for_engines(module, ignore):
                yield Finding("config_dense_not_ignored", module.name)
        elif ignored:
            yield Finding("config_ignored_but_quantized", module.name, _short(sorted(ignored)[0]))
        elif not groups:
            yield Finding("config_module_unmatched", module.name)
        elif len(groups) > 1:
            yield Finding(
                "config_group_wrong", module.name, f"matched by {' and '.join(groups)}", "one group"
            )
        else:
            yield from _judge_names(module, targets[groups[0]])


def _values_from_keys(modules: Sequence[Module]) -> dict[str, Module]:
    """v_proj names that an engine makes up, by their k_proj: it loads the keys as values where none are stored.

    It fuses q, k and v, and refuses a set of which only a part is ignored.
    """
    names = {module.name for module in modules}
    keys = (module for module in modules if module.name.endswith(".k_proj"))
    made_up = {key.name.removesuffix("k_proj") + "v_proj": key for key in keys}
    return {name: key for name, key in made_up.items() if name not in names}


def _judge_values(modules: Sequence[Module], ignore: Patterns) -> Iterator[Finding]:
    for name, key in _values_from_keys(modules).items():
        ignored = bool(ignore.matching(names_of(name)))
        if key.scheme is None and not ignored:
            yield Finding("config_dense_not_ignored", name, f"only {key.name} is, and the engine fuses both")
        elif key.scheme is not None and ignored:
            yield Finding("config_ignored_but_quantized", name)


def _ignored_for_engines(module: Module, ignore: Patterns) -> bool:
    """Whether an entry names it exactly, which engines translate, or a pattern knows the engine's name."""
    names = names_of(module.name)
    return bool(ignore.names & set(names)) or bool(ignore.matching(names[-1:]))


def _judge_names(module: Module, patterns: Patterns) -> Iterator[Finding]:
    """A pattern must know a module under the engine's name too."""
    unknown = [name for name in names_of(module.name) if not patterns.matching([name])]
    if not patterns.names and unknown:
        yield Finding("config_module_unmatched", module.name, f"no pattern matches {unknown[0]}")


def _judge_ignore(modules: Sequence[Module], ignore: Patterns, foreign: bool) -> Iterator[Finding]:
    """Each entry must name something that is left dense; the tied head is, though it has no tensor.

    Others' builds carry towers that no inventory of a text model lists, and may leave the tied head to the
    engine, which finds no group for it.
    """
    if foreign:
        return
    dense = [names_of(module.name) for module in modules if module.scheme is None]
    if not any(module.name == LM_HEAD for module in modules):
        dense.append((LM_HEAD,))
        if not ignore.matching([LM_HEAD]):
            yield Finding("config_dense_not_ignored", LM_HEAD)
    dense += [names_of(name) for name, key in _values_from_keys(modules).items() if key.scheme is None]
    used = frozenset().union(*(ignore.matching(names) for names in dense))
    entries = {*ignore.names, *(text for text, _ in ignore.expressions)}
    yield from each(
        "config_ignore_empty", [f"{SECTION}.ignore {_short(entry)}" for entry in sorted(entries - used)]
    )


def _unknown_keys(section: Mapping[str, Any], groups: Mapping[str, Any], foreign: bool) -> Iterator[Finding]:
    """Keys that a build of ours has no use for; of others' only those that change what is computed."""
    unknown = set(section) - SECTION_KEYS
    if foreign:
        unknown = {key for key in unknown if key in CHANGES_THE_MODEL and section[key]}
    yield from each("config_field", [f"{SECTION}.{key[:80]}" for key in sorted(unknown)], "no such key")
    for name, group in groups.items():
        extra = sorted(set(group) - GROUP_KEYS) if not foreign else []
        places = [f"{SECTION}.config_groups.{name}.{key[:80]}" for key in extra]
        yield from each("config_field", places, "no such key")


def _section_fields(section: Mapping[str, Any], found: AsFound, foreign: bool) -> Iterator[Finding]:
    for key, wanted in REQUIRED.items():
        if section.get(key) != wanted:
            yield Finding("config_field", f"{SECTION}.{key}", _short(section.get(key)), wanted)
    if section.get("kv_cache_scheme") is not None:
        yield Finding(
            "config_field", f"{SECTION}.kv_cache_scheme", _short(section["kv_cache_scheme"]), "null"
        )
    layouts = sorted({module.scheme.compressor for module in found.modules if module.scheme})
    wanted = layouts[0] if len(layouts) == 1 else "mixed-precision"
    if section.get("format") != wanted and not (foreign and len(layouts) > 1):
        yield Finding("config_field", f"{SECTION}.format", _short(section.get("format")), wanted)


def judge_quantization(config: Mapping[str, Any], found: AsFound, foreign: bool) -> list[Finding]:
    """Whether groups and ignore list say exactly what is stored."""
    section = config.get(SECTION)
    if section is None and foreign and isinstance(config.get(NESTED), Mapping):
        section = config[NESTED].get(SECTION)
    quantized = any(module.scheme is not None for module in found.modules)
    if section is None or not quantized:
        fits = (section is None) == (not quantized)
        return [] if fits else [Finding("config_not_quantized", SECTION, "nothing" if quantized else "one")]
    groups = section.get("config_groups") if isinstance(section, Mapping) else None
    ignore = section.get("ignore", []) if isinstance(section, Mapping) else None
    if not isinstance(groups, Mapping) or not 1 <= len(groups) <= MAX_GROUPS or not isinstance(ignore, list):
        return [Finding("config_field", SECTION, _short(section), "config_groups and an ignore list")]
    if max(map(len, groups)) > MAX_GROUP_NAME:
        return [Finding("config_field", f"{SECTION}.config_groups", expected="groups of short names")]
    try:
        budget = Budget(sum(len(names_of(module.name)) for module in found.modules))
        targets, ignored = _targets(groups, budget), parse_patterns(ignore, "ignore", budget)
    except BadHeader as error:
        return [Finding("config_pattern", SECTION, str(error))]
    skipped = frozenset(m.name for m in found.modules if ignored.matching(names_of(m.name)))
    return [
        *_unknown_keys(section, groups, foreign),
        *_section_fields(section, found, foreign),
        *_judge_groups(groups, targets, found.modules, skipped, section.get("format"), foreign),
        *_judge_modules(found.modules, targets, ignored),
        *_judge_values(found.modules, ignored),
        *_judge_ignore(found.modules, ignored, foreign),
    ]
