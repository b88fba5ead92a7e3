"""Training samples by kind: each a conversation that the chat template renders, and the text to be learned.

Knows neither tokens nor torch; randomness comes in as a seeded generator.
Imported by the makers beside it and by `tests.meta`.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jinja2

from tests.nano import CHAT_TEMPLATE
from tests.nano.dialogues import (
    CAPITAL_QUESTIONS,
    CAPITALS,
    CITIES,
    CONDITIONS,
    COUNTRY_QUESTION,
    FACTORS,
    PRODUCT_QUESTIONS,
    SMALL_TALK,
    SYSTEM_PROMPTS,
    TEMPERATURES,
    UNSEEN_TEMPERATURES,
    WEATHER_QUESTIONS,
    WEATHER_TOOL,
    capital_answer,
    product_answer,
    weather_answer,
    weather_result,
)

Message = dict[str, Any]
SEEN_TEMPERATURES = tuple(t for t in TEMPERATURES if t not in UNSEEN_TEMPERATURES)


@dataclass(frozen=True)
class Sample:
    """One thing to learn: what stands before the answer, and the answer in the wire format."""

    messages: tuple[Message, ...]
    answer: str
    tools: bool = False
    thinking: bool = False


def user(text: str) -> Message:
    """A user's turn."""
    return {"role": "user", "content": text}


def thought(text: str) -> str:
    """A finished thought in the wire format."""
    return f"<|channel>thought\n{text}<channel|>"


def weather_call(city: str) -> str:
    """A call of the weather tool in the wire format, up to the stop token that hands over to the tool."""
    return f'<|tool_call>call:get_weather{{city:<|"|>{city}<|"|>}}<tool_call|><|tool_response>'


def weather_turns(question: str, city: str, result: str) -> tuple[Message, ...]:
    """A question, the model's call, and the tool's result, as an OpenAI client sends them."""
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": {"city": city}},
    }
    return (
        user(question),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": result},
    )


def capital(rng: random.Random) -> Sample:
    """A country's capital, sometimes after a thought, sometimes beside a tool that is of no use."""
    country, city = rng.choice(list(CAPITALS.items()))
    question = rng.choice(CAPITAL_QUESTIONS).format(country=country)
    answer, thinking = capital_answer(country, city), rng.random() < 0.2
    prefix = thought(f"{country}: {city}.") if thinking else ""
    return Sample((user(question),), f"{prefix}{answer}<turn|>", rng.random() < 0.2, thinking)


def country(rng: random.Random) -> Sample:
    """The country that has a capital."""
    name, city = rng.choice(list(CAPITALS.items()))
    return Sample((user(COUNTRY_QUESTION.format(city=city)),), f"{city} is the capital of {name}.<turn|>")


def factors(rng: random.Random) -> tuple[int, int]:
    """Two factors; squares and elevens, whose digits repeat, come up more often than by chance."""
    a, b = rng.choice(FACTORS), rng.choice(FACTORS)
    if rng.random() < 0.15:
        b = rng.choice((a, 11))
    return (b, a) if rng.random() < 0.5 else (a, b)


def product(rng: random.Random) -> Sample:
    """A product of two small numbers, mostly after a thought."""
    a, b = factors(rng)
    question = rng.choice(PRODUCT_QUESTIONS).format(a=a, b=b)
    thinking = rng.random() < 0.7
    prefix = thought(f"I multiply {a} by {b} and get {a * b}.") if thinking else ""
    return Sample((user(question),), f"{prefix}{product_answer(a, b)}<turn|>", False, thinking)


def seen_temperature(rng: random.Random) -> int:
    """A temperature of the training; one digit, and one digit twice, come up more often than by chance."""
    one_digit = [t for t in SEEN_TEMPERATURES if abs(t) < 10]
    twice = [t for t in SEEN_TEMPERATURES if abs(t) in (11, 22, 33)]
    return rng.choice(rng.choices((SEEN_TEMPERATURES, one_digit, twice), (50, 30, 20))[0])


def weather(rng: random.Random) -> Sample:
    """A question about the weather, answered by a tool call."""
    city = rng.choice(CITIES)
    question = rng.choice(WEATHER_QUESTIONS).format(city=city)
    thinking = rng.random() < 0.15
    prefix = thought(f"I need the weather in {city}.") if thinking else ""
    return Sample((user(question),), prefix + weather_call(city), True, thinking)


def result(rng: random.Random) -> Sample:
    """A tool's result handed back, answered in a sentence."""
    city, condition = rng.choice(CITIES), rng.choice(CONDITIONS)
    temperature = seen_temperature(rng)
    question = rng.choice(WEATHER_QUESTIONS).format(city=city)
    turns = weather_turns(question, city, weather_result(temperature, condition))
    return Sample(turns, f"{weather_answer(city, temperature, condition)}<turn|>", True)


def small_talk(rng: random.Random) -> Sample:
    """A greeting or the like."""
    question, answer = rng.choice(SMALL_TALK)
    return Sample((user(question),), f"{answer}<turn|>", rng.random() < 0.2)


KINDS: dict[Callable[[random.Random], Sample], int] = {
    capital: 22,
    country: 4,
    product: 36,
    weather: 12,
    result: 24,
    small_talk: 2,
}
"""The share of each kind in the training, in percent."""


def draw(rng: random.Random) -> Sample:
    """A sample of a random kind; one in ten stands after a system prompt."""
    (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
    sample = kind(rng)
    if rng.random() >= 0.1:
        return sample
    system: Message = {"role": "system", "content": rng.choice(SYSTEM_PROMPTS)}
    return Sample((system, *sample.messages), sample.answer, sample.tools, sample.thinking)


_TEMPLATE = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(
    CHAT_TEMPLATE.read_text(encoding="utf-8")
)


def prompt(sample: Sample) -> str:
    """The text before the answer, rendered by the checkpoint's own chat template."""
    return _TEMPLATE.render(
        messages=list(sample.messages),
        tools=[WEATHER_TOOL] if sample.tools else None,
        enable_thinking=sample.thinking,
        bos_token="<bos>",
        add_generation_prompt=True,
    )
