"""Each build still answers, and right: text, thinking, tool calls and their results; an image it refuses."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.answers.asking import ask, ask_streaming, image_refusal
from tests.support.answers.checkers import Answer, check
from tests.support.answers.probes import Probe, Probes
from tests.support.plugins.serving import Server
from tests.support.settings import Boot

if TYPE_CHECKING:
    from openai import OpenAI

pytestmark = pytest.mark.xdist_group("engine")
Ask = Callable[["OpenAI", Probe, Probes, str], Answer]


def keep(row: dict[str, Any], probe: Probe, answer: Answer) -> None:
    """Put a question and what was answered into the row, wrong answers too."""
    calls = [f"{name}({arguments})" for name, arguments in answer.calls]
    said = {
        "prompt": probe.ask,
        "answer": answer.text,
        "reasoning": answer.reasoning,
        "tool_call": " ".join(calls),
    }
    for name, text in said.items():
        if text:
            row.setdefault(name, []).append(text)


def ask_all(
    client: "OpenAI", server: Server, probes: Probes, kind: str, row: dict[str, Any], how: Ask = ask
) -> None:
    """Ask every question of a kind; the first wrong answer is the error, after all were asked."""
    asked = []
    for probe in probes.of(kind):
        answer = how(client, probe, probes, server.model)
        keep(row, probe, answer)
        asked.append((probe, answer))
    for probe, answer in asked:
        check(probe, answer)


@pytest.mark.row("text")
def test_text(boot: Boot, client: "OpenAI", server: Server, probes: Probes, row: dict[str, Any]) -> None:
    """Questions are answered with the right words."""
    ask_all(client, server, probes, "text", row)


@pytest.mark.row("text streamed")
def test_streamed(boot: Boot, client: "OpenAI", server: Server, probes: Probes, row: dict[str, Any]) -> None:
    """The same questions, answered in a stream."""
    ask_all(client, server, probes, "text", row, ask_streaming)


@pytest.mark.row("thinking")
def test_thinking(boot: Boot, client: "OpenAI", server: Server, probes: Probes, row: dict[str, Any]) -> None:
    """Thinking is there, and the answer after it is right."""
    ask_all(client, server, probes, "thinking", row)


@pytest.mark.row("tool")
def test_tool(boot: Boot, client: "OpenAI", server: Server, probes: Probes, row: dict[str, Any]) -> None:
    """The right tool is called with the right arguments."""
    ask_all(client, server, probes, "tool", row)


@pytest.mark.row("tool result")
def test_tool_result(
    boot: Boot, client: "OpenAI", server: Server, probes: Probes, row: dict[str, Any]
) -> None:
    """A tool's result is used in the answer."""
    ask_all(client, server, probes, "tool result", row)


@pytest.mark.row("image refused")
def test_image_refused(boot: Boot, client: "OpenAI", server: Server, row: dict[str, Any]) -> None:
    """A build without towers refuses an image with HTTP 400."""
    row["answer"] = image_refusal(client, server.model)
