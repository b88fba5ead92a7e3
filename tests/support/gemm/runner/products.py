"""Matrix products as an engine runs them: weights in each kernel's layout, activations, and the check of values.

Knows kernels and tensors; knows no clock and no plan. A further kernel is one more row of KERNELS.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .forms import FORMS, WrongValues, checked_columns, error_over_bound, poison, random_codes, random_scales

Operand = tuple[torch.Tensor, ...]
Multiply = Callable[[Operand, Operand, torch.Tensor], torch.Tensor]
GROUP = 32  # int4 weights that share a step
BLOCK = 4096  # rows packed at a time: packing takes int32, eight times the packed size


@dataclass
class Weights:
    """Copies of one weight, distinct in memory, and rows of it as float32 to check the last copy against."""

    copies: list[Operand]
    columns: torch.Tensor
    sample: torch.Tensor
    n: int
    k: int

    @property
    def size_bytes(self) -> int:
        """Of one copy."""
        return sum(part.nbytes for part in self.copies[-1])

    def copies_in(self, span: int) -> int:
        """As many copies as together fill `span` bytes: in turn, each is cold when it is read."""
        return -(-span // self.size_bytes)


@dataclass
class Product:
    """One product on its device. ``product(turn)`` reads the copy whose turn it is."""

    backend: str
    kernel: str
    multiply: Multiply
    x: Operand
    weights: Weights
    out: torch.Tensor

    def __call__(self, turn: int) -> torch.Tensor:
        copies = self.weights.copies
        return self.multiply(self.x, copies[turn % len(copies)], self.out)


def dense(x: Operand, w: Operand, out: torch.Tensor) -> torch.Tensor:
    """bf16 and fp16."""
    return torch.mm(x[0], w[0].t(), out=out)


def scaled(x: Operand, w: Operand, out: torch.Tensor) -> torch.Tensor:
    """fp8 with a scale per token and per output row."""
    return torch._scaled_mm(x[0], w[0].t(), scale_a=x[1], scale_b=w[1], out_dtype=out.dtype, out=out)


def integer(x: Operand, w: Operand, out: torch.Tensor) -> torch.Tensor:
    """int8 to int32: torch has no kernel that applies the scales as well."""
    return torch._int_mm(x[0], w[0].t(), out=out)


def int4_cpu(x: Operand, w: Operand, out: torch.Tensor) -> torch.Tensor:
    """int4 on the CPU; it allocates its output."""
    result: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x[0], w[0], GROUP, w[1])
    return result


def int4_gpu(x: Operand, w: Operand, out: torch.Tensor) -> torch.Tensor:
    """torch's own int4 on a GPU; it allocates its output."""
    result: torch.Tensor = torch.ops.aten._weight_int4pack_mm(x[0], w[0], GROUP, w[1])
    return result


def int4_vllm(x: Operand, w: Operand, out: torch.Tensor) -> torch.Tensor:
    """The Triton kernel vLLM serves int4 with on ROCm; it allocates its output."""
    result: torch.Tensor = torch.ops.vllm.triton_w4a16_gemm(x[0], w[0], w[1], None, GROUP, 8)
    return result


KERNELS: dict[str, tuple[str, Multiply]] = {
    "bf16": ("torch.mm", dense),
    "fp16": ("torch.mm", dense),
    "fp8": ("torch._scaled_mm", scaled),
    "fp8fnuz": ("torch._scaled_mm", scaled),
    "int8": ("torch._int_mm", integer),
    "int4-cpu": ("aten._weight_int4pack_mm_for_cpu", int4_cpu),
    "int4-torch": ("aten._weight_int4pack_mm", int4_gpu),
    "int4-vllm": ("vllm.triton_w4a16_gemm", int4_vllm),
}


def int4_kernel(device: torch.device) -> str:
    """Key of the int4 kernel for a device: vLLM's on ROCm where it can be imported, else torch's."""
    if device.type == "cpu":
        return "int4-cpu"
    if torch.version.hip:  # on CUDA vLLM serves int4 by Marlin, which has no entry point that lasts
        try:
            import vllm.model_executor.kernels.linear.mixed_precision.triton_w4a16  # noqa: F401
        except ImportError:
            return "int4-torch"
        return "int4-vllm"
    return "int4-torch"


