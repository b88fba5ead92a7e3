"""A third opinion: the compressed-tensors library reads the same values from each build as the reference.

Read by the safetensors library and decoded by torch; none of the writer's or the judge's code takes part.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open

from quantkit.as_found import Module
from quantkit.checkpoint import Checkpoint
from quantkit.formats import Format
from quantkit.reference import decode_codes, decode_int4, float32_to_bf16, scales_to_float32
from quantkit.verify import Report
from tests.support.plugins.recording import infeasible

LARGEST_WHOLE = 1 << 24  # values; of larger modules, first and last rows stand for the rest
SAMPLE_ROWS = 64


def _spans(module: Module) -> Iterator[tuple[int, int]]:
    rows, _ = module.source.shape
    if module.source.values <= LARGEST_WHOLE:
        yield 0, rows
    else:
        yield from ((0, SAMPLE_ROWS), (rows - SAMPLE_ROWS, rows))


@pytest.fixture(scope="module")
def library() -> ModuleType:
    """compressed-tensors, or a row that says it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.13 warns of its own use of torch.jit while it is imported
        pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)
        pytest.importorskip("compressed_tensors.compressors", exc_type=ImportError)
        found: ModuleType = pytest.importorskip("compressed_tensors", exc_type=ImportError)
    return found


def _group(config: dict[str, Any], module: str) -> dict[str, Any]:
    """The config group that a module belongs to."""
    for group in config["quantization_config"]["config_groups"].values():
        if any(
            target == "Linear" or re.match(target.removeprefix("re:"), module) for target in group["targets"]
        ):
            return dict(group)
    raise AssertionError(f"no config group for {module}")


def _decoded(
    library: Any, file: Any, group: dict[str, Any], module: Module, start: int, stop: int
) -> NDArray[np.float32]:
    """float32 values as the library decodes them."""
    scheme = library.quantization.QuantizationScheme.model_validate(group)
    names = {suffix: module.tensor(suffix) for suffix in ("weight", "weight_packed", "weight_scale")}
    stored = set(file.keys())
    state = {suffix: file.get_slice(name)[start:stop] for suffix, name in names.items() if name in stored}
    state["weight_shape"] = (stop - start, module.source.shape[1])
    compressor = library.compressors.BaseCompressor.get_value_from_registry(scheme.format)
    weight = compressor.decompress(state, scheme)["weight"]
    return np.asarray(weight.float().numpy(), dtype=np.float32)


def _reference(build: Checkpoint, module: Module, start: int, stop: int) -> NDArray[np.float32]:
    """float32 values by `quantkit.reference`, in the precision that the scale's type gives."""
    assert module.scheme is not None
    name = module.tensor("weight_scale")
    scales = scales_to_float32(build.rows(name, start, stop), build.entries[name].dtype)
    if module.scheme.packed:
        words = build.rows(module.tensor("weight_packed"), start, stop)
        return float32_to_bf16(decode_int4(words, scales))
    codes = build.rows(module.tensor("weight"), start, stop)
    return decode_codes(codes.view(np.uint8), scales, module.scheme.code_dtype)


def test_third_decode(
    build: Format,
    built: Callable[[Format], Path],
    verified: Callable[[Format], Report],
    library: ModuleType,
    row: dict[str, Any],
) -> None:
    """Both decoders agree on every value of every module, bit by bit."""
    modules = [judged.module for judged in verified(build).judged]
    if not modules:
        infeasible("nothing is quantized in this build")
    row.update(modules=len(modules), values=0, differing=0)
    with Checkpoint.open(built(build)) as checkpoint:
        for module in modules:
            weights = module.tensor("weight_scale")
            with safe_open(checkpoint.entries[weights].file, framework="pt") as file:
                group = _group(checkpoint.config, module.name)
                for start, stop in _spans(module):
                    theirs = _decoded(library, file, group, module, start, stop)
                    ours = _reference(checkpoint, module, start, stop)
                    row["values"] += ours.size
                    row["differing"] += int((theirs != ours).sum())
    assert row["values"] > 0
    assert row["differing"] == 0
