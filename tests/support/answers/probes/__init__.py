"""Questions of known answer, read from one data file per model, and the file that a model gets.

Knows no server: `checkers` judges answers, `asking` asks. Imported by the serving suite and the judge's tests.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantkit.errors import QuantkitError

FOLDER = Path(__file__).parent
KINDS = ("text", "thinking", "tool", "tool result")
BOUNDED = frozenset({"mean_abs_dlogprob", "kl", "top1_agreement"})


class BadProbes(QuantkitError):
    """A file of questions is wrong, or there is none for a model."""


@dataclass(frozen=True)
class Probe:
    """One question and its right answer; the folder's README says what each key means."""

    kind: str
    ask: str
    words: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    call: Mapping[str, Any] = field(default_factory=dict)
    result: str = ""
    max_words: int = 40
    max_tokens: int = 256

    def messages(self) -> list[dict[str, Any]]:
        """The turns before the answer, as an OpenAI client sends them."""
        turns: list[dict[str, Any]] = [{"role": "user", "content": self.ask}]
        if not self.result:
            return turns
        call = {"id": "call_1", "type": "function", "function": function_call(self.call)}
        turns.append({"role": "assistant", "content": "", "tool_calls": [call]})
        return [*turns, {"role": "tool", "tool_call_id": "call_1", "content": self.result}]


@dataclass(frozen=True)
class Probes:
    """The questions for one model, and the tools that it may call."""

    path: Path
    match: Mapping[str, Any]
    tools: tuple[Mapping[str, Any], ...]
    questions: tuple[Probe, ...]
    sequences: tuple[str, ...]
    bounds: Mapping[str, Mapping[str, float]]

    def of(self, kind: str) -> tuple[Probe, ...]:
        """The questions of one kind, in the file's order."""
        return tuple(probe for probe in self.questions if probe.kind == kind)


def function_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call as OpenAI writes it: arguments are a string of JSON."""
    return {"name": call["name"], "arguments": json.dumps(call["arguments"])}


def read_probes(path: Path) -> Probes:
    """The questions of one file.

    Raises
    ------
    BadProbes
        For an unknown key or kind, and for a kind without a question.
    """
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    match, tools = content.pop("match", {}), content.pop("tools", {})
    sequences, bounds = tuple(content.pop("sequences", ())), _bounds(path, content.pop("bounds", ()))
    if set(content) != set(KINDS):
        raise BadProbes(
            f"tables of {path.name}", got=sorted(content), expected=f"one of each of {list(KINDS)}"
        )
    questions = tuple(_probe(path, kind, entry) for kind in KINDS for entry in content[kind])
    functions = ({"type": "function", "function": {"name": name, **tool}} for name, tool in tools.items())
    return Probes(path, match, tuple(functions), questions, sequences, bounds)


def _bounds(path: Path, entries: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Bounds by build; each table of the file names builds, some bounds, and the reason for them."""
    found: dict[str, dict[str, float]] = {}
    for entry in entries:
        figures = {name: value for name, value in entry.items() if name not in ("builds", "reason")}
        builds = entry.get("builds", ())
        if not builds or not entry.get("reason") or not figures or figures.keys() - BOUNDED:
            wanted = f"builds, reason, and bounds among {sorted(BOUNDED)}"
            raise BadProbes(f"a table of bounds in {path.name}", got=sorted(entry), expected=wanted)
        found |= dict.fromkeys(builds, figures)
    return found


def _probe(path: Path, kind: str, entry: Mapping[str, Any]) -> Probe:
    frozen: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
    }
    try:
        return Probe(kind, **frozen)
    except TypeError as wrong:
        raise BadProbes(f"a question of kind {kind!r} in {path.name}", got=wrong) from None


def probes_for(text_config: Mapping[str, Any], folder: Path = FOLDER) -> Probes:
    """The questions for a model: the file whose match table holds and names the most keys.

    Raises
    ------
    BadProbes
        Where none holds.
    """
    files = map(read_probes, sorted(folder.glob("*.toml")))
    fitting = [file for file in files if file.match.items() <= text_config.items()]
    if not fitting:
        raise BadProbes(
            "questions for this model", got="none that match its config", expected=f"a file in {folder}"
        )
    return max(fitting, key=lambda file: len(file.match))
