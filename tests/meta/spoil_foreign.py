"""Defects of other people's builds, one named defect each, and the findings that must name them.

Each works on a draft of any of the rules in `foreign_builds`, by raw bytes. Only `test_verify_foreign` imports it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.meta.foreign_builds import SCALE_TYPES
from tests.meta.nibbles import unpack
from tests.meta.spoil_tensors import KEY, NORM
from tests.meta.spoil_values import UP
from tests.meta.toy import Draft, Raw


def _scales(draft: Draft) -> NDArray[Any]:
    """The scales of up_proj, to be changed in place."""
    raw = draft[f"{UP}.weight_scale"]
    return raw.view(SCALE_TYPES[raw.dtype])


def _codes(draft: Draft) -> Raw:
    return draft[f"{UP}.weight_packed" if f"{UP}.weight_packed" in draft else f"{UP}.weight"]


def nan_scale(draft: Draft) -> str:
    """One scale is NaN."""
    _scales(draft).reshape(-1)[3] = np.nan
    return UP


def infinite_scale(draft: Draft) -> str:
    """One scale is infinite."""
    _scales(draft).reshape(-1)[5] = np.inf
    return UP


def zero_scale(draft: Draft) -> str:
    """One scale is zero."""
    _scales(draft).reshape(-1)[7] = 0
    return UP


def missing_tensor(draft: Draft) -> str:
    """The codes of one linear are absent."""
    name = f"{KEY}.weight_packed" if f"{KEY}.weight_packed" in draft else f"{KEY}.weight"
    draft.drop(name)
    return name


def missing_scale(draft: Draft) -> str:
    """The scales of one linear are absent."""
    draft.drop(f"{UP}.weight_scale")
    return f"{UP}.weight_scale"


def rolled_rows(draft: Draft) -> str:
    """Rows and their scales one further."""
    for raw in (_codes(draft), draft[f"{UP}.weight_scale"]):
        size = len(raw.data) // raw.shape[0]
        raw.data = raw.data[-size:] + raw.data[:-size]
    return UP


def wrong_shape(draft: Draft) -> str:
    """Rows and columns of the codes exchanged."""
    raw = _codes(draft)
    raw.shape = raw.shape[::-1]
    return UP


def one_value_beyond(draft: Draft) -> str:
    """One value of a small group is the opposite of what it should be."""
    raw = _codes(draft)
    if raw.dtype != "I32":
        at = np.argmax(np.abs(raw.view(np.int8).reshape(-1).astype(int)) == 127) if raw.dtype == "I8" else 0
        raw.data[int(at)] ^= 0x80
        return UP
    scales = np.abs(_scales(draft).astype(np.float32))
    row, group = np.unravel_index(int(np.where(scales == 1, np.inf, scales).argmin()), scales.shape)
    word = raw.view(np.uint32)
    per_group = word.shape[1] // scales.shape[1]
    levels = unpack(word.view(np.int32))
    low = group * per_group * 8
    at = low + int(np.abs(levels[row, low : low + per_group * 8]).argmax())
    word[row, at // 8] ^= np.uint32(8 << 4 * (at % 8))
    return UP


def steps_times_1_3(draft: Draft) -> str:
    """All scales of one linear a third too large."""
    _scales(draft)[:] *= SCALE_TYPES[draft[f"{UP}.weight_scale"].dtype](1.3)
    return UP


def copied_byte(draft: Draft) -> str:
    """One bit of a norm."""
    draft[NORM].data[3] ^= 1
    return NORM


def not_ignored(draft: Draft) -> str:
    """A linear left bf16 that the config does not ignore: its codes are taken for the weight."""
    for suffix in ("weight", "weight_packed", "weight_scale", "weight_shape"):
        if f"{UP}.{suffix}" in draft:
            draft.drop(f"{UP}.{suffix}")
    rows, width = 96, 64
    draft.put(f"{UP}.weight", Raw("BF16", (rows, width), bytearray(rows * width * 2)))
    return UP


def ignored(draft: Draft) -> str:
    """A quantized linear that the config ignores."""
    draft.config["quantization_config"]["ignore"].append(UP)
    return UP


def unknown_transform(draft: Draft) -> str:
    """Weights that are rotated, says the config."""
    draft.config["quantization_config"]["transform_config"] = {"config_groups": {"u": {}}}
    return "transform_config"


def other_group_size(draft: Draft) -> str:
    """A group size that the stored scales do not have."""
    group = draft.config["quantization_config"]["config_groups"]["group_0"]
    group["weights"] |= {"strategy": "group", "group_size": 16}
    return UP


def no_tokenizer(draft: Draft) -> str:
    """No tokenizer."""
    del draft.side["tokenizer.json"]
    return "tokenizer.json"


@dataclass(frozen=True)
class Defect:
    """One defect in another's build, and the kinds of finding of which one at least must name its place."""

    spoil: Callable[[Draft], str]
    kinds: tuple[str, ...]


DEFECTS = (
    Defect(nan_scale, ("scale_unusable", "step_unusable")),
    Defect(infinite_scale, ("scale_unusable", "step_unusable")),
    Defect(zero_scale, ("scale_unusable", "step_unusable")),
    Defect(missing_tensor, ("missing_tensor",)),
    Defect(missing_scale, ("missing_tensor",)),
    Defect(rolled_rows, ("rows_permuted",)),
    Defect(wrong_shape, ("wrong_shape",)),
    Defect(one_value_beyond, ("error_over_bound",)),
    Defect(steps_times_1_3, ("error_over_bound",)),
    Defect(copied_byte, ("copied_differs",)),
    Defect(not_ignored, ("config_dense_not_ignored",)),
    Defect(ignored, ("config_ignored_but_quantized",)),
    Defect(unknown_transform, ("config_field",)),
    Defect(other_group_size, ("config_group_wrong", "config_field")),
    Defect(no_tokenizer, ("side_file_missing",)),
)
