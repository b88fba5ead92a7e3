"""vLLM plugin, CPU only: int4 in torch where vLLM's own kernels cannot run, and what is held after load, logged.

vLLM's entry point calls `register` in each of its processes. Imports vllm and torch inside functions, so that
the package works without them; nothing in the project may import this file.
"""

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import Any

BASE_LOADER = "vllm.model_executor.model_loader.base_loader"
PROCESS = "process_weights_after_loading"
PACKED_EMBEDDING = "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_embedding"
LOGGER = "vllm.quantkit"
HELD = "quantkit: parameters held after load: %d bytes in %d tensors, %d bytes of them in prepacked kernels"
BUFFERS = "quantkit: buffers held after load: %d bytes"
ATTENTION = "quantkit: attention backends: %s."
INT4_KERNEL = "vllm.model_executor.kernels.linear.mixed_precision.cpu"
PRODUCT = "quantkit: int4 products in torch are active"
LOOKUP = "quantkit: int4 embedding lookup in torch is active"


def register() -> None:
    """Patch this process of vLLM where it runs on CPU and may load a model; do nothing anywhere else.

    vLLM 0.32's lookup of packed embeddings is a Triton kernel, which has no CPU backend; its library for
    processors without AVX-512 has no int4 product; and its CPU runner logs no loaded memory. Each patch can go
    when vLLM does its part. Safe to call more than once.
    """
    from vllm.platforms import current_platform

    if current_platform.is_cpu() and _may_load_a_model():
        _patch_lookup()
        _patch_product()
        _patch_loader()


def _may_load_a_model() -> bool:
    """The API server's own process never does, and is spared two seconds of imports."""
    return (
        multiprocessing.parent_process() is not None
        or os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0"
    )


@cache
def _log_once(message: str) -> None:
    logging.getLogger(LOGGER).info(message)


def lookup_rows(packed: Any, scale: Any, ids: Any, bits: int) -> Any:
    """Rows of a packed table, decoded.

    Parameters
    ----------
    packed
        int32 ``[rows, width * bits / 32]``, codes biased by half their range, lowest bits first.
    scale
        ``[rows, groups]`` of the dtype wanted, one scale a group of width / groups values.
    ids
        Integer ids ``[n]``.

    Returns
    -------
    ``[n, width]`` in the dtype of `scale`; multiplied in fp32, as vLLM's Triton kernel does.
    """
    import torch

    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=packed.device)
    codes = (packed[ids].unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    levels = codes.flatten(1) - (1 << (bits - 1))
    steps = scale[ids].float().unsqueeze(-1)
    groups = levels.float().view(ids.numel(), scale.shape[1], -1)
    return (groups * steps).flatten(1).to(scale.dtype)


def _patch_lookup() -> None:
    method: Any = import_module(PACKED_EMBEDDING).CompressedTensorsEmbeddingWNA16Int

    def embedding(self: Any, layer: Any, input_: Any) -> Any:
        rows = lookup_rows(layer.weight_packed, layer.weight_scale, input_.reshape(-1).long(), self.num_bits)
        return rows.reshape(*input_.shape, layer.hidden_size)

    def announce(self: Any, layer: Any) -> None:
        _log_once(LOOKUP)

    method.embedding = embedding
    method.process_weights_after_loading = announce


def prepack_int4(packed: Any, scale: Any) -> tuple[Any, Any]:
    """A packed int4 weight and its scales, as torch's own int4 product wants them.

    Parameters
    ----------
    packed
        int32 ``[out, in / 8]``, codes biased by 8, lowest bits first.
    scale
        bfloat16 ``[out, in / 32]``.

    Returns
    -------
    uint8 ``[out, in / 2]`` in torch's order, and bfloat16 ``[in / 32, out, 2]``: scales, and zeros.
    """
    import torch

    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    codes = ((packed.unsqueeze(-1) >> shifts) & 15).flatten(1)
    words = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    return words, torch.stack([scale, torch.zeros_like(scale)], -1).transpose(0, 1).contiguous()


def int4_product(x: Any, words: Any, scales: Any, bias: Any = None) -> Any:
    """``x @ weight.T + bias`` for a prepacked weight; bfloat16 ``[..., in]`` -> ``[..., out]``."""
    import torch

    group = x.shape[-1] // scales.shape[0]
    rows = x.reshape(-1, x.shape[-1])
    product = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, words, group, scales)
    product = product.reshape(*x.shape[:-1], words.shape[0])
    return product if bias is None else product + bias


def _patch_product() -> None:
    """Give the CPU's int4 kernel class torch's product where vLLM's library has none of its own."""
    import torch
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    if hasattr(torch.ops._C, "cpu_gemm_wna16"):
        return
    kernel: Any = import_module(INT4_KERNEL).CPUWNA16LinearKernel

    def process(self: Any, layer: Any) -> None:
        words, scales = getattr(layer, self.w_q_name), getattr(layer, self.w_s_name)
        assert words.input_dim == 1  # [out, in / 8], as compressed-tensors stores it
        words.data, scales.data = prepack_int4(words.data, scales.data)
        _log_once(PRODUCT)

    def apply_weights(self: Any, layer: Any, x: Any, bias: Any = None) -> Any:
        return int4_product(x, getattr(layer, self.w_q_name), getattr(layer, self.w_s_name), bias)

    kernel.process_weights_after_loading = process
    kernel.apply_weights = apply_weights


def _patch_loader() -> None:
    loader = import_module(BASE_LOADER)
    process: Callable[..., None] = getattr(loader, PROCESS)
    if getattr(process, "counts_bytes", False):
        return

    def counted(model: Any, *args: Any, **kwargs: Any) -> None:
        before = dict(_tensor_bytes(model.named_parameters(remove_duplicate=False)))
        process(model, *args, **kwargs)
        _log_held(model, before)
        _log_attention(model)

    counted.counts_bytes = True  # type: ignore[attr-defined]
    setattr(loader, PROCESS, counted)


def _tensor_bytes(named: Any) -> Iterator[tuple[str, int]]:
    """Name and size of each tensor, one name per storage: a tied head is counted once."""
    seen: set[int] = set()
    for name, tensor in named:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            yield name, storage.nbytes()


def _log_held(model: Any, before: dict[str, int]) -> None:
    """Log what the model holds; a parameter that a kernel took away is held there, in its layout."""
    after = dict(_tensor_bytes(model.named_parameters(remove_duplicate=False)))
    prepacked = {name: size for name, size in before.items() if name not in after}
    total = sum(after.values()) + sum(prepacked.values())
    logger = logging.getLogger(LOGGER)
    logger.info(HELD, total, len(after) + len(prepacked), sum(prepacked.values()))
    logger.info(BUFFERS, sum(size for _, size in _tensor_bytes(model.named_buffers(remove_duplicate=False))))


def _log_attention(model: Any) -> None:
    """Log the attention backends in use: the CPU platform logs only those that it refuses."""
    modules = (module for module in model.modules() if hasattr(module, "attn_backend"))
    logging.getLogger(LOGGER).info(
        ATTENTION, ",".join(sorted({module.attn_backend.get_name() for module in modules}))
    )
