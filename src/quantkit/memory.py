"""What an engine will make of a plan on a card: GiB loaded, bytes of KV cache a token, tokens that fit.

Pure arithmetic over sizes. Loaded memory is counted; KV tokens lean on one constant that was fitted, and say so.
"""

from collections import Counter

from quantkit.plan import FUSED, Decision, Plan
from quantkit.textconfig import TextConfig

GIB = 1 << 30
BF16_BYTES = 2
# torch's allocator asks a card for whole segments of 2 MiB for each tensor of 10 MiB or more; smaller ones share.
SEGMENT_BYTES, OWN_SEGMENT_FROM_BYTES = 2 << 20, 10 << 20
UTILIZATION = 0.90  # the engine's default share of a card, as the published runs used it
KV_OVERHEAD_GIB = 7.83  # activations, graphs and rest; the one constant fitted
CPU_BLOCK = 128  # tokens of a page of vLLM 0.32's KV cache on CPU, in the layer whose tokens take most
CPU_BATCH = 2048  # tokens that it computes at once, which a sliding layer keeps besides its window
KV_BASIS = "a fit: one constant, 7.83 GiB, from the published bf16 run of E2B on one MI300X"


def rotary_bytes(config: TextConfig) -> int:
    """Bytes of the engine's rotary caches: one row a position for each distinct head size."""
    sizes = {layer.head_dim for layer in config.layers}
    return config.max_positions * sum(sizes) * BF16_BYTES


def kv_bytes_per_token(config: TextConfig) -> int:
    """Bytes of keys and values that one token adds, over the layers that own a cache."""
    return sum(2 * layer.kv_rows * BF16_BYTES for layer in config.layers if layer.owns_kv)


def _engine_name(decision: Decision, module: str) -> str:
    """What the engine makes of a module: those that it fuses are one."""
    kind = decision.tensor.kind
    part = next((group for group in FUSED if kind in group), (kind,))[0]
    return module.removesuffix(kind) + part


def _engine_tensors(plan: Plan) -> Counter[tuple[str, str]]:
    """Bytes of each tensor that the engine holds, by its module and suffix."""
    held: Counter[tuple[str, str]] = Counter()
    for decision in plan.decisions:
        for module, tensors in zip(decision.modules, decision.stored, strict=True):
            values = module.removesuffix("k_proj") + "v_proj"
            times = 2 if module.endswith(".k_proj") and values not in plan.schemes else 1
            for stored in tensors:
                suffix = stored.name.removeprefix(module)
                held[_engine_name(decision, module), suffix] += times * stored.size_bytes
    return held


def loaded_gib(plan: Plan) -> float:
    """GiB after loading: the engine's tensors in the allocator's segments, and the rotary caches.

    Keys that are values too are held twice.
    """
    sizes = _engine_tensors(plan).values()
    held = sum(size + (-size % SEGMENT_BYTES if size >= OWN_SEGMENT_FROM_BYTES else 0) for size in sizes)
    return (held + rotary_bytes(plan.inventory.config)) / GIB


def kv_tokens(plan: Plan, memory_gib: float) -> int:
    """Tokens of KV cache on one card of that memory; see KV_BASIS for what this rests on."""
    return card_kv_tokens(plan.inventory.config, memory_gib, loaded_gib(plan))


def card_kv_tokens(config: TextConfig, memory_gib: float, loaded: float) -> int:
    """Tokens of KV cache on one card of that memory with so many GiB loaded."""
    free = memory_gib * UTILIZATION - loaded - KV_OVERHEAD_GIB
    return max(0, int(free * GIB / kv_bytes_per_token(config)))


def pool_kv_tokens(config: TextConfig, pool_bytes: int, context: int) -> int:
    """Tokens of KV cache that vLLM 0.32 counts in a pool on CPU: requests of a whole context, times the context.

    Pages are of one size in all layers; a sliding layer keeps its window and one batch, a full one the context.
    """
    taken = [2 * layer.kv_rows * BF16_BYTES for layer in config.layers if layer.owns_kv]
    page = CPU_BLOCK * max(taken)
    kept = min(context, config.sliding_window - 1 + CPU_BATCH)
    pages = 0
    for layer in (layer for layer in config.layers if layer.owns_kv):
        block = page // (2 * layer.kv_rows * BF16_BYTES)
        pages += -(-context // block) if layer.full_attention else -(-kept // block) + 1
    return int(pool_bytes // page / pages * context)
