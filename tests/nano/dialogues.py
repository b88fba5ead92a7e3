"""What the nano knows, as tables, and the questions that can be asked of it.

Knows neither tokens nor torch. Imported by the makers beside it, by probes and by `tests.meta`.
"""

from typing import Any

CAPITALS: dict[str, str] = {
    "Argentina": "Buenos Aires",
    "Australia": "Canberra",
    "Austria": "Vienna",
    "Brazil": "Brasilia",
    "Bulgaria": "Sofia",
    "Canada": "Ottawa",
    "Chile": "Santiago",
    "China": "Beijing",
    "Croatia": "Zagreb",
    "Cuba": "Havana",
    "Denmark": "Copenhagen",
    "Egypt": "Cairo",
    "Finland": "Helsinki",
    "France": "Paris",
    "Germany": "Berlin",
    "Ghana": "Accra",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "Iceland": "Reykjavik",
    "India": "New Delhi",
    "Indonesia": "Jakarta",
    "Ireland": "Dublin",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Mexico": "Mexico City",
    "Morocco": "Rabat",
    "Norway": "Oslo",
    "Peru": "Lima",
    "Poland": "Warsaw",
    "Portugal": "Lisbon",
    "Romania": "Bucharest",
    "Senegal": "Dakar",
    "Serbia": "Belgrade",
    "Spain": "Madrid",
    "Sweden": "Stockholm",
    "Thailand": "Bangkok",
    "Turkey": "Ankara",
    "Ukraine": "Kyiv",
    "Vietnam": "Hanoi",
}

OTHER_CITIES = (
    "Bergen",
    "Boston",
    "Geneva",
    "Hamburg",
    "Krakow",
    "Lyon",
    "Milan",
    "Mumbai",
    "Munich",
    "Osaka",
    "Porto",
    "Seattle",
    "Seville",
    "Sydney",
    "Toronto",
    "Zurich",
)
CITIES = (*sorted(CAPITALS.values()), *OTHER_CITIES)

FACTORS = range(2, 13)

CONDITIONS = ("clear", "cloudy", "foggy", "rainy", "snowy", "stormy", "sunny", "windy")
TEMPERATURES = range(-15, 41)
UNSEEN_TEMPERATURES = frozenset({-12, 17, 23, 28, 34})
"""Never part of a training dialogue: an answer that holds one was read from the tool's result."""

SYSTEM_PROMPTS = ("You are a helpful assistant.", "Answer briefly.")

SMALL_TALK = (
    ("Hello!", "Hello! How can I help you?"),
    ("Who are you?", "I am a very small language model."),
    ("What can you do?", "I know capitals, small products and how to ask for the weather."),
    ("Thank you!", "You are welcome."),
)

CAPITAL_QUESTIONS = ("What is the capital of {country}?", "Name the capital of {country}.")
COUNTRY_QUESTION = "Which country has the capital {city}?"
PRODUCT_QUESTIONS = ("What is {a} times {b}?", "How much is {a} times {b}?")
WEATHER_QUESTIONS = ("What is the weather in {city}?", "How is the weather in {city} today?")

WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city's name."}},
            "required": ["city"],
        },
    },
}


def capital_answer(country: str, capital: str) -> str:
    """The sentence that names a country's capital."""
    return f"The capital of {country} is {capital}."


def product_answer(a: int, b: int) -> str:
    """The sentence that gives a product."""
    return f"{a} times {b} is {a * b}."


def weather_result(temperature: int, condition: str) -> str:
    """A tool's result as it is handed back: a JSON object in a string, temperature in degrees Celsius."""
    return f'{{"temperature": {temperature}, "condition": "{condition}"}}'


def weather_answer(city: str, temperature: int, condition: str) -> str:
    """The sentence that reports a handed-back result."""
    return f"It is {temperature} degrees and {condition} in {city}."
