"""The shape of the nano as tables: its config.json, nested the way Google's QAT exports nest it.

Knows no torch and no weights. Imported by the makers beside it and by `tests.meta`.
"""

from copy import deepcopy
from typing import Any

from tests.nano.vocabulary import VOCAB_SIZE, token_id

SLIDING, FULL = "sliding_attention", "full_attention"

TEXT_CONFIG: dict[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_k_eq_v": False,
    "bos_token_id": token_id("<bos>"),
    "dtype": "bfloat16",
    "enable_moe_block": False,
    "eos_token_id": token_id("<eos>"),
    "final_logit_softcapping": 30.0,
    "global_head_dim": 128,
    "head_dim": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 128,
    "hidden_size_per_layer_input": 32,
    "initializer_range": 0.02,
    "intermediate_size": 256,
    "layer_types": [SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL],
    "max_position_embeddings": 32768,
    "model_type": "gemma4_text",
    "num_attention_heads": 4,
    "num_global_key_value_heads": None,
    "num_hidden_layers": 6,
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 2,
    "pad_token_id": token_id("<pad>"),
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        FULL: {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        SLIDING: {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 512,
    "tie_word_embeddings": True,
    "use_bidirectional_attention": None,
    "use_cache": True,
    "use_double_wide_mlp": True,
    "vocab_size": VOCAB_SIZE,
    "vocab_size_per_layer_input": VOCAB_SIZE,
}

VISION_CONFIG: dict[str, Any] = {
    "dtype": "bfloat16",
    "head_dim": 16,
    "hidden_size": 32,
    "intermediate_size": 32,
    "max_position_embeddings": 32768,
    "model_type": "gemma4_vision",
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "patch_size": 4,
    "pooling_kernel_size": 3,
    "position_embedding_size": 16,
    "rms_norm_eps": 1e-06,
}

LAYER_SCALARS = (0.875, 1.125, 0.9375, 1.0625, 0.90625, 1.1875)
"""Constants, each different from 1, so that a loader which drops them changes the answers."""


def config() -> dict[str, Any]:
    """The content of the checkpoint's config.json: a multimodal Gemma 4 with a nested text model."""
    media = {f"{short}_token_id": token_id(token) for short, token in MEDIA_TOKENS.items()}
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "audio_config": None,
        "dtype": "bfloat16",
        "eos_token_id": stop_ids(),
        "initializer_range": 0.02,
        "model_type": "gemma4",
        "text_config": deepcopy(TEXT_CONFIG),
        "tie_word_embeddings": True,
        "vision_config": deepcopy(VISION_CONFIG),
        **media,
        "eoa_token_index": token_id("<audio|>"),
    }


MEDIA_TOKENS = {
    "audio": "<|audio|>",
    "boa": "<|audio>",
    "boi": "<|image>",
    "eoi": "<image|>",
    "image": "<|image|>",
    "video": "<|video|>",
}


def stop_ids() -> list[int]:
    """The ids that end an answer: end of text, end of turn, and the start of a tool's response."""
    return [token_id("<eos>"), token_id("<turn|>"), token_id("<|tool_response>")]


def generation_config() -> dict[str, Any]:
    """The content of generation_config.json: greedy, and the three stop ids."""
    return {
        "bos_token_id": token_id("<bos>"),
        "do_sample": False,
        "eos_token_id": stop_ids(),
        "pad_token_id": token_id("<pad>"),
    }
