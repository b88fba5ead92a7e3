"""The vocabulary's fixed part: 24 special tokens at ids 0-23, 256 bytes after them, merges up to 512.

Knows neither texts nor torch. Imported by the makers beside it and by `tests.meta`.
"""

VOCAB_SIZE = 512

SPECIALS = (
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "<mask>",
    "<|turn>",
    "<turn|>",
    "<|tool>",
    "<tool|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    '<|"|>',
    "<|think|>",
    "<|channel>",
    "<channel|>",
    "<|image>",
    "<|image|>",
    "<image|>",
    "<|audio>",
    "<|audio|>",
    "<audio|>",
    "<|video|>",
)


def token_id(special: str) -> int:
    """The id of a special token: its place in `SPECIALS`."""
    return SPECIALS.index(special)
