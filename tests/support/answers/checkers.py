"""Whether an answer is right, as pure functions over what the client received; each way to be wrong is an error.

Knows no server and no model: the question says what is right. Imported by `asking` and the judge's tests.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from quantkit.errors import QuantkitError
from tests.support.answers.probes import Probe


class WrongAnswer(QuantkitError):
    """The server answered, and the answer is not right."""


class WrongText(WrongAnswer):
    """Fluent or not, it does not say what it should."""


class NoThinking(WrongAnswer):
    """Thinking was asked for, and is empty or about something else."""


class WrongCall(WrongAnswer):
    """Not the one tool call that was called for."""


class CutOff(WrongAnswer):
    """The answer ended because it was too long."""


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes
    ----------
    calls
        Pairs of tool name and arguments as sent, a string.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    finish: str = ""


def holds(word: str, text: str) -> bool:
    """Whether a word, or one of its alternatives, stands in a text, whole and in any case."""
    return re.search(rf"\b(?:{'|'.join(map(re.escape, word.split('|')))})\b", text, re.IGNORECASE) is not None


def check(probe: Probe, answer: Answer) -> None:
    """Return where the answer is right.

    Raises
    ------
    WrongAnswer
        One leaf for each way to be wrong.
    """
    asked = f"answer to {probe.ask!r}"
    if answer.finish == "length":
        raise CutOff(
            asked, got=f"{answer.text[-80:]!r}, cut off", expected=f"an end within {probe.max_tokens} tokens"
        )
    if probe.kind == "tool":
        _check_call(asked, probe, answer)
        return
    if answer.finish != "stop":
        raise WrongAnswer(asked, got=f"finish reason {answer.finish!r}", expected="'stop'")
    if probe.kind == "thinking":
        _check_reasoning(asked, probe, answer)
    _check_words(asked, probe, answer)


def _check_words(asked: str, probe: Probe, answer: Answer) -> None:
    missing = [word for word in probe.words if not holds(word, answer.text)]
    if missing or answer.calls:
        raise WrongText(asked, got=repr(answer.text[:200]), expected=f"the words {list(probe.words)}")
    if len(answer.text.split()) > probe.max_words:
        raise WrongText(asked, got=f"{len(answer.text.split())} words", expected=f"at most {probe.max_words}")


def _check_reasoning(asked: str, probe: Probe, answer: Answer) -> None:
    missing = [word for word in probe.reasoning if not holds(word, answer.reasoning)]
    if missing or not answer.reasoning.strip():
        wanted = f"thinking with the words {list(probe.reasoning)}"
        raise NoThinking(f"thinking before the {asked}", got=repr(answer.reasoning[:200]), expected=wanted)


def _check_call(asked: str, probe: Probe, answer: Answer) -> None:
    wanted: dict[str, Any] = dict(probe.call)
    if answer.finish != "tool_calls" or len(answer.calls) != 1:
        got = f"{len(answer.calls)} tool calls, finish reason {answer.finish!r}, text {answer.text[:80]!r}"
        raise WrongCall(asked, got=got, expected="one tool call, 'tool_calls'")
    name, arguments = answer.calls[0]
    if name != wanted["name"]:
        raise WrongCall(f"tool called for {probe.ask!r}", got=repr(name), expected=repr(wanted["name"]))
    try:
        parsed = json.loads(arguments)
    except ValueError:
        raise WrongCall(f"arguments for {probe.ask!r}", got=repr(arguments), expected="JSON") from None
    if parsed != wanted["arguments"]:
        raise WrongCall(f"arguments for {probe.ask!r}", got=parsed, expected=wanted["arguments"])
