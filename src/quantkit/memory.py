"""What an engine will make of a plan on a card: GiB loaded, bytes of KV cache a token, tokens that fit.

Pure arithmetic over sizes. Loaded memory is counted; KV tokens lean on one constant that was fitted, and say so.
"""

from quantkit.plan import Plan
from quantkit.textconfig import TextConfig

GIB = 1 << 30
BF16_BYTES = 2
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


def loaded_gib(plan: Plan) -> float:
    """GiB after loading: all tensors of the build, and the rotary caches."""
    return (plan.tensor_bytes + rotary_bytes(plan.inventory.config)) / GIB


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
