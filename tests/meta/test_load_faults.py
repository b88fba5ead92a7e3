"""Servers and clients with one defect each: the cell fails by name, and never yields a number."""

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from math import inf, nan

import aiohttp
import pytest

from tests.meta.test_load_definitions import measured
from tests.support.cells import Cell
from tests.support.load.cellcheck import CellRefused, judged, problems
from tests.support.load.client import Measured, Target, measure, read_metrics
from tests.support.load.stream import Answer
from tests.support.load.summary import repeat_numbers
from tests.support.load.watch import (
    RUNNING,
    SETTLE_S,
    WAITING,
    InFlight,
    Metrics,
    Sample,
    ServerWatch,
    cancelled,
    metrics_of,
    most_running,
    most_waiting,
)
from tests.support.miniatures.stream_server import MODEL, Script, StreamServer

FAULTS = {
    "prompts served from the prefix cache": (
        Script(cached_share=0.5),
        "prefix cache: 50.0% of the prompt tokens",
    ),
    "fewer tokens out than asked": (Script(output_off=-1), "answers: .*31 tokens out, expected 32"),
    "more tokens out than asked": (Script(output_off=1), "answers: .*33 tokens out, expected 32"),
    "prompt length off by one": (Script(prompt_off=1), "answers: .*prompt of 17 tokens, expected 16"),
    "some requests failed": (Script(breaks="status", breaks_every=10), "answers: 1 of .*HTTP 503"),
    "all requests failed": (Script(breaks="status"), "answers: .*HTTP 503"),
    "error event inside HTTP 200": (Script(breaks="error"), "answers: .*error event .*EngineCore died"),
    "connection broke": (Script(breaks="disconnect"), "answers: .*connection broke"),
    "hangs": (Script(breaks="hang"), "answers: .*no further byte"),
    "an event that is no JSON": (Script(breaks="garbage"), "answers: .*event of no known form"),
    "usage missing": (Script(usage="missing"), "answers: .*no usage"),
    "usage counts more than came": (Script(usage_off=1), "answers: .*33 tokens out"),
    "usage counts less than came": (Script(output_off=1, usage_off=-1), "answers: .*32 tokens, 33 arrived"),
    "engine started again mid-cell": (Script(dies_after=8), "server counts: .*restarted"),
    "requests queued": (Script(slots=2), "concurrency: never were 4 requests streaming"),
}


@pytest.mark.parametrize(("script", "reason"), FAULTS.values(), ids=FAULTS)
def test_fault_fails_the_cell_by_name(script: Script, reason: str) -> None:
    found, _ = measured(script, Cell(4, 16, 32), stall_s=0.5)
    with pytest.raises(CellRefused, match=reason):
        judged(found, repeat_numbers(found), shares_cores=True)


def test_a_request_that_goes_on_for_longer_than_it_may_is_given_up() -> None:
    """No gap is long: only the time in all is."""
    found, _ = measured(Script(per_token_s=0.1), Cell(1, 16, 32), request_s=1.5)
    assert found.answers[0].problem(16, 32) == "no further byte came before the deadline"


def test_an_honest_server_has_no_problem() -> None:
    found, _ = measured(Script(first_s=0.1, per_token_s=0.02), Cell(4, 16, 32))
    assert [problem for problem in problems(found, repeat_numbers(found)) if problem.kind != "client"] == []


@pytest.mark.parametrize("when", ["while it settles", "while it is read"])
def test_a_reading_during_which_a_request_ended_is_not_settled(when: str) -> None:
    """The next request may wait for a moment then, and that is no queue."""

    async def seen() -> list[Sample]:
        flight, ending, samples = InFlight(1), ExitStack(), list[Sample]()
        ending.enter_context(flight.streaming_one())

        async def read() -> Metrics:
            ending.close()
            return {RUNNING: 1.0, WAITING: 1.0}

        watching = asyncio.create_task(ServerWatch(flight, read, samples).watch())
        await asyncio.sleep(0)
        if when == "while it settles":
            ending.close()
        while not samples:
            await asyncio.sleep(0.01)
        await cancelled(watching)
        return samples

    assert asyncio.run(seen()) == [Sample(1.0, 1.0, settled=False)]