def pack_levels(levels: torch.Tensor, kernel: str) -> torch.Tensor:
    """Levels 0 to 15, int32 [n, k], in one kernel's layout."""
    if kernel == "int4-cpu":
        packed: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
        return packed
    if kernel == "int4-torch":
        pairs = (levels[:, ::2] << 4 | levels[:, 1::2]).to(torch.uint8)
        packed = torch.ops.aten._convert_weight_to_int4pack(pairs, 8)
        return packed
    shifts = torch.arange(0, 32, 4, device=levels.device, dtype=torch.int32)
    return (levels.t().reshape(levels.shape[1], -1, 8) << shifts).sum(-1, dtype=torch.int32)


def _int4_weight(n: int, k: int, columns: torch.Tensor, device: torch.device) -> tuple[Operand, torch.Tensor]:
    kernel = int4_kernel(device)
    steps = random_scales((k // GROUP, n), device)
    packed, kept = [], []
    for start in range(0, n, BLOCK):
        levels = random_codes((min(BLOCK, n - start), k), FORMS["int8"], device).int() & 15
        packed.append(pack_levels(levels, kernel))
        mine = columns[(columns >= start) & (columns < start + BLOCK)] - start
        kept.append(levels[mine.to(device)].to(torch.int8).cpu())
    grouped = (torch.cat(kept) - 8).view(len(columns), k // GROUP, GROUP)
    sample = (grouped * steps.cpu().t()[columns].float()[:, :, None]).view(len(columns), k)
    if kernel == "int4-vllm":
        return (torch.cat(packed, 1), steps), sample
    return (torch.cat(packed), torch.stack([steps, torch.zeros_like(steps)], 2)), sample


def _coded_weight(
    backend: str, n: int, k: int, columns: torch.Tensor, device: torch.device
) -> tuple[Operand, torch.Tensor]:
    codes = random_codes((n, k), FORMS[backend], device)
    raw = codes.view(torch.uint8)  # not every device indexes fp8
    sample = raw[columns.to(device)].cpu().view(codes.dtype).float()
    if not backend.startswith("fp8"):
        return (codes,), sample
    scale = random_scales((1, n), device).float()
    return (codes, scale), sample * scale.cpu()[0, columns, None]


def weights(backend: str, n: int, k: int, count: int, span: int, device: torch.device) -> Weights:
    """Fresh random weights [n, k] of a backend, and copies of the same values in memory of their own.

    At least `count` of them, and as many as together fill `span` bytes.
    """
    columns = checked_columns(n, k)
    if backend == "int4":
        weight, sample = _int4_weight(n, k, columns, device)
    else:
        weight, sample = _coded_weight(backend, n, k, columns, device)
    one = Weights([weight], columns, sample, n, k)
    copies = max(count, one.copies_in(span))
    one.copies[:0] = [tuple(part.clone() for part in weight) for _ in range(copies - 1)]
    return one


def product(backend: str, rows: int, of: Weights, device: torch.device) -> Product:
    """The product of fresh random activations [rows, k] with these weights."""
    form = FORMS[backend]
    x: Operand = (random_codes((rows, of.k), form, device),)
    if backend.startswith("fp8"):
        x = (*x, random_scales((rows, 1), device).float())
    out = torch.empty((rows, of.n), dtype=getattr(torch, form.out), device=device)
    kernel, multiply = KERNELS[int4_kernel(device) if backend == "int4" else backend]
    return Product(backend, kernel, multiply, x, of, out)


def check(item: Product) -> tuple[float, float]:
    """Run the last copy once; give its largest error over its bound, and the seconds of that first run.

    Raises
    ------
    WrongValues
        Where an error exceeds its bound or is NaN.
    """
    poison(item.out)
    poison(torch.empty_like(item.out))  # an output the kernel allocates itself likely reuses this memory
    begin = time.perf_counter()
    got = item(len(item.weights.copies) - 1)
    first_s = time.perf_counter() - begin
    x = item.x[0].cpu().float().double()
    if len(item.x) > 1:
        x = x * item.x[1].cpu().double()
    chosen = got[:, item.weights.columns.to(got.device)].cpu()
    worst = error_over_bound(FORMS[item.backend], chosen, x, item.weights.sample, got.device.type != "cpu")
    if not worst <= 1:
        raise WrongValues(f"values off by {worst:.3g} times their bound")
    return worst, first_s
