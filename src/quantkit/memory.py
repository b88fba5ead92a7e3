"""What an engine will make of a plan on a card: GiB loaded, bytes of KV cache a token, tokens that fit.

Pure arithmetic over sizes. Loaded memory is counted; KV tokens lean on one constant that was fitted, and say so.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from quantkit.plan import FUSED, Plan
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


def _engine_name(name: str) -> str:
    """The engine's tensor that a stored one becomes a part of."""
    for group in FUSED:
        for part in group:
            name = name.replace(f".{part}.", f".{group[0]}.")
    return name


def engine_tensors(stored: Mapping[str, int]) -> Counter[str]:
    """Bytes of each tensor that an engine holds, from those that are stored; keys that are values too count twice."""
    held: Counter[str] = Counter()
    for name, size in stored.items():
        twice = ".k_proj." in name and name.replace(".k_proj.", ".v_proj.") not in stored
        held[_engine_name(name)] += 2 * size if twice else size
    return held


def segment_slack(sizes: Iterable[int]) -> int:
    """Bytes that a card's allocator takes beyond the tensors, to fill whole segments."""
    return sum(-size % SEGMENT_BYTES for size in sizes if size >= OWN_SEGMENT_FROM_BYTES)


def loaded_gib(plan: Plan) -> float:
    """GiB after loading: the engine's tensors in the allocator's segments, and the rotary caches."""
    held = engine_tensors(
        {tensor.name: tensor.size_bytes for shard in plan.shards for tensor in shard.tensors}
    )
    slack = segment_slack(held.values())
    return (held.total() + slack + rotary_bytes(plan.inventory.config)) / GIB


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
