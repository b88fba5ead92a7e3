"""Builds the nano's tokenizer: a byte-level BPE of 512 tokens, Gemma 4's special tokens, digits single.

Knows the samples' texts, nothing of models. Imported by `train` and by `tests.meta`.
"""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tests.nano.samples import draw, prompt
from tests.nano.vocabulary import SPECIALS, VOCAB_SIZE, token_id

CORPUS_SAMPLES = 4000
_SPECIAL = re.compile("|".join(re.escape(token) for token in SPECIALS))

TOKENIZER_CONFIG = {
    "bos_token": "<bos>",
    "clean_up_tokenization_spaces": False,
    "eos_token": "<eos>",
    "extra_special_tokens": [token for token in SPECIALS if token.startswith("<|") or token.endswith("|>")],
    "mask_token": "<mask>",
    "model_max_length": 32768,
    "pad_token": "<pad>",
    "padding_side": "left",
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": "<unk>",
}


def corpus(seed: int) -> Iterator[str]:
    """Rendered samples without their special tokens, which never take part in a merge."""
    rng = random.Random(seed)
    for _ in range(CORPUS_SAMPLES):
        sample = draw(rng)
        yield from filter(None, _SPECIAL.split(prompt(sample) + sample.answer))


def build_tokenizer(seed: int) -> Tokenizer:
    """A trained tokenizer with exactly `VOCAB_SIZE` tokens; the same seed gives the same merges."""
    tokenizer = Tokenizer(models.BPE(unk_token=None, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(seed), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", token_id("<bos>"))]
    )
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, out: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json."""
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    text = json.dumps(TOKENIZER_CONFIG, indent=2, sort_keys=True)
    (out / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
