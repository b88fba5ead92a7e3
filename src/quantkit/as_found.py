"""What a build's headers hold, module by module, and which build of the table that makes it.

From entries and the source's inventory alone; no weight and no config of the build is read here, so that
config and tensors can be held against each other later. `verify` and its parts import it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from quantkit.findings import Finding, each
from quantkit.formats import FORMATS, FP8, FP8FNUZ, INT4, INT8, Format, Scheme
from quantkit.header import Entry
from quantkit.model import Inventory, Role, Tensor

LM_HEAD = "lm_head"
EMBEDDING = "embed_tokens"
ENGINE_PREFIX, CHECKPOINT_PREFIX = "model.", "model.language_model."
ROW_SCHEMES = {scheme.code_dtype: scheme for scheme in (FP8, FP8FNUZ, INT8)}
SCALE_DTYPES = ("BF16", "F16", "F32")


@dataclass(frozen=True)
class Module:
    """One linear, table or head as it lies in the build.

    Attributes
    ----------
    name
        Module name in the build.
    source
        The tensor of the source that it stores.
    scheme
        None where it is dense, or absent.
    present
        False where no tensor of it is there, or codes beside a scale are of a dtype that says nothing.
    group
        Values of a row that share a scale, by the shape of the scales; a whole row where that says nothing.
    """

    name: str
    source: Tensor
    scheme: Scheme | None
    present: bool
    group: int

    def tensor(self, suffix: str) -> str:
        """Name of one of its tensors."""
        return f"{self.name}.{suffix}"


def _scheme(name: str, entries: Mapping[str, Entry]) -> tuple[Scheme | None, bool]:
    dense = entries.get(f"{name}.weight")
    if dense is not None and dense.dtype in ROW_SCHEMES:
        return ROW_SCHEMES[dense.dtype], True
    if f"{name}.weight_packed" in entries:
        return INT4, True
    as_its_like = dense is not None and dense.dtype != "BF16" and f"{name}.weight_scale" in entries
    return None, dense is not None and not as_its_like


def _module(name: str, source: Tensor, entries: Mapping[str, Entry]) -> Module:
    scheme, present = _scheme(name, entries)
    scales = entries.get(f"{name}.weight_scale")
    groups = scales.shape[1] if scales is not None and len(scales.shape) == 2 else 1
    return Module(name, source, scheme, present, source.shape[1] // max(1, groups))


def _absent_as_majority(modules: list[Module], scheme: Scheme | None) -> list[Module]:
    return [module if module.present else replace(module, scheme=scheme) for module in modules]


def _most_common(modules: list[Module]) -> Scheme | None:
    counts = Counter(module.scheme for module in modules if module.present)
    counts.pop(None, None)
    return counts.most_common(1)[0][0] if counts else None


def has_engine_names(entries: Mapping[str, Entry]) -> bool:
    """Whether tensors are called as an engine calls them, as in exports of the text model alone."""
    layers = any(name.startswith(f"{ENGINE_PREFIX}layers.") for name in entries)
    return layers and not any(name.startswith(CHECKPOINT_PREFIX) for name in entries)


def under_source_names(implied: Inventory, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Entries that have an engine's names under those of the source; each keeps its own inside."""
    text = (name for name in entries if name.startswith(ENGINE_PREFIX) and not implied.drops(name))
    longer = {name: CHECKPOINT_PREFIX + name.removeprefix(ENGINE_PREFIX) for name in text}
    return {longer.get(name, name): entry for name, entry in entries.items()}


@dataclass(frozen=True)
class AsFound:
    """All modules of a build, and the build they make.

    Attributes
    ----------
    format
        The record of the table, or one made up where no record has this combination (then `known` is false).
    modules
        Linears, tables and the head where the build unties it.
    """

    format: Format
    known: bool
    modules: tuple[Module, ...]

    def of(self, role: Role) -> tuple[Module, ...]:
        """Modules of one role; the head counts as a table."""
        return tuple(module for module in self.modules if module.source.role is role)


def as_found(implied: Inventory, entries: Mapping[str, Entry], foreign: bool) -> AsFound:
    """Recognize the modules and the build from the headers; others may untie a head that is dense."""
    linears = [_module(t.module, t, entries) for t in implied.of(Role.LINEAR)]
    tables = [_module(t.module, t, entries) for t in implied.of(Role.TABLE)]
    scheme = _most_common(linears)
    packed = frozenset(module.source.kind for module in tables if module.scheme is not None)
    there = frozenset(module.source.kind for module in tables)  # not every model has per-layer embeddings
    record = next((f for f in FORMATS.values() if f.linears == scheme and f.tables & there == packed), None)
    found = record or Format("unknown", scheme, packed)
    modules = [*_absent_as_majority(linears, scheme), *tables]
    others_head = foreign and any(name.startswith(f"{LM_HEAD}.") for name in entries)
    if found.unties_lm_head or others_head:
        embedding = next(t for t in implied.of(Role.TABLE) if t.kind == EMBEDDING)
        head = _module(LM_HEAD, embedding, entries)
        modules.append(head if head.scheme is not None or others_head else replace(head, scheme=INT4))
    return AsFound(found, record is not None, tuple(modules))


