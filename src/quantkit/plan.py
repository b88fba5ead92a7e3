"""From headers alone: one decision a tensor, the files that will be written, and their exact sizes.

Pure: it reads no weight. `convert` carries a plan out, `config` describes it, `memory` predicts what an
engine makes of it. `verify` must not import it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from quantkit.errors import NotEligible, TensorSetMismatch, UnknownModel
from quantkit.formats import INT4, Format, Scheme
from quantkit.model import Inventory, Role, Tensor, inventory
from quantkit.writer import Shard, Stored, make_shards

LARGEST_SHARD_BYTES = 4 << 30
LM_HEAD = "lm_head"
# What one engine layer is made of: its parts must share a scheme, or the engine refuses to load.
FUSED = (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj"))


class Header(Protocol):
    """What a plan needs to know of a tensor in the source."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Decision:
    """How one source tensor is stored.

    Attributes
    ----------
    scheme
        None copies the tensor byte for byte.
    rule
        Why, in words.
    modules
        Modules that store these codes: the tensor's own, and lm_head where a packed embedding is untied.
    dtype
        safetensors tag in the source.
    """

    tensor: Tensor
    scheme: Scheme | None
    rule: str
    modules: tuple[str, ...]
    dtype: str

    @cached_property
    def stored(self) -> tuple[tuple[Stored, ...], ...]:
        """Tensors written, one tuple for each module."""
        if self.scheme is None:
            return ((Stored(self.tensor.name, self.dtype, self.tensor.shape),),)
        return tuple(_stored(module, self.scheme, self.tensor.shape) for module in self.modules)


