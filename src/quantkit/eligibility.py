"""Which modules an engine's kernels can multiply, on one card or split over several.

Pure: a table of what each kernel asks of the shape [N, K], and how tensor parallelism cuts each projection.
Read from vLLM 0.32's can_implement checks and torch's scaled_mm.
"""

from dataclasses import dataclass

from quantkit.formats import GROUP_SIZE, Scheme
from quantkit.model import Role
from quantkit.plan import Decision, Plan
from quantkit.textconfig import TextConfig

COLUMN = ("q_proj", "gate_proj", "up_proj", "per_layer_model_projection")  # split along N
KV = ("k_proj", "v_proj")  # split by kv heads, and repeated where there are fewer heads than ranks
ROW = ("o_proj", "down_proj")  # split along K; all others are held whole by every rank


@dataclass(frozen=True)
class Multiple:
    """N and K of a product must be multiples of these."""

    kernel: str
    n: int
    k: int


# (code dtype, on a CPU) -> what the kernel asks; a pair that is not here asks nothing
ASKED = {
    ("I32", False): Multiple("Triton W4A16", 8, GROUP_SIZE),
    ("I32", True): Multiple("CPU WNA16", 32, GROUP_SIZE),
    ("F8_E4M3", False): Multiple("torch scaled_mm", 16, 16),
    ("F8_E4M3FNUZ", False): Multiple("torch scaled_mm", 16, 16),
}


@dataclass(frozen=True)
class Misfit:
    """A module that a kernel cannot multiply on some rank."""

    module: str
    kernel: str
    shape: tuple[float, float]
    reason: str


def _rank_shape(decision: Decision, config: TextConfig, ranks: int) -> tuple[float, float]:
    """N and K on one rank; a fraction says that the split does not come out even."""
    n, k = decision.tensor.shape
    last = decision.tensor.kind.rsplit(".", 1)[-1]
    if last in COLUMN:
        return (n / ranks, k)
    if last in ROW:
        return (n, k / ranks)
    if last in KV:
        head_dim = next(layer.head_dim for layer in config.layers if layer.kv_rows == n and layer.owns_kv)
        return (max(n / ranks, head_dim), k)
    return (n, k)


def _reason(letter: str, whole: int, part: float, multiple: int) -> str:
    """What is wrong with one side of a product; empty where nothing is."""
    if part % 1:
        return f"{letter} of {whole} is not divisible by {round(whole / part)}"
    if part % multiple:
        return f"{letter} of {part:.0f}{' a rank' if part != whole else ''} is no multiple of {multiple}"
    return ""


def _misfit(decision: Decision, scheme: Scheme, shape: tuple[float, float], on_cpu: bool) -> Misfit | None:
    asked = ASKED.get((scheme.code_dtype, on_cpu))
    if asked is None:
        return None
    n, k = decision.tensor.shape
    reasons = (_reason("N", n, shape[0], asked.n), _reason("K", k, shape[1], asked.k))
    reason = " and ".join(filter(None, reasons))
    return Misfit(decision.tensor.module, asked.kernel, shape, reason) if reason else None


def misfits(plan: Plan, *, on_cpu: bool = False, ranks: int = 1) -> tuple[Misfit, ...]:
    """Modules that the engine's kernel for their scheme would refuse, split over so many ranks.

    Tables are looked up, and a head fits any kernel: the engine pads its rows to multiples of 64 on each rank.
    """
    found = []
    for decision in plan.decisions:
        if decision.scheme is not None and decision.tensor.role is Role.LINEAR:
            shape = _rank_shape(decision, plan.inventory.config, ranks)
            misfit = _misfit(decision, decision.scheme, shape, on_cpu)
            found += [misfit] if misfit else []
    return tuple(found)