def expected_tensors(module: Module) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name -> dtype tag and shape of every tensor that stores a module."""
    rows, width = module.source.shape
    scheme = module.scheme
    if scheme is None:
        return {module.tensor("weight"): ("BF16", (rows, width))}
    if scheme.packed:
        return {
            module.tensor("weight_packed"): (scheme.code_dtype, (rows, -(-width // 8))),
            module.tensor("weight_scale"): (
                scheme.scale_dtype,
                (rows, width // (scheme.group_size or width)),
            ),
            module.tensor("weight_shape"): ("I64", (2,)),
        }
    return {
        module.tensor("weight"): (scheme.code_dtype, (rows, width)),
        module.tensor("weight_scale"): (scheme.scale_dtype, (rows, 1)),
    }


@dataclass(frozen=True)
class Layout:
    """The comparison of headers with what they should be.

    Attributes
    ----------
    sound
        Modules whose tensors all have the right dtype and shape, so that values can be compared.
    copied
        Tensors to be compared byte for byte: name in the build, name in the source.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    findings: tuple[Finding, ...]
    sound: tuple[Module, ...]
    copied: tuple[tuple[str, str], ...]


def _differences(
    name: str, entry: Entry, dtypes: tuple[str, ...], shapes: tuple[tuple[int, ...], ...]
) -> list[Finding]:
    found = []
    if entry.dtype not in dtypes:
        found.append(Finding("wrong_dtype", name, entry.dtype, " or ".join(dtypes)))
    if entry.shape not in shapes:
        found.append(Finding("wrong_shape", name, str(list(entry.shape)), str(list(shapes[0]))))
    return found


def _allowed(
    module: Module, name: str, entry: Entry, wanted: tuple[str, tuple[int, ...]], foreign: bool
) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """dtypes and shapes that a tensor may have; others' builds may choose other scales and group sizes."""
    dtype, shape = wanted
    if not foreign or not name.endswith("weight_scale") or module.scheme is None:
        return (dtype,), (shape,)
    rows, width = module.source.shape
    shapes: tuple[tuple[int, ...], ...] = (shape, (rows,))
    if module.scheme.packed and len(entry.shape) == 2 and entry.shape[0] == rows:
        groups = entry.shape[1]
        shapes += (entry.shape,) if groups and width % groups == 0 else ()
    return SCALE_DTYPES, shapes


def _module_findings(found: AsFound, module: Module, entries: Mapping[str, Entry]) -> list[Finding]:
    """Whether a module is stored once, and as its like. A linear left dense needs its values to be judged."""
    wanted = found.format.linears if module.source.role is Role.LINEAR else INT4
    if module.tensor("weight_packed") in entries and module.tensor("weight") in entries:
        return [Finding("stored_twice", module.name, "weight beside weight_packed")]
    if module.scheme not in (None, wanted):
        expected = wanted.name if wanted else "bf16"
        return [Finding("other_scheme", module.name, module.scheme.name if module.scheme else "", expected)]
    return []


def _unread(implied: Inventory, name: str) -> bool:
    """Whether a tensor belongs to what a text-only build leaves out, quantized or not."""
    return implied.drops(name) or implied.drops(f"{name.rpartition('.')[0]}.weight")


def compare_layout(
    found: AsFound,
    implied: Inventory,
    entries: Mapping[str, Entry],
    source: Mapping[str, Entry],
    foreign: bool,
) -> Layout:
    """Hold every header of the build against what the source's config and the schemes imply."""
    findings: list[Finding] = []
    missing: list[str] = []
    sound: list[Module] = []
    explained: set[str] = set()
    for module in found.modules:
        problems = _module_findings(found, module, entries)
        if any(problem.kind == "stored_twice" for problem in problems):
            explained |= {module.tensor("weight"), module.tensor("weight_packed")}
        wanted = expected_tensors(module)
        explained |= set(wanted)
        absent = [name for name in wanted if name not in entries]
        missing += absent
        for name in sorted(set(wanted) - set(absent)):
            problems += _differences(
                name, entries[name], *_allowed(module, name, entries[name], wanted[name], foreign)
            )
        if not absent and not any(problem.kind.startswith("wrong") for problem in problems):
            sound.append(module)
        findings += problems
    others = [tensor.name for tensor in implied.of(Role.OTHER)]
    for name in others:
        explained.add(name)
        if name not in entries:
            missing.append(name)
        else:
            findings += _differences(name, entries[name], (source[name].dtype,), (source[name].shape,))
    unexpected = [
        name for name in entries if name not in explained and not (foreign and _unread(implied, name))
    ]
    findings += [Finding("missing_tensor", name) for name in missing]
    findings += each("unexpected_tensor", unexpected)
    dense = [(module.tensor("weight"), module.source.name) for module in sound if module.scheme is None]
    same = [
        (name, name)
        for name in others
        if name in entries and entries[name].size_bytes == source[name].size_bytes
    ]
    quantized = tuple(module for module in sound if module.scheme is not None)
    return Layout(tuple(missing), tuple(unexpected), tuple(findings), quantized, (*dense, *same))
