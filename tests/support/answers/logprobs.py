"""Log probabilities of fixed token sequences, as a server gives them, and how far two sets lie apart.

It sees what answers cannot: many wrong weights leave every answer right. Imported by the serving suite.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quantkit.errors import QuantkitError
from tests.support.engine.readiness import ask

TOP_K = 20  # what vLLM returns at most by default


class NoLogprobs(QuantkitError):
    """The server gave no log probabilities, or not those of the tokens that were sent."""


@dataclass(frozen=True)
class Scored:
    """One sequence, scored: entries belong to tokens 1.., since nothing precedes the first.

    Attributes
    ----------
    tokens
        All token ids of the sequence.
    logprobs
        Log probability of each token after the first, given those before it.
    top
        Per token after the first, the most likely ids and their log probabilities.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[dict[int, float], ...]


@dataclass(frozen=True)
class Shift:
    """How far one set of log probabilities lies from another, over all tokens.

    Attributes
    ----------
    mean_abs_dlogprob, max_abs_dlogprob
        Of the change of the tokens' own log probability, in nats.
    top1_agreement
        Share of positions with the same most likely token.
    kl
        Mean Kullback-Leibler divergence in nats over the tokens that both returned, and one rest.
    """

    tokens: int
    mean_abs_dlogprob: float
    max_abs_dlogprob: float
    top1_agreement: float
    kl: float


class ShiftTooLarge(QuantkitError):
    """Log probabilities lie further from where they should be than is allowed."""


def check_shift(what: str, found: Shift, bounds: Mapping[str, float]) -> None:
    """Return where a shift keeps its bounds: ``top1_agreement`` at least, every other figure at most.

    Raises
    ------
    ShiftTooLarge
        Naming the first figure that does not.
    """
    for name, bound in bounds.items():
        value = float(getattr(found, name))
        kept = value >= bound if name == "top1_agreement" else value <= bound
        if not kept:
            least = "at least" if name == "top1_agreement" else "at most"
            raise ShiftTooLarge(f"{name} of {what}", got=f"{value:.4g}", expected=f"{least} {bound:.4g}")


def token_ids(base_url: str, model: str, text: str) -> tuple[int, ...]:
    """A text's token ids, special tokens read as such and none added."""
    body = {"model": model, "prompt": text, "add_special_tokens": False}
    answer = ask(f"{base_url}/tokenize", body, 30).json()
    if not isinstance(answer, dict) or not answer.get("tokens"):
        raise NoLogprobs("tokens of a text", got=repr(answer)[:200], expected="a list of ids")
    return tuple(answer["tokens"])


def scored(base_url: str, model: str, tokens: Sequence[int]) -> Scored:
    """The server's log probabilities of a sequence.

    Raises
    ------
    NoLogprobs
        Where an entry is missing, not finite, or is not of the token sent.
    """
    body = {
        "model": model,
        "prompt": list(tokens),
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": TOP_K,
    }
    answer = ask(f"{base_url}/v1/completions", body, 120)
    content = answer.json()
    if answer.status != 200 or not isinstance(content, dict):
        raise NoLogprobs("log probabilities", got=f"{answer.status}: {answer.body[:200]!r}", expected="200")
    entries = (content.get("choices") or [{}])[0].get("prompt_logprobs") or []
    if len(entries) != len(tokens):
        raise NoLogprobs("log probabilities", got=f"{len(entries)} entries", expected=len(tokens))
    return _read(tuple(tokens), entries[1:])


def _read(tokens: tuple[int, ...], entries: Sequence[dict[str, Any]]) -> Scored:
    tops = tuple({int(token): float(entry["logprob"]) for token, entry in each.items()} for each in entries)
    own = tuple(top.get(token, math.nan) for token, top in zip(tokens[1:], tops, strict=True))
    if not all(map(math.isfinite, own)):
        raise NoLogprobs("log probability of a token that was sent", got="none, or not finite")
    return Scored(tokens, own, tops)


def shift(base: Iterable[Scored], other: Iterable[Scored]) -> Shift:
    """How far `other` lies from `base`.

    Raises
    ------
    NoLogprobs
        Where they are not of the same sequences.
    """
    pairs = list(zip(base, other, strict=True))
    if not pairs or any(a.tokens != b.tokens for a, b in pairs):
        raise NoLogprobs("log probabilities to compare", got="other sequences", expected="the same")
    changes = [abs(x - y) for a, b in pairs for x, y in zip(a.logprobs, b.logprobs, strict=True)]
    tops = [tops for a, b in pairs for tops in zip(a.top, b.top, strict=True)]
    count = len(changes)
    return Shift(
        tokens=count,
        mean_abs_dlogprob=sum(changes) / count,
        max_abs_dlogprob=max(changes),
        top1_agreement=sum(_likeliest(a) == _likeliest(b) for a, b in tops) / count,
        kl=sum(divergence(a, b) for a, b in tops) / count,
    )


def _likeliest(top: dict[int, float]) -> int:
    return max(top, key=lambda token: top[token])


def divergence(base: dict[int, float], other: dict[int, float]) -> float:
    """KL(base, other) in nats over the tokens that both hold; all others count as one token, the rest."""
    common = base.keys() & other.keys()
    p = [math.exp(base[token]) for token in common]
    q = [math.exp(other[token]) for token in common]
    rest_p, rest_q = max(1 - sum(p), 1e-9), max(1 - sum(q), 1e-9)
    terms = [a * math.log(a / b) for a, b in zip([*p, rest_p], [*q, rest_q], strict=True) if a > 0]
    return max(0.0, sum(terms))


def save(path: Path, sequences: Sequence[Scored]) -> None:
    """Keep scored sequences in the run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(each) for each in sequences]))


def load(path: Path) -> tuple[Scored, ...]:
    """Scored sequences that were kept."""
    kept = json.loads(path.read_text())
    return tuple(
        Scored(
            tuple(each["tokens"]),
            tuple(each["logprobs"]),
            tuple({int(token): value for token, value in top.items()} for top in each["top"]),
        )
        for each in kept
    )
