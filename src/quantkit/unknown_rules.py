"""What other people's builds hold that no decoder here reads: recognized by headers or errors, and refused.

Tables of names and shapes, after compressed-tensors, GPTQ, AWQ and NVIDIA's exports. A refusal is no verdict:
such a build may be good. Only `verify` imports it.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from quantkit.as_found import LM_HEAD, SCALE_DTYPES, AsFound, Module
from quantkit.checkpoint import Checkpoint
from quantkit.diagnose import is_folded
from quantkit.errors import UnknownRule
from quantkit.findings import Finding
from quantkit.foreign import DIVISORS
from quantkit.header import Entry
from quantkit.model import Inventory, Role

KNOWN = (
    "symmetric int8 or float8 codes with one scale a row, or int4 in words of eight with one a row or group"
)
OTHER_TENSORS = {  # name of a tensor beside a module's own -> what it means
    "weight_zero_point": "zero points, of asymmetric codes",
    "weight_g_idx": "columns in another order",
    "weight_global_scale": "a second scale for the whole tensor",
    "weight_scale_2": "a second scale for the whole tensor",
    "weight_scale_inv": "scales of blocks",
    "input_scale": "static scales of activations",
    "input_zero_point": "static scales of activations",
    "input_global_scale": "static scales of activations",
    "k_scale": "static scales of a KV cache",
    "v_scale": "static scales of a KV cache",
    "qweight": "codes of GPTQ or AWQ",
    "qzeros": "codes of GPTQ or AWQ",
}
BLOCK = 128  # of float8 scales by blocks, in both directions
BITS_PER_WORD = 32
OTHER_BITS = (2, 3, 8)  # of codes packed into words
FEEDS = {
    "input_layernorm": "self_attn.q_proj",
    "pre_feedforward_layernorm": "mlp.gate_proj",
}  # and their like


def _beside(implied: Inventory, entries: Mapping[str, Entry]) -> Iterator[tuple[str, str]]:
    """Tensors that stand beside a module's own, and what they mean."""
    modules = {t.module for t in implied.tensors if t.role is not Role.OTHER} | {LM_HEAD}
    modules |= {module.rpartition(".")[0] for module in modules}  # scales of a cache belong to the attention
    for name in entries:
        module, _, last = name.rpartition(".")
        if last in OTHER_TENSORS and module in modules:
            yield entries[name].name, OTHER_TENSORS[last]


def _scales(module: Module, scales: Entry) -> str | None:
    rows, width = module.source.shape
    grouped = len(scales.shape) == 2 and scales.shape[0] == rows and scales.shape[1] > 1
    if scales.dtype not in SCALE_DTYPES:
        return f"scales in {scales.dtype}"
    if rows > 1 and scales.shape in ((), (1,), (1, 1)):
        return "one scale for the whole tensor"
    if scales.shape == (-(-rows // BLOCK), -(-width // BLOCK)) and rows > 1:
        return f"scales of blocks of {BLOCK} x {BLOCK}"
    if grouped and module.scheme is not None and not module.scheme.packed and width % scales.shape[1] == 0:
        return "8-bit codes with scales of groups"
    return None


def _codes(module: Module, words: Entry) -> str | None:
    rows, width = module.source.shape
    if words.dtype != "I32":
        return f"codes packed into {words.dtype}"
    shapes: dict[tuple[int, ...], int] = {
        (rows, -(-width // (BITS_PER_WORD // bits))): bits for bits in OTHER_BITS
    }
    shapes[rows, width // 8] = 4
    bits = shapes.get(words.shape, 4)
    return None if bits == 4 else f"codes of {bits} bits"


def _stored(found: AsFound, entries: Mapping[str, Entry]) -> Iterator[tuple[str, str]]:
    """Scales and codes of modules in a form that no scheme here has, and what it means."""
    for module in found.modules:
        for suffix, meaning in (("weight_scale", _scales), ("weight_packed", _codes)):
            entry = entries.get(module.tensor(suffix))
            what = meaning(module, entry) if entry is not None else None
            if entry is not None and what is not None:
                yield entry.name, what


def refuse_unknown(found: AsFound, implied: Inventory, entries: Mapping[str, Entry]) -> None:
    """Raise where a module is stored by a rule that can be named and not judged.

    Raises
    ------
    UnknownRule
        Naming the first such tensor, what it means, and the rules that are known.
    """
    for name, what in chain(_beside(implied, entries), _stored(found, entries)):
        raise UnknownRule(f"rule of {name}, which is not known", got=what, expected=KNOWN)


def refuse_folded(
    source: Checkpoint, built: Checkpoint, modules: Sequence[Module], changed: Sequence[Finding]
) -> None:
    """Raise where a norm was changed on purpose: what it feeds fits the source times the change.

    Raises
    ------
    UnknownRule
        Naming the first such norm, and the methods that do so.
    """
    by_name = {module.name: module for module in modules}
    for name in (tensor.where for tensor in changed):
        layer, _, norm = name.removesuffix(".weight").rpartition(".")
        fed = by_name.get(f"{layer}.{FEEDS.get(norm)}")
        if fed is not None and is_folded(source, built, fed, name):
            got = "divided by what the columns behind it are multiplied by, as AWQ and SmoothQuant do"
            what = f"rule of {built.entries[name].name}, which is not known"
            raise UnknownRule(what, got=got, expected="the norms of the source")


def refuse_unexplained(modules: Sequence[Module], problems: Sequence[Finding]) -> None:
    """Raise where nothing is wrong but errors beyond the bounds, and they are the rule: in half of a scheme's modules.

    One module alone is spoiled. Where most are, their maker rounded otherwise: codes that make up for each
    other's errors, as GPTQ's, are not the nearest to the source.

    Raises
    ------
    UnknownRule
        Naming the scheme, in how many of its modules, and the rules that are known.
    """
    beyond = {problem.where for problem in problems}
    if {problem.kind for problem in problems} != {"error_over_bound"}:
        return
    for scheme in dict.fromkeys(module.scheme for module in modules if module.scheme is not None):
        names = [module.name for module in modules if module.scheme == scheme]
        wide = sum(name in beyond for name in names)
        if 2 * wide > len(names):
            got = f"errors beyond every known rule in {wide} of {len(names)} modules"
            expected = f"nearest codes, and scales of {', '.join(DIVISORS[scheme.code_dtype])}"
            raise UnknownRule(f"rule of {scheme.name} codes, which is not known", got=got, expected=expected)
