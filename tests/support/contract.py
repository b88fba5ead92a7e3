"""The boot contract: what a server must say of itself before it is asked anything. Each breach is its own error.

Pure: compares boot facts, metrics and predictions that are handed in. Knows no engine and opens no file.
Imported by the serving suite and the judge's tests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantkit.errors import QuantkitError
from quantkit.formats import INT4, Format
from quantkit.machines import Machine
from tests.support.bootlog import BootFacts

GIB = 1 << 30
BF16_BYTES = 2
# What kernels add to the tensors of a checkpoint: int8's sums per row, and the zero points of torch's int4 product,
# one a scale: 9.9 % of the nano's q4w4a16emb4, the most of any build. One dequantized at load grows by 14 % or more.
MEMORY_TOLERANCE = 0.10


class BrokenContract(QuantkitError):
    """The engine runs, and not as meant."""


class WrongKernel(BrokenContract):
    """Another kernel multiplies, or a build is not seen as quantized at all."""


class Dequantized(BrokenContract):
    """More memory is held than the weights on disk need."""


class TooLittleLoaded(BrokenContract):
    """Less memory is held than the weights on disk need: something was left out."""


class KvDisagrees(BrokenContract):
    """The log and /metrics name two sizes of the KV pool."""


class LookupMissing(BrokenContract):
    """An int4 table is served without a lookup that can read it."""


@dataclass(frozen=True)
class Expected:
    """What a build must show on a machine.

    Attributes
    ----------
    weight_bytes
        Size of the tensors that the engine loads.
    rotary_bytes
        Size of the rotary caches that it makes.
    """

    build: Format
    machine: Machine
    weight_bytes: int
    rotary_bytes: int

    @property
    def kernels(self) -> frozenset[str] | None:
        """Kernel classes that must be named, and no other; None where this machine has not been observed."""
        multiplied = [self.build.linears] if self.build.linears else []
        if self.build.unties_lm_head:
            multiplied.append(INT4)
        names = {self.machine.kernels.get(scheme.name) for scheme in multiplied}
        return None if None in names else frozenset(name for name in names if name)


def rotary_bytes(config: Mapping[str, Any]) -> int:
    """Size of the rotary caches: a row of each head width per position, in bf16."""
    widths = {config["head_dim"], config.get("global_head_dim") or config["head_dim"]}
    return int(config["max_position_embeddings"] * sum(widths) * BF16_BYTES)


def held_bytes(facts: BootFacts) -> float:
    """Bytes held after load: parameters alone where the plugin counts them, everything where the engine does."""
    if facts.loaded_bytes is not None:
        return facts.loaded_bytes
    return float("nan") if facts.loaded_gib is None else facts.loaded_gib * GIB


def predicted_bytes(facts: BootFacts, expected: Expected) -> int:
    """Bytes that should be held, counted as the facts count them."""
    return expected.weight_bytes + (0 if facts.loaded_bytes is not None else expected.rotary_bytes)


def check_kernels(facts: BootFacts, expected: Expected) -> None:
    """Return where the engine multiplies with the kernels meant for this build.

    Raises
    ------
    WrongKernel, LookupMissing
    """
    named = frozenset(kernel for kernel, _ in facts.kernels)
    wanted = expected.kernels
    if wanted is not None and named != wanted:
        got, right = sorted(named) or "none (dense)", sorted(wanted) or "none (dense)"
        raise WrongKernel(f"linear kernel of {expected.build.name}", got=got, expected=right)
    quantized = facts.quantization != "None"
    if quantized != bool(expected.build.schemes):
        raise WrongKernel(f"quantization of {expected.build.name}", got=facts.quantization)
    if expected.build.tables and expected.machine.arch == "cpu" and not facts.lookup_plugin:
        raise LookupMissing(
            f"int4 embedding lookup of {expected.build.name}",
            got="not active",
            expected="active",
            hint="install quantkit where vLLM runs: its entry point brings the plugin",
        )


def check_memory(facts: BootFacts, expected: Expected) -> None:
    """Return where the memory held is the predicted one.

    Raises
    ------
    Dequantized, TooLittleLoaded
    """
    held, predicted = held_bytes(facts), predicted_bytes(facts, expected)
    what, right = f"memory held by {expected.build.name}", f"{predicted:,} within {MEMORY_TOLERANCE:.0%}"
    if not held <= predicted * (1 + MEMORY_TOLERANCE):
        raise Dequantized(what, got=f"{held:,.0f} bytes", expected=right, hint="dequantized at load?")
    if not held >= predicted * (1 - MEMORY_TOLERANCE):
        raise TooLittleLoaded(what, got=f"{held:,.0f} bytes", expected=right, hint="tensors left out?")


def check_kv(facts: BootFacts, kv_tokens_metrics: int) -> None:
    """Return where log and /metrics agree on the KV pool.

    Raises
    ------
    KvDisagrees
    """
    if facts.kv_tokens != kv_tokens_metrics:
        raise KvDisagrees(
            "KV pool", got=f"{facts.kv_tokens} tokens in the log, {kv_tokens_metrics} in /metrics"
        )


def stable_facts(facts: BootFacts, expected: Expected) -> dict[str, Any]:
    """The facts that a committed baseline holds: those that depend on build and machine alone.

    A machine named ``cpu`` is any laptop, whose warnings tell of its libraries; a card's belong to the card.
    """
    warnings = [] if expected.machine.arch == "cpu" else sorted(facts.warnings)
    return {
        "attention": list(facts.attention),
        "graph_mode": facts.graph_mode,
        "kernels": [list(pair) for pair in facts.kernels],
        "lookup_plugin": facts.lookup_plugin,
        "prefix_caching": facts.prefix_caching,
        "quantization": facts.quantization,
        "vllm": facts.version,
        "warnings": warnings,
    }


def boot_numbers(facts: BootFacts, expected: Expected) -> dict[str, Any]:
    """The row of a boot, but for what only the server's clock and /metrics know."""
    held = held_bytes(facts)
    return {
        **stable_facts(facts, expected),
        "warnings": sorted(facts.warnings),
        "product_plugin": facts.product_plugin,
        "kernels": list(dict.fromkeys(kernel for kernel, _ in facts.kernels)),
        "schemes": [scheme for _, scheme in facts.kernels],
        "loaded_bytes": round(held),
        "loaded_gib": held / GIB,
        "predicted_bytes": predicted_bytes(facts, expected),
        "predicted_gib": predicted_bytes(facts, expected) / GIB,
        "buffer_bytes": facts.buffer_bytes,
        "prepacked_bytes": facts.prepacked_bytes,
        "kv_tokens_log": facts.kv_tokens,
        "kv_concurrency": facts.kv_concurrency,
    }
