"""The boot contract: what a server must say of itself before it is asked anything. Each breach is its own error.

Pure: compares boot facts, metrics and predictions that are handed in. Knows no engine and opens no file.
Imported by the serving suite and the judge's tests.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

from quantkit.checkpoint import Checkpoint
from quantkit.errors import QuantkitError
from quantkit.formats import INT4, Format
from quantkit.machines import Machine
from quantkit.memory import GIB, card_kv_tokens, engine_tensors, pool_kv_tokens, rotary_bytes, segment_slack
from quantkit.textconfig import TextConfig, text_config
from tests.support.boot.log import BootFacts

# What kernels add to the tensors of a checkpoint: vLLM's int8 product on CPU a sum a row in fp32, torch's int4 product
# (the plugin's) a zero a scale in bf16. With these the nano's ten builds load within 128 bytes of the prediction.
INT8_SUM_BYTES = 4
INT4_ZERO_BYTES = 2
# Twice the most that a published load on an MI300X lies over its prediction (0.9 %), where the allocator and the log's
# two decimals are in it. One table or head dequantized at load adds 9.8 % to the nano's smallest build, a linear format
# 78 % or more.
MEMORY_TOLERANCE = 0.02
INT8_SUMMING = "CPUInt8ScaledMMLinearKernel"
LOOKED_UP = re.compile(r"\.embed_tokens(_per_layer)?$")


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
    text
        Sizes of the model.
    weight_bytes, slack_bytes
        Size of the tensors that the engine makes of those stored, and what a card's allocator takes besides.
    int8_rows, int4_groups
        Rows of int8 weights, and groups of int4 weights that are multiplied (an embedding is looked up).
    kv_pool_bytes
        Size of the KV pool where the engine is told it; 0 where it takes what the card has left.
    """

    build: Format
    machine: Machine
    text: TextConfig
    weight_bytes: int
    slack_bytes: int = 0
    int8_rows: int = 0
    int4_groups: int = 0
    kv_pool_bytes: int = 0

    @property
    def kernels(self) -> frozenset[str] | None:
        """Kernel classes that must be named, and no other; None where this machine has not been observed."""
        multiplied = [self.build.linears] if self.build.linears else []
        if self.build.unties_lm_head:
            multiplied.append(INT4)
        names = {self.machine.kernels.get(scheme.name) for scheme in multiplied}
        return None if None in names else frozenset(name for name in names if name)


def expected_of(build: Format, machine: Machine, checkpoint: Checkpoint, kv_pool_bytes: int) -> Expected:
    """What a build on disk must show, from its headers."""
    entries = checkpoint.entries
    held = engine_tensors({name: entry.size_bytes for name, entry in entries.items()})
    multiplied = [
        module
        for name in entries
        if (module := name.removesuffix(".weight_packed")) != name and not LOOKED_UP.search(module)
    ]
    return Expected(
        build,
        machine,
        text_config(checkpoint.config),
        weight_bytes=held.total(),
        slack_bytes=segment_slack(held.values()),
        int8_rows=sum(entry.shape[0] for entry in entries.values() if entry.dtype == "I8"),
        int4_groups=sum(math.prod(entries[f"{module}.weight_scale"].shape) for module in multiplied),
        kv_pool_bytes=kv_pool_bytes,
    )


def held_bytes(facts: BootFacts) -> float:
    """Bytes held after load: parameters alone where the plugin counts them, everything where the engine does."""
    if facts.loaded_bytes is not None:
        return facts.loaded_bytes
    return float("nan") if facts.loaded_gib is None else facts.loaded_gib * GIB


def predicted_bytes(facts: BootFacts, expected: Expected) -> int:
    """Bytes that should be held, counted as the facts count them."""
    sums = INT8_SUM_BYTES * expected.int8_rows if INT8_SUMMING in dict(facts.kernels) else 0
    zeros = INT4_ZERO_BYTES * expected.int4_groups if facts.product_plugin else 0
    on_card = 0 if facts.loaded_bytes is not None else rotary_bytes(expected.text) + expected.slack_bytes
    return expected.weight_bytes + sums + zeros + on_card


def predicted_kv_tokens(facts: BootFacts, expected: Expected) -> int | None:
    """Tokens that the KV pool should hold; None where the card's memory is not known."""
    if expected.kv_pool_bytes:
        return pool_kv_tokens(expected.text, expected.kv_pool_bytes, facts.kv_context or 0)
    if not expected.machine.memory_gib:
        return None
    loaded = predicted_bytes(facts, expected) / GIB
    return card_kv_tokens(expected.text, expected.machine.memory_gib, loaded)


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
        "predicted_kv_tokens": predicted_kv_tokens(facts, expected),
        "buffer_bytes": facts.buffer_bytes,
        "prepacked_bytes": facts.prepacked_bytes,
        "kv_tokens_log": facts.kv_tokens,
        "kv_concurrency": facts.kv_concurrency,
    }
