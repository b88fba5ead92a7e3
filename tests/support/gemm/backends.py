"""The timed number formats as one enum: stored bytes a weight, what each needs, and the scheme of a build it serves.

Pure table; the kernels behind the names are the runner's. The plan, the figures and the suite import it.
"""

from enum import Enum

from quantkit.formats import FP8, FP8FNUZ, INT4, INT8, Format, Scheme
from tests.support.gemm.shapes import LM_HEAD


class Backend(Enum):
    """One way to multiply: its name, stored bytes a weight, the scheme it serves, and what it needs of a device."""

    BF16 = ("bf16", 2.0, None, "any device")
    FP16 = ("fp16", 2.0, None, "any GPU, or a torch whose CPU build multiplies halves")
    FP8 = ("fp8", 1.0, FP8, "a card that multiplies E4M3FN: sm_89 or newer, gfx950; not gfx942")
    FP8FNUZ = ("fp8fnuz", 1.0, FP8FNUZ, "a card that multiplies E4M3FNUZ: gfx942")
    INT8 = ("int8", 1.0, INT8, "torch._int_mm; on CUDA and ROCm more than 16 rows")
    INT4 = (
        "int4",
        0.5 + 2 / 32,
        INT4,
        "n and k multiples of 32; on ROCm vLLM's Triton kernel where it imports",
    )

    def __init__(self, label: str, weight_bytes: float, scheme: Scheme | None, needs: str) -> None:
        self.label = label
        self.weight_bytes = weight_bytes
        self.scheme = scheme
        self.needs = needs

    def __str__(self) -> str:
        return self.label


def backend_of(build: Format, kind: str) -> Backend:
    """What multiplies a product of this kind in a served build: the head follows the tables, the rest the linears."""
    if kind == LM_HEAD:
        return Backend.INT4 if build.unties_lm_head else Backend.BF16
    return next(backend for backend in Backend if backend.scheme == build.linears and backend != Backend.FP16)
