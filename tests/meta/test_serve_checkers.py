"""What is a right answer and what is not, case by case, without a server: each way to be wrong is its own error."""

import pytest

from tests.support.answers.checkers import (
    Answer,
    CutOff,
    NoThinking,
    WrongAnswer,
    WrongCall,
    WrongText,
    check,
)
from tests.support.answers.probes import Probe

TEXT = Probe("text", "What is the capital of Norway?", words=("Oslo",), max_words=6)
EITHER = Probe("text", "What is the weather?", words=("fog|foggy", "17"))
THOUGHT = Probe("thinking", "What is 7 times 8?", reasoning=("7", "56"), words=("56",))
FREE = Probe("thinking", "What is 7 times 8?", words=("56",))
CALL = Probe("tool", "Weather in Lima?", call={"name": "get_weather", "arguments": {"city": "Lima"}})
USED = Probe("tool result", "Weather in Oslo?", words=("17",), result='{"temperature": 17}')
LIMA = ("get_weather", '{"city": "Lima"}')

RIGHT = (
    (TEXT, Answer("The capital is OSLO.", finish="stop")),
    (TEXT, Answer("The capital of Norway is Oslo.", finish="stop")),
    (EITHER, Answer("17 degrees, foggy", finish="stop")),
    (EITHER, Answer("fog at 17", finish="stop")),
    (THOUGHT, Answer("56", "7 times 8 is 56", finish="stop")),
    (FREE, Answer("56", "hm", finish="stop")),
    (CALL, Answer(calls=(("get_weather", '{ "city":"Lima" }'),), finish="tool_calls")),
    (USED, Answer("It is 17.", finish="stop")),
)
WRONG = (
    (TEXT, Answer("The capital is Accra.", finish="stop"), WrongText),
    (TEXT, Answer("Oslofjord", finish="stop"), WrongText),
    (TEXT, Answer("Newoslo", finish="stop"), WrongText),
    (TEXT, Answer("The capital of Norway is Oslo. Accra", finish="stop"), WrongText),
    (TEXT, Answer("Oslo", calls=(LIMA,), finish="stop"), WrongText),
    (TEXT, Answer("Oslo", finish="length"), CutOff),
    (TEXT, Answer("Oslo", finish="tool_calls"), WrongAnswer),
    (TEXT, Answer("Oslo"), WrongAnswer),
    (EITHER, Answer("17 degrees, sunny", finish="stop"), WrongText),
    (THOUGHT, Answer("56", "", finish="stop"), NoThinking),
    (THOUGHT, Answer("56", "the capital of Norway", finish="stop"), NoThinking),
    (THOUGHT, Answer("54", "7 times 8 is 56", finish="stop"), WrongText),
    (FREE, Answer("56", " \n", finish="stop"), NoThinking),
    (CALL, Answer("get_weather(Lima)", finish="stop"), WrongCall),
    (CALL, Answer(finish="tool_calls"), WrongCall),
    (CALL, Answer(calls=(LIMA,), finish="stop"), WrongCall),
    (CALL, Answer(calls=(LIMA, LIMA), finish="tool_calls"), WrongCall),
    (CALL, Answer(calls=(("get_time", '{"city": "Lima"}'),), finish="tool_calls"), WrongCall),
    (CALL, Answer(calls=(("get_weather", '{"city": "Rome"}'),), finish="tool_calls"), WrongCall),
    (CALL, Answer(calls=(("get_weather", '{"city": "Lima", "day": 1}'),), finish="tool_calls"), WrongCall),
    (CALL, Answer(calls=(("get_weather", "city: Lima"),), finish="tool_calls"), WrongCall),
    (CALL, Answer(calls=(LIMA,), finish="length"), CutOff),
    (USED, Answer("It is sunny.", finish="stop"), WrongText),
)


@pytest.mark.parametrize(("probe", "answer"), RIGHT)
def test_right(probe: Probe, answer: Answer) -> None:
    """No check alarms where nothing is wrong."""
    check(probe, answer)


@pytest.mark.parametrize(("probe", "answer", "error"), WRONG)
def test_wrong(probe: Probe, answer: Answer, error: type[Exception]) -> None:
    """Not merely an error, but the one that says what is wrong."""
    with pytest.raises(WrongAnswer) as caught:
        check(probe, answer)
    assert type(caught.value) is error
