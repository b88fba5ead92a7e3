"""vLLM plugin, CPU only: int4 embedding lookup in torch, and the bytes of parameters held after load.

vLLM's entry point calls `register` in each of its processes. Imports vllm and torch inside functions, so that
the package works without them; nothing in the project may import this file.
"""

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

BASE_LOADER = "vllm.model_executor.model_loader.base_loader"
PROCESS = "process_weights_after_loading"
PACKED_EMBEDDING = "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_embedding"
LOGGER = "vllm.quantkit"
HELD = "quantkit: parameters held after load: %d bytes in %d tensors, %d bytes of them in prepacked kernels"
BUFFERS = "quantkit: buffers held after load: %d bytes"
ATTENTION = "quantkit: attention backends: %s."
LOOKUP = "quantkit: int4 embedding lookup in torch is active"


def register() -> None:
    """Patch this process of vLLM where it runs on CPU and may load a model; do nothing anywhere else.

    vLLM 0.32's lookup of packed embeddings is a Triton kernel, which has no CPU backend, and its CPU runner
    logs no loaded memory. Either patch can go when vLLM does its part. Safe to call more than once.
    """
    from vllm.platforms import current_platform

    if current_platform.is_cpu() and _may_load_a_model():
        _patch_lookup()
        _patch_loader()


def _may_load_a_model() -> bool:
    """The API server's own process never does, and is spared two seconds of imports."""
    return (
        multiprocessing.parent_process() is not None
        or os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0"
    )


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
        logging.getLogger(LOGGER).info(LOOKUP)

    method.embedding = embedding
    method.process_weights_after_loading = announce


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
