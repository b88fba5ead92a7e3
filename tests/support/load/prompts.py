"""Prompts as token ids: random ones, with the special, image and audio ids of a checkpoint left out.

Reads a checkpoint's config and tokenizer, nothing else; knows no server. Imported by the sweep.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantkit.errors import NotACheckpoint

ID_KEYS = ("_token_id", "_token_ids", "_token_index")


def usable_ids(checkpoint: Path) -> npt.NDArray[np.int64]:
    """The ids a random prompt may hold, ascending.

    Parameters
    ----------
    checkpoint
        Folder with ``config.json`` and, where there is one, ``tokenizer.json``.

    Returns
    -------
    ndarray of int64, shape (n_ids,)
        All ids of the vocabulary but those that the config gives a role (begin, end, padding, image,
        audio) or the tokenizer calls an added token.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    text = config.get("text_config", config)
    barred = _role_ids(config) | _role_ids(text) | _added_ids(checkpoint / "tokenizer.json")
    allowed = np.setdiff1d(np.arange(text["vocab_size"]), np.array(sorted(barred), dtype=np.int64))
    if not len(allowed):
        raise NotACheckpoint("vocabulary", got="no id that is not special", expected="ordinary tokens")
    return allowed


def _role_ids(config: dict[str, Any]) -> set[int]:
    found: set[int] = set()
    for key, value in config.items():
        if key.endswith(ID_KEYS):
            values = value if isinstance(value, list) else [value]
            found |= {one for one in values if isinstance(one, int)}
    return found


def _added_ids(tokenizer: Path) -> set[int]:
    if not tokenizer.exists():
        return set()
    return {token["id"] for token in json.loads(tokenizer.read_text()).get("added_tokens", ())}


def random_prompt(ids: npt.NDArray[np.int64], tokens: int, seed: int) -> list[int]:
    """`tokens` ids drawn from `ids`, the same for the same seed."""
    return [int(token) for token in np.random.default_rng(seed).choice(ids, size=tokens)]
