"""Miniatures of wrong tensor sets: what is absent, too many, dense, doubled or of another shape, one defect each.

Each works on a draft before it is saved. `faults_checkpoint` lists them; nothing else imports this file.
"""

from tests.meta.spoil_values import PREFIX, TABLE, UP
from tests.meta.toy import Draft, Raw

KEY = f"{PREFIX}layers.0.self_attn.k_proj"
NORM = f"{PREFIX}layers.0.input_layernorm.weight"


def tensors_of(draft: Draft, module: str) -> list[str]:
    """Names of all tensors of a module."""
    return [name for name in draft.names() if name.startswith(f"{module}.weight")]


def missing(draft: Draft, source: Draft) -> str:
    """One norm is not there."""
    draft.drop(NORM)
    return NORM


def extra(draft: Draft, source: Draft) -> str:
    """One tensor too many, as the tower of a multimodal source would be."""
    name = "model.vision_tower.patch_embedder.input_proj.weight"
    draft.put(name, Raw("BF16", (2, 2), bytearray(8)))
    return name


def _dense(draft: Draft, source: Draft, module: str) -> None:
    for name in tensors_of(draft, module):
        draft.drop(name)
    draft.put(f"{module}.weight", source[f"{module}.weight"])


def left_dense(draft: Draft, source: Draft) -> str:
    """One linear bf16, and the config does not know."""
    _dense(draft, source, UP)
    return UP


def left_dense_ignored(draft: Draft, source: Draft) -> str:
    """One linear bf16 and ignored, though nothing keeps it from being quantized."""
    _dense(draft, source, UP)
    draft.config["quantization_config"]["ignore"].append(UP)
    return UP


def ignored(draft: Draft, source: Draft) -> str:
    """A quantized linear on the ignore list."""
    draft.config["quantization_config"]["ignore"].append(UP if f"{UP}.weight_scale" in draft else TABLE)
    return UP


def stored_twice(draft: Draft, source: Draft) -> str:
    """A packed module with its dense weight beside it."""
    module = next(module for module in (UP, TABLE) if f"{module}.weight_packed" in draft)
    draft.put(f"{module}.weight", source[f"{module}.weight"])
    return module


def packed_beside_rows(draft: Draft, source: Draft) -> str:
    """An 8-bit module with packed words beside its codes."""
    rows, width = draft[f"{UP}.weight"].shape
    draft.put(f"{UP}.weight_packed", Raw("I32", (rows, width // 8), bytearray(rows * width // 2)))
    return UP


def copied_byte(draft: Draft, source: Draft) -> str:
    """One bit of a copied norm."""
    draft[NORM].data[3] ^= 1
    return NORM


def key_absent(draft: Draft, source: Draft) -> str:
    """k_proj is absent on a layer that has keys of its own."""
    for name in tensors_of(draft, KEY):
        draft.drop(name)
    return KEY


def reshaped(draft: Draft, source: Draft) -> str:
    """A norm with an axis too many."""
    raw = draft[NORM]
    raw.shape = (1, *raw.shape)
    return NORM


def table_dense(draft: Draft, source: Draft) -> str:
    """One of the two packed tables left bf16: a combination that no build has."""
    _dense(draft, source, TABLE)
    return "embed_tokens"


def other_shape(draft: Draft, source: Draft) -> str:
    """A weight_shape tensor that says otherwise."""
    module = next(module for module in (UP, TABLE) if f"{module}.weight_packed" in draft)
    draft[f"{module}.weight_shape"].data[0] ^= 1
    return module


def no_head(draft: Draft, source: Draft) -> str:
    """The packed embedding's head is absent."""
    for name in tensors_of(draft, "lm_head"):
        draft.drop(name)
    return "lm_head"


def dense_head(draft: Draft, source: Draft) -> str:
    """The packed embedding's head bf16."""
    no_head(draft, source)
    draft.put("lm_head.weight", source[f"{PREFIX}embed_tokens.weight"])
    return "lm_head"
