"""One answer, one reading of the server and one repeat, each made by hand: what is kept, and what is no answer."""

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import replace
from math import isnan
from typing import Any

import pytest

from tests.support.cells import Cell
from tests.support.load.client import Measured
from tests.support.load.stream import Answer, Recording
from tests.support.load.summary import HITS, QUERIES, prefix_hit_share, repeat_numbers, steady_tok_per_s
from tests.support.load.watch import (
    LAG_PERIOD_S,
    SAMPLE_PERIOD_S,
    SETTLE_S,
    ClientWatch,
    InFlight,
    Sample,
    ServerWatch,
    cancelled,
)

GOOD = Answer(0.0, 1.0, [0.5, 1.0], [1, 2], 4, 2, 2, "length", done=True)
PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({}, ""),
    "an error": ({"error": "HTTP 503", "done": False}, "HTTP 503"),
    "cut off": ({"done": False}, "stream ended without [DONE]"),
    "no usage": ({"completion_tokens": None}, "no usage"),
    "a shorter prompt": ({"prompt_tokens": 3}, "prompt of 3 tokens, expected 4"),
    "a longer prompt": ({"prompt_tokens": 5}, "prompt of 5 tokens, expected 4"),
    "a token less": ({"completion_tokens": 1}, "1 tokens out, expected 2"),
    "a token more": ({"completion_tokens": 3}, "3 tokens out, expected 2"),
    "more came than are counted": ({"token_counts": [1, 3]}, "usage counts 2 tokens, 3 arrived"),
    "ended by a word": ({"finish_reason": "stop"}, "finish_reason 'stop', expected 'length'"),
}


@pytest.mark.parametrize(("change", "problem"), PROBLEMS.values(), ids=PROBLEMS)
def test_why_an_answer_is_not_the_one_planned(change: dict[str, Any], problem: str) -> None:
    assert replace(GOOD, **change).problem(4, 2) == problem


def event(text: str, made: int, **choice: Any) -> dict[str, Any]:
    """A chunk with the server's running count."""
    usage = {"prompt_tokens": 4, "completion_tokens": made}
    return {"choices": [{"text": text, **choice}], "usage": usage}


def answer_to(*events: object) -> Answer:
    """What these events say, one a second."""
    found = Answer()
    for second, each in enumerate(events, 1):
        found.take(each if isinstance(each, bytes) else json.dumps(each).encode(), float(second))
    return found


def test_a_token_comes_where_the_running_count_rises() -> None:
    closing = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}}
    last = event("", 3, finish_reason="length")
    found = answer_to(event("", 0), event("a", 1), event("b", 1), event("c", 3), last, closing, b"[DONE]")
    assert (found.token_stamps_s, found.token_counts) == ([2.0, 4.0], [1, 3])
    assert (found.prompt_tokens, found.completion_tokens, found.chunks) == (4, 3, 3)
    assert (found.finish_reason, found.done, found.error) == ("length", True, "")
    assert [found.tokens_by(at) for at in (1.9, 2.0, 3.9, 4.0, 9.0)] == [0, 1, 1, 3, 3]


def test_the_last_count_of_the_prompt_is_the_one() -> None:
    other = event("b", 2)
    other["usage"]["prompt_tokens"] = 5
    assert answer_to(event("a", 1), other).prompt_tokens == 5


BROKEN = (
    *(b"{broken", b"\xff", b"[1]", b"5", b"null", b'{"usage": {}}', b'{"choices": 3}', b'{"choices": ["a"]}'),
    *(
        b'{"choices": [{"delta": "a"}]}',
        b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": "x"}}',
    ),
)


@pytest.mark.parametrize("broken", BROKEN)
def test_the_first_error_is_the_one_that_is_told(broken: bytes) -> None:
    assert answer_to(broken, {"error": "later"}).error.startswith("event of no known form: b")
    assert answer_to({"error": "first"}, broken, {"error": "later"}).error.endswith("stream: first")


def test_counted_tokens_that_never_came_have_no_time() -> None:
    never = answer_to({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 9}})
    assert (never.completion_tokens, never.ttft_s, never.tpot_s, never.tokens_by(9.0)) == (9, None, None, 0)


def test_a_recording_knows_when_it_was_alive_and_whether_it_broke() -> None:
    error, word = b'data: {"error": "x"}\n\n', b": word\n\n"
    assert Recording(sent_s=3.0).last_s == 3.0
    assert Recording(3.0, pieces=[(4.0, word), (5.0, word)]).last_s == 5.0
    assert Recording(error="HTTP 503").looks_broken
    assert Recording(error="HTTP 503").answer().error == "HTTP 503"
    ends = [[error], [error, word, word], [error, word, word, word], [word]]
    assert [Recording(pieces=[(0.0, each) for each in end]).looks_broken for end in ends] == [
        True,
        True,
        False,
        False,
    ]


