"""Miniatures of checkpoints that other people publish: their rules for scales, their configs, none of our writers.

One row a rule, after compressed-tensors' min-max observers, GGUF's Q4_0 and Google's own w4a16 export. Configs are
nested, as for a multimodal model; towers, and ties declared on one level only, come with them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from quantkit.model import Role, inventory
from tests.meta.nibbles import float32, pack
from tests.meta.toy import Draft, Raw, bf16

Floats = NDArray[np.float32]
TOWER = "model.vision_tower.encoder.layers.0.self_attn.q_proj.weight"
FLOAT8 = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz}
LOW_HIGH = {"I8": (-128, 127), "I32": (-8, 7), "F8_E4M3": (-448, 448), "F8_E4M3FNUZ": (-240, 240)}
LAYOUTS = {"I8": ("int-quantized", "int"), "I32": ("pack-quantized", "int")}
SCALE_TYPES: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Rule:
    """One way to make scales.

    Attributes
    ----------
    codes, scales
        safetensors tags.
    scale
        Groups ``[rows, groups, in]`` -> scales ``[rows, groups]``, before they are rounded.
    recognized
        What the report must call it.
    group
        Values that share a scale; 0 is a whole row.
    """

    name: str
    codes: str
    scales: str
    scale: Callable[[Floats], Floats]
    recognized: str
    group: int = 0
    flat_scales: bool = False


def absmax_over(divisor: float) -> Callable[[Floats], Floats]:
    """absmax / divisor."""
    return lambda groups: np.abs(groups).max(axis=2) / np.float32(divisor)


def _signed_over_minus_8(groups: Floats) -> Floats:
    """GGUF's Q4_0: the value of largest magnitude, with its sign, is level -8."""
    at = np.abs(groups).argmax(axis=2)
    return np.take_along_axis(groups, at[..., None], axis=2)[..., 0] / np.float32(-8)


RULES = (
    Rule("int8-127-fp32", "I8", "F32", absmax_over(127), "absmax / 127"),
    Rule("int8-127-bf16", "I8", "BF16", absmax_over(127), "absmax / 127"),
    Rule("int8-127.5-bf16", "I8", "BF16", absmax_over(127.5), "absmax / 127.5"),
    Rule("int8-128-fp16", "I8", "F16", absmax_over(128), "absmax / 128"),
    Rule("fp8-448-bf16", "F8_E4M3", "BF16", absmax_over(448), "absmax / 448"),
    Rule("fp8-448-one-axis", "F8_E4M3", "F32", absmax_over(448), "absmax / 448", flat_scales=True),
    Rule("fnuz-240-bf16", "F8_E4M3FNUZ", "BF16", absmax_over(240), "absmax / 240"),
    Rule("fnuz-224-fp32", "F8_E4M3FNUZ", "F32", absmax_over(224), "absmax / 224"),
    Rule("int4-7-bf16", "I32", "BF16", absmax_over(7), "absmax / 7", 32),
    Rule("int4-7.5-bf16", "I32", "BF16", absmax_over(7.5), "absmax / 7.5", 32),
    Rule("int4-7.5-fp16-rows", "I32", "F16", absmax_over(7.5), "absmax / 7.5", 0),
    Rule("int4-8-bf16", "I32", "BF16", absmax_over(8), "absmax / 8", 32),
    Rule("q4_0-bf16", "I32", "BF16", _signed_over_minus_8, "signed absmax / -8", 32),
)


def _codes(rule: Rule, groups: Floats, scales: Floats) -> NDArray[Any]:
    quotient = groups / scales[..., None]
    low, high = LOW_HIGH[rule.codes]
    codes: NDArray[Any] = np.clip(quotient, low, high)
    return codes.astype(FLOAT8[rule.codes]) if rule.codes in FLOAT8 else np.rint(codes).astype(np.int64)


def stored(rule: Rule, module: str, values: Floats) -> dict[str, Raw]:
    """The tensors of one module by a rule."""
    rows, width = values.shape
    groups = values.reshape(rows, -1, rule.group or width)
    rounded = rule.scale(groups).astype(SCALE_TYPES[rule.scales])
    rounded[rounded == 0] = 1
    codes = _codes(rule, groups, rounded.astype(np.float32)).reshape(rows, width)
    shape = (rows,) if rule.flat_scales else rounded.shape
    found = {f"{module}.weight_scale": Raw(rule.scales, shape, bytearray(rounded.tobytes()))}
    if rule.codes == "I32":
        found[f"{module}.weight_packed"] = Raw("I32", (rows, width // 8), pack(codes))
        found[f"{module}.weight_shape"] = Raw("I64", (2,), bytearray(np.array([rows, width]).tobytes()))
        return found
    data = codes.astype(np.int8) if rule.codes == "I8" else codes
    found[f"{module}.weight"] = Raw(rule.codes, (rows, width), bytearray(data.tobytes()))
    return found


def _arguments(rule: Rule) -> dict[str, Any]:
    """As the library writes them out: every field, most of them null."""
    kind = LAYOUTS.get(rule.codes, ("float-quantized", "float"))[1]
    grouped = (
        {"strategy": "group", "group_size": rule.group}
        if rule.group
        else {"strategy": "channel", "group_size": None}
    )
    bits = 4 if rule.codes == "I32" else 8
    nothing = dict.fromkeys(("actorder", "block_structure", "scale_dtype", "zp_dtype"))
    return {
        "num_bits": bits,
        "type": kind,
        "symmetric": True,
        "dynamic": False,
        "observer": "memoryless_minmax",
        "observer_kwargs": {},
        **nothing,
        **grouped,
    }


def quantization_config(rule: Rule) -> dict[str, Any]:
    """The section as llm-compressor writes it."""
    layout = LAYOUTS.get(rule.codes, ("float-quantized", "float"))[0]
    weights = _arguments(rule)
    activations = None
    if rule.codes != "I32":
        activations = {**weights, "strategy": "token", "dynamic": True, "observer": None}
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": activations,
        "output_activations": None,
        "format": layout,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*vision_tower.*"],
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.17.0",
    }


def nested(config: dict[str, Any]) -> dict[str, Any]:
    """A text config as a multimodal model has it, the tie declared inside alone."""
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "text_config": dict(config),
    }


def foreign(rule: Rule, source: Draft) -> Draft:
    """A whole checkpoint by a rule: every linear quantized, everything else copied, a tower beside them."""
    linears = {tensor.name: tensor.module for tensor in inventory(source.config).of(Role.LINEAR)}
    tensors: dict[str, Raw] = {TOWER: Raw("BF16", (4, 4), bytearray(bf16(np.ones((4, 4))).tobytes()))}
    for name in source.names():
        raw = source[name]
        if name in linears:
            tensors |= stored(rule, linears[name], float32(raw.view(np.uint16)))
        else:
            tensors[name] = Raw(raw.dtype, raw.shape, bytearray(raw.data))
    config = nested(source.config) | {"quantization_config": quantization_config(rule)}
    return Draft({"model.safetensors": tensors}, config, side=dict(source.side))