def _stored(module: str, scheme: Scheme, shape: tuple[int, ...]) -> tuple[Stored, ...]:
    rows, width = shape
    codes = (rows, width // 8) if scheme.packed else shape
    scales = (rows, width // scheme.group_size if scheme.group_size else 1)
    shapes = {
        "weight": (scheme.code_dtype, codes),
        "weight_packed": (scheme.code_dtype, codes),
        "weight_scale": (scheme.scale_dtype, scales),
        "weight_shape": ("I64", (2,)),
    }
    return tuple(Stored(f"{module}.{suffix}", *shapes[suffix]) for suffix in scheme.tensor_suffixes)


@dataclass(frozen=True)
class Plan:
    """All decisions for one build of one source.

    Attributes
    ----------
    dropped
        Source tensors that a text-only build leaves out: towers, and k and v that no layer reads.
    kept
        Modules left bf16 because they are off the grid, or fused with one that is.
    """

    format: Format
    inventory: Inventory
    decisions: tuple[Decision, ...]
    dropped: tuple[str, ...]
    kept: frozenset[str]

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """The files; packed tables lie in files of their own, so that builds can share them."""
        layers: list[Stored] = []
        dense_tables: list[Stored] = []
        packed_tables: list[Stored] = []
        for decision in self.decisions:
            tables = packed_tables if decision.scheme else dense_tables
            stream = tables if decision.tensor.role is Role.TABLE else layers
            stream.extend(stored for module in decision.stored for stored in module)
        return make_shards((layers, dense_tables, packed_tables), LARGEST_SHARD_BYTES)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors written."""
        return sum(shard.data_bytes for shard in self.shards)

    @property
    def file_bytes(self) -> int:
        """Bytes of all weight files written."""
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def schemes(self) -> dict[str, Scheme | None]:
        """Scheme of every module that is a linear, a table or the head; the head only where it has its own."""
        return {
            module: decision.scheme
            for decision in self.decisions
            if decision.tensor.role is not Role.OTHER
            for module in decision.modules
        }


def check_tensor_set(expected: Inventory, headers: Mapping[str, Header]) -> None:
    """Whether the source holds what its config implies, in shape and dtype.

    Raises
    ------
    TensorSetMismatch
        With the first tensor that is absent, unknown, or of another shape or dtype.
    """
    by_name = {tensor.name: tensor for tensor in expected.tensors}
    absent = [name for name in by_name if name not in headers]
    if absent:
        hint = "is a shard or the right config.json absent, or is this a quantized build?"
        raise TensorSetMismatch(f"{len(absent)} tensors absent from the source, first {absent[0]}", hint=hint)
    unknown = [name for name in headers if name not in by_name and not expected.drops(name)]
    if unknown:
        what = f"{len(unknown)} tensors in the source that its config does not imply, first {unknown[0]}"
        raise TensorSetMismatch(what, hint="only dense, unquantized Gemma 4 checkpoints are known")
    for name, tensor in by_name.items():
        header = headers[name]
        if header.shape != tensor.shape:
            raise TensorSetMismatch(f"shape of {name}", got=list(header.shape), expected=list(tensor.shape))
        if tensor.role is not Role.OTHER and header.dtype != "BF16":
            hint = "quantkit starts from an unquantized bfloat16 checkpoint"
            raise TensorSetMismatch(f"dtype of {name}", got=header.dtype, expected="BF16", hint=hint)


def _fused_modules(tensors: tuple[Tensor, ...], kept: frozenset[str]) -> frozenset[str]:
    """The kept modules and all that an engine fuses with them."""
    widened = set(kept)
    for tensor in tensors:
        for group in FUSED:
            if tensor.kind.endswith(group):
                stem = next(
                    tensor.module.removesuffix(part) for part in group if tensor.module.endswith(part)
                )
                if any(stem + part in kept for part in group):
                    widened.add(tensor.module)
    return frozenset(widened)


def _decide(tensor: Tensor, fmt: Format, kept: frozenset[str]) -> tuple[Scheme | None, str]:
    if tensor.role is Role.LINEAR:
        if tensor.module in kept:
            return None, "off the grid, or fused with a linear that is: left bf16 and ignored"
        return fmt.linears, "linear" if fmt.linears else "linear, bf16 in this build"
    if tensor.role is Role.TABLE and tensor.kind in fmt.tables:
        return INT4, "table, packed"
    return None, "table, bf16 in this build" if tensor.role is Role.TABLE else "norm or scalar, copied"


def _check_eligible(tensor: Tensor, scheme: Scheme | None) -> None:
    if scheme is None or scheme.group_size is None:
        return
    if tensor.shape[1] % scheme.group_size:
        what = f"input width of {tensor.name}"
        raise NotEligible(what, got=tensor.shape[1], expected=f"a multiple of {scheme.group_size}")


def make_plan(
    config: Mapping[str, Any], headers: Mapping[str, Header], fmt: Format, kept: frozenset[str] = frozenset()
) -> Plan:
    """The plan for one build.

    Parameters
    ----------
    config
        The source's parsed config.json.
    headers
        dtype and shape of every tensor in the source, by name.
    kept
        Modules found off the grid that are to stay bf16.

    Raises
    ------
    UnknownModel, TensorSetMismatch, NotEligible
        Where the source is not what its config says, or a shape cannot be stored in the scheme.
    """
    implied = inventory(config)
    if not implied.config.tied:
        raise UnknownModel("a Gemma 4 with an untied lm_head", expected="tie_word_embeddings true")
    check_tensor_set(implied, headers)
    kept = _fused_modules(implied.tensors, kept)
    decisions = []
    for tensor in implied.tensors:
        scheme, rule = _decide(tensor, fmt, kept)
        _check_eligible(tensor, scheme)
        untied = fmt.unties_lm_head and tensor.kind == "embed_tokens"
        modules = (tensor.module, LM_HEAD) if untied else (tensor.module,)
        decisions.append(Decision(tensor, scheme, rule, modules, headers[tensor.name].dtype))
    dropped = tuple(sorted(name for name in headers if implied.drops(name)))
    return Plan(fmt, implied, tuple(decisions), dropped, kept)