def test_every_slot_is_full_only_while_all_stream() -> None:
    flight = InFlight(2)
    with flight.streaming_one():
        assert (flight.streaming, flight.full.is_set()) == (1, False)
        with suppress(OSError), flight.streaming_one():
            assert (flight.streaming, flight.full.is_set()) == (2, True)
            raise OSError
        assert (flight.streaming, flight.ended, flight.full.is_set()) == (1, 1, False)
    assert (flight.streaming, flight.ended) == (0, 2)


def test_counts_that_the_server_lacks_are_no_numbers() -> None:
    async def seen() -> list[Sample]:
        flight, samples = InFlight(1), list[Sample]()

        async def read() -> dict[str, float]:
            return {}

        with flight.streaming_one():
            watching = asyncio.create_task(ServerWatch(flight, read, samples).watch())
            while not samples:
                await asyncio.sleep(0.01)
            await cancelled(watching)
        return samples

    (sample,) = asyncio.run(seen())
    assert (isnan(sample.running), isnan(sample.waiting), sample.settled) == (True, True, True)


def test_a_watcher_that_died_says_of_what() -> None:
    async def dies() -> None:
        raise OSError("no such counter")

    async def ended() -> None:
        task = asyncio.create_task(dies())
        await asyncio.sleep(0)
        await cancelled(task)

    with pytest.raises(OSError, match="no such counter"):
        asyncio.run(ended())


def test_lag_is_what_a_sleep_overran_and_cpu_this_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, sleep = [100.0], asyncio.sleep

    async def late(seconds: float) -> None:
        clock[0] += seconds + 0.25
        await sleep(0)

    async def watched() -> ClientWatch:
        watch = ClientWatch()
        watch.start()
        for _ in range(5):
            await sleep(0)
        await watch.stop()
        return watch

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(time, "thread_time", lambda: clock[0] / 4)
    monkeypatch.setattr(asyncio, "sleep", late)
    found = asyncio.run(watched())
    assert found.lags_s[:2] == pytest.approx([0.25, 0.25])
    assert found.wall_s == pytest.approx(len(found.lags_s) * (LAG_PERIOD_S + 0.25), abs=0.3)
    assert found.cpu_share == pytest.approx(0.25)


@pytest.mark.parametrize(("ends", "then_s"), [(False, SAMPLE_PERIOD_S), (True, SETTLE_S)])
def test_a_server_is_read_a_moment_after_its_slots_are_full_and_seldom(
    monkeypatch: pytest.MonkeyPatch, ends: bool, then_s: float
) -> None:
    """Its counts come just after the tokens; a reading that was not settled is soon taken again."""
    slept: list[float] = []
    sleep = asyncio.sleep

    async def at_once(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    async def watched() -> None:
        flight, samples = InFlight(1), list[Sample]()

        async def read() -> dict[str, float]:
            flight.ended += ends
            return {}

        with flight.streaming_one():
            watching = asyncio.create_task(ServerWatch(flight, read, samples).watch())
            while len(samples) < 2:
                await sleep(0)
            await cancelled(watching)

    monkeypatch.setattr(asyncio, "sleep", at_once)
    asyncio.run(watched())
    assert slept[:3] == [SETTLE_S, then_s, SETTLE_S]


SHARES = {
    "none asked for": ({HITS: 1.0, QUERIES: 5.0}, {HITS: 1.0, QUERIES: 5.0}, 0.0),
    "a quarter": ({HITS: 1.0, QUERIES: 5.0}, {HITS: 3.0, QUERIES: 13.0}, 0.25),
    "no hits counted": ({QUERIES: 5.0}, {QUERIES: 13.0}, None),
    "no queries counted": ({HITS: 1.0}, {HITS: 1.0}, None),
    "not counted before": ({}, {HITS: 1.0, QUERIES: 13.0}, None),
    "not counted after": ({HITS: 1.0, QUERIES: 13.0}, {}, None),
}


@pytest.mark.parametrize(("before", "after", "share"), SHARES.values(), ids=SHARES)
def test_prefix_hits_are_a_share_of_what_was_asked_for_since(
    before: dict[str, float], after: dict[str, float], share: float | None
) -> None:
    assert prefix_hit_share(before, after) == share


def test_a_repeat_is_the_median_of_its_requests() -> None:
    answers = [
        replace(GOOD, token_stamps_s=[ttft, ttft + tpot])
        for ttft, tpot in ((1.0, 2.0), (2.0, 1.0), (9.0, 3.0))
    ]
    found = repeat_numbers(Measured(Cell(1, 4, 2), answers, samples=[Sample(1.0, 3.0, settled=True)]))
    assert (found["ttft_s"], found["tpot_s"], found["longest_gap_s"]) == (2.0, 2.0, 3.0)
    assert (found["requests"], found["output_tokens"]) == (3, 6)
    assert (found["most_running"], found["most_waiting"]) == (1.0, 3.0)
    broken = repeat_numbers(Measured(Cell(1, 4, 2), [*answers, Answer()]))
    assert (broken["ttft_s"], broken["tpot_s"], broken["requests"]) == (None, None, 4)


def test_a_stream_that_began_when_it_ended_has_no_steady_time() -> None:
    assert steady_tok_per_s([replace(GOOD, token_stamps_s=[1.0, 1.0])], 1) is None
