"""Asks a server the questions through the OpenAI client, temperature 0, and gives back what came.

Knows the wire, judges nothing: `checkers` does. Imported by the serving suite and the judge's tests.
"""

from typing import TYPE_CHECKING, Any

from quantkit.errors import QuantkitError
from tests.support.answers.checkers import Answer, WrongAnswer
from tests.support.answers.probes import Probe, Probes

if TYPE_CHECKING:
    from openai import OpenAI

# One grey pixel: what is sent does not matter where it must be refused.
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5E"
    "rkJggg=="
)


class RequestFailed(QuantkitError):
    """No answer at all: the request was refused, or the connection broke."""


class StreamBroken(RequestFailed):
    """A stream that began well carried an error, or ended without an end."""


class ImageAccepted(WrongAnswer):
    """A build without towers took an image, or refused it in a way that is no refusal."""


def _arguments(probe: Probe, probes: Probes, model: str) -> dict[str, Any]:
    tools = list(probes.tools) if probe.kind in ("tool", "tool result") else None
    return {
        "model": model,
        "messages": probe.messages(),
        "temperature": 0,
        "max_tokens": probe.max_tokens,
        **({"tools": tools} if tools else {}),
        "extra_body": {"chat_template_kwargs": {"enable_thinking": probe.kind == "thinking"}},
    }


def _reasoning(message: Any) -> str:
    """The thinking, under either of the two names that vLLM has given it."""
    return getattr(message, "reasoning", None) or getattr(message, "reasoning_content", None) or ""


def ask(client: "OpenAI", probe: Probe, probes: Probes, model: str) -> Answer:
    """The answer to a question.

    Raises
    ------
    RequestFailed
        Where none came.
    """
    from openai import OpenAIError

    try:
        response = client.chat.completions.create(**_arguments(probe, probes, model))
    except OpenAIError as failed:
        raise RequestFailed(f"asking {probe.ask!r}", got=failed) from failed
    if not response.choices:
        raise RequestFailed(f"asking {probe.ask!r}", got="no choice", expected="one")
    choice = response.choices[0]
    calls = tuple((call.function.name, call.function.arguments) for call in choice.message.tool_calls or ())
    return Answer(choice.message.content or "", _reasoning(choice.message), calls, choice.finish_reason or "")


def ask_streaming(client: "OpenAI", probe: Probe, probes: Probes, model: str) -> Answer:
    """The answer to a question that calls no tool, put together from a stream.

    Raises
    ------
    StreamBroken
        Where an error came in the stream, or no finish reason.
    """
    from openai import OpenAIError

    text, reasoning, finish = "", "", ""
    try:
        for chunk in client.chat.completions.create(stream=True, **_arguments(probe, probes, model)):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasoning += _reasoning(choice.delta)
                finish = choice.finish_reason or finish
    except OpenAIError as failed:
        raise StreamBroken(f"streaming the answer to {probe.ask!r}", got=failed) from failed
    if not finish:
        raise StreamBroken(f"streaming the answer to {probe.ask!r}", got="an end without a finish reason")
    return Answer(text, reasoning, (), finish)


def image_refusal(client: "OpenAI", model: str) -> str:
    """The server's words when it refuses an image, as it must.

    Raises
    ------
    ImageAccepted
        Where it answers, or fails in another way than with HTTP 400.
    """
    from openai import APIStatusError, BadRequestError, OpenAIError

    image = {"type": "image_url", "image_url": {"url": PIXEL}}
    content = [{"type": "text", "text": "What is this?"}, image]
    messages: Any = [{"role": "user", "content": content}]
    try:
        response = client.chat.completions.create(model=model, messages=messages, max_tokens=8)
    except BadRequestError as refused:
        return str(refused)
    except APIStatusError as failed:
        raise ImageAccepted(
            "an image", got=f"HTTP {failed.status_code}: {failed}", expected="HTTP 400"
        ) from failed
    except OpenAIError as failed:
        raise RequestFailed("sending an image", got=failed) from failed
    said = response.choices[0].message.content if response.choices else None
    raise ImageAccepted(
        "an image, sent to a build without towers", got=f"an answer: {said!r}", expected="HTTP 400"
    )
