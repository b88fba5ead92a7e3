"""The compressed-tensors library as a third opinion: it reads our configs, and decompresses our tensors.

Imported lazily, since it brings torch. Only unit tests use it.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch 2.13 deprecates what it uses itself while it is imported
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme

from safetensors import safe_open


def parsed_config(quantization: dict[str, Any]) -> Any:
    """A quantization_config as the library's own record; it refuses unknown arguments."""
    return QuantizationConfig.model_validate(quantization)


def all_tensors(folder: Path) -> dict[str, Any]:
    """Every tensor of a checkpoint, as torch has it."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 no mapping
    return found


def decompressed(group: dict[str, Any], module: str, tensors: dict[str, Any]) -> NDArray[np.float32]:
    """The values of one module, decoded by the library."""
    scheme = QuantizationScheme.model_validate(group)
    compressor = BaseCompressor.get_value_from_registry(group["format"])
    names = compressor.compression_param_names(scheme)
    state = {name: tensors[f"{module}.{name}"] for name in names}
    if "weight_scale" in state:
        state["weight_scale"] = state["weight_scale"].to(torch.float32)
    values = compressor.decompress(state, scheme)["weight"]
    return np.asarray(values.to(torch.float32).numpy())