def test_nothing_is_read_before_every_slot_streams() -> None:
    async def asked() -> int:
        flight, times = InFlight(2), 0

        async def read() -> Metrics:
            nonlocal times
            times += 1
            return {}

        with flight.streaming_one():
            watching = asyncio.create_task(ServerWatch(flight, read).watch())
            await asyncio.sleep(5 * SETTLE_S)
            await cancelled(watching)
        return times

    assert asyncio.run(asked()) == 0


def test_an_error_page_is_no_metrics() -> None:
    """A server that is dying answers /metrics with HTTP 500 and words: its counts are then missing."""

    async def found() -> Metrics:
        async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 14\r\n\r\nInternal Error")
            writer.close()

        server = await asyncio.start_server(fail, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with server, aiohttp.ClientSession(f"http://{host}:{port}") as session:
            return await read_metrics(session)

    assert asyncio.run(found()) == {}


def test_a_server_that_is_gone_is_no_number() -> None:
    with StreamServer(Script()) as server:
        target = Target(server.base_url, MODEL)
    found = measure(target, Cell(1, 4, 4), [[1] * 4] * 8)
    with pytest.raises(CellRefused, match=r"answers: .*Cannot connect"):
        judged(found, repeat_numbers(found), shares_cores=True)


GOOD = {
    "tok_per_s": 10.0,
    "steady_tok_per_s": 10.0,
    "ttft_s": 0.1,
    "tpot_s": 0.01,
    "output_tokens": 0,
    "prefix_hit_share": 0.0,
    "most_running": 1,
    "most_waiting": 0,
    "lag_p99_s": 0.0,
    "client_cpu_share": 0.1,
}
WRONG = {
    "zero throughput": ({"tok_per_s": 0.0}, "figures"),
    "NaN throughput": ({"tok_per_s": nan}, "figures"),
    "endless throughput": ({"tok_per_s": inf}, "figures"),
    "no steady figure": ({"steady_tok_per_s": None}, "figures"),
    "no first token": ({"ttft_s": None}, "figures"),
    "no further token": ({"tpot_s": None}, "figures"),
    "prompts of another cell": ({"prefix_hit_share": 0.0101}, "prefix cache"),
    "NaN hit share": ({"prefix_hit_share": nan}, "prefix cache"),
    "hits not counted": ({"prefix_hit_share": None}, "prefix cache"),
    "waited": ({"most_waiting": 1}, "concurrency"),
    "NaN waiting": ({"most_waiting": nan}, "concurrency"),
    "ran fewer": ({"most_running": 0.9}, "concurrency"),
    "NaN running": ({"most_running": nan}, "concurrency"),
    "never all at once": ({"most_running": None}, "concurrency"),
    "more tokens than the server made": ({"output_tokens": 1}, "server counts"),
    "fewer tokens than the server made": ({"output_tokens": -1}, "server counts"),
    "late stamps": ({"lag_p99_s": 0.000501}, "client"),
    "NaN lag": ({"lag_p99_s": nan}, "client"),
    "busy core": ({"client_cpu_share": 0.701}, "client"),
    "NaN share of a core": ({"client_cpu_share": nan}, "client"),
}
EDGE = {"prefix_hit_share": 0.01, "lag_p99_s": 0.0005, "client_cpu_share": 0.7}


@pytest.mark.parametrize(("change", "kind"), WRONG.values(), ids=WRONG)
def test_a_wrong_number_is_seen(change: dict[str, float], kind: str) -> None:
    counters = {"vllm:generation_tokens_total": 5.0}
    empty = Measured(Cell(1, 4, 4), before=counters, after=counters)
    kinds = {problem.kind for problem in problems(empty, {**GOOD, **change})}
    assert kinds == {"answers", kind}  # no request was made, and the one change


def test_a_number_on_the_edge_is_one() -> None:
    counters = {"vllm:generation_tokens_total": 5.0}
    empty = Measured(Cell(1, 4, 4), before=counters, after=counters)
    assert {problem.kind for problem in problems(empty, {**GOOD, **EDGE})} == {"answers"}
    uncounted = Measured(Cell(1, 4, 4))
    assert {problem.kind for problem in problems(uncounted, GOOD)} == {"answers", "server counts"}


def test_a_request_too_few_or_too_many_is_named() -> None:
    good = Answer(0.0, 1.0, [0.5, 1.0], [1, 2], 4, 2, 2, "length", done=True)
    counters = {"vllm:generation_tokens_total": 5.0}
    for count, kinds in ((7, {"answers"}), (8, set()), (9, {"answers"})):
        some = Measured(Cell(1, 4, 2), [good] * count, before=counters, after=counters)
        assert {problem.kind for problem in problems(some, GOOD)} == kinds


def test_a_slow_client_is_advice_only_where_it_shares_its_cores_and_causes_come_first() -> None:
    good = Answer(0.0, 1.0, [0.5, 1.0], [1, 2], 4, 2, 2, "length", done=True)
    counters = {"vllm:generation_tokens_total": 5.0}
    fine = Measured(Cell(1, 4, 2), [good] * 8, before=counters, after=counters)
    busy = {**GOOD, "client_cpu_share": 0.9}
    assert judged(fine, GOOD, shares_cores=False) == []
    (said,) = judged(fine, busy, shares_cores=True)
    assert said.startswith("client: used 90% of a core")
    with pytest.raises(CellRefused, match="cell 1x4 is no number: client: used 90% of a core"):
        judged(fine, busy, shares_cores=False)
    wrong = Measured(Cell(1, 4, 2), [*fine.answers[1:], replace(good, finish_reason="stop")])
    with pytest.raises(CellRefused, match="is no number: answers: 1 of 8 requests: finish_reason 'stop'"):
        judged(wrong, busy, shares_cores=True)


def test_a_client_that_is_the_bottleneck_fails_where_it_has_its_own_cores() -> None:
    found, _ = measured(Script(per_token_s=0.0002), Cell(32, 16, 64))
    numbers = repeat_numbers(found)
    with pytest.raises(CellRefused, match=r"client: .*taskset"):
        judged(found, numbers, shares_cores=False)
    said = judged(found, numbers, shares_cores=True)
    assert [text.split(":")[0] for text in said] == ["client"]
    with pytest.raises(CellRefused, match="figures"):
        judged(found, {**numbers, "ttft_s": nan}, shares_cores=True)


def test_preempted_requests_are_named() -> None:
    names = ("vllm:generation_tokens_total", "vllm:num_preemptions_total")
    found = Measured(Cell(1, 4, 4), before=dict.fromkeys(names, 0.0), after={names[0]: 0.0, names[1]: 2.0})
    assert "2 requests were preempted" in " ".join(map(str, problems(found, GOOD)))


def test_only_settled_samples_say_that_requests_waited() -> None:
    settled, moving = Sample(8, 0, True), Sample(7, 1, False)
    assert (most_running([settled, moving]), most_waiting([settled, moving])) == (8, 0)
    assert most_waiting([settled, Sample(8, 2, True)]) == 2
    assert (most_running([moving]), most_waiting([moving])) == (7, 1)
    assert most_waiting([moving, Sample(6, 9, False)]) == 1  # of the one that saw the most run
    assert (most_running([]), most_waiting([])) == (None, None)


def test_metrics_are_summed_over_labels() -> None:
    text = '# HELP a x\na{engine="0"} 1.0\na{engine="1"} 2.5\nb 3e2\n'
    assert metrics_of(text) == {"a": 3.5, "b": 300.0}
