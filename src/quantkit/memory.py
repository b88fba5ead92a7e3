"""What an engine will make of a plan on a card: GiB loaded, bytes of KV cache a token, tokens that fit.

Pure arithmetic over sizes. Loaded memory is counted; KV tokens lean on one constant that was fitted, and say so.
"""

from quantkit.plan import Plan
from quantkit.textconfig import TextConfig

GIB = 1 << 30
BF16_BYTES = 2
UTILIZATION = 0.90  # the engine's default share of a card, as the published runs used it
KV_OVERHEAD_GIB = 7.83  # activations, graphs and rest; the one constant fitted
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


def kv_tokens(plan: Plan, memory_gib: float, loaded: float | None = None) -> int:
    """Tokens of KV cache on one card of that memory; see KV_BASIS for what this rests on.

    Parameters
    ----------
    memory_gib
        The card's memory.
    loaded
        GiB loaded, where it is known better than by prediction.
    """
    weights = loaded_gib(plan) if loaded is None else loaded
    free = memory_gib * UTILIZATION - weights - KV_OVERHEAD_GIB
    return max(0, int(free * GIB / kv_bytes_per_token(plan.inventory.config)))
