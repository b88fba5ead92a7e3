"""Numbers of a repeat and of a cell, from what the load client measured. Every figure's definition is here.

Pure: knows no server and no verdict. The definitions of TTFT and TPOT are in `stream`. Imported by the sweep.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.support.load.stream import Answer
from tests.support.load.watch import Metrics, most_running, most_waiting
from tests.support.stats import cv

if TYPE_CHECKING:
    from tests.support.load.client import Measured  # which brings aiohttp; the gate reads figures without it

HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"


def tok_per_s(answers: Sequence[Answer]) -> float | None:
    """All output tokens / (first request sent -> last response ended), in tokens a second."""
    counts = [answer.completion_tokens for answer in answers]
    if not counts or None in counts:
        return None
    elapsed_s = max(answer.ended_s for answer in answers) - min(answer.sent_s for answer in answers)
    return sum(count for count in counts if count) / elapsed_s if elapsed_s > 0 else None


def steady_tok_per_s(answers: Sequence[Answer], concurrency: int) -> float | None:
    """Tokens a second while every slot was streaming or being refilled.

    From the moment the first `concurrency` requests all stream to the moment the first slot stays empty:
    the start, and the tail in which the last answers run alone, are left out. None where there is no
    such time.
    """
    if len(answers) < concurrency or not all(answer.token_stamps_s for answer in answers):
        return None
    begin_s = max(answer.token_stamps_s[0] for answer in answers[:concurrency])
    last_sent_s = max(answer.sent_s for answer in answers)
    end_s = min(answer.ended_s for answer in answers if answer.ended_s > last_sent_s)
    if end_s <= begin_s:
        return None
    tokens = sum(answer.tokens_by(end_s) - answer.tokens_by(begin_s) for answer in answers)
    return tokens / (end_s - begin_s)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known and len(known) == len(values) else None


def grown(before: Metrics, after: Metrics, name: str) -> float | None:
    """By how much a counter grew; None where the server does not count it."""
    return after[name] - before[name] if name in before and name in after else None


def prefix_hit_share(before: Metrics, after: Metrics) -> float | None:
    """Prompt tokens that the prefix cache served, over all it was asked for; None where it is not counted."""
    hits, queries = grown(before, after, HITS), grown(before, after, QUERIES)
    if hits is None or queries is None:
        return None
    return hits / queries if queries else 0.0


def repeat_numbers(measured: "Measured") -> dict[str, Any]:
    """One repeat of a cell as numbers: seconds, tokens a second, shares; None where there is no figure."""
    answers, client = measured.answers, measured.client
    return {
        "tok_per_s": tok_per_s(answers),
        "steady_tok_per_s": steady_tok_per_s(answers, measured.cell.concurrency),
        "ttft_s": _median([answer.ttft_s for answer in answers]),
        "tpot_s": _median([answer.tpot_s for answer in answers]),
        "longest_gap_s": max((answer.longest_gap_s for answer in answers), default=None),
        "requests": len(answers),
        "output_tokens": sum(answer.completion_tokens or 0 for answer in answers),
        "client_cpu_share": client.cpu_share,
        "lag_p99_s": client.lag_p99_s,
        "prefix_hit_share": prefix_hit_share(measured.before, measured.after),
        "most_running": most_running(measured.samples),
        "most_waiting": most_waiting(measured.samples),
    }


def cell_numbers(repeats: Sequence[Mapping[str, Any]], bf16_tok_per_s: float | None) -> dict[str, Any]:
    """A cell from its repeats: medians, the worst of what the client and the cache did, and every repeat.

    Parameters
    ----------
    repeats
        As `repeat_numbers` gave them, with ``advisory``, what the checks said without failing.
    bf16_tok_per_s
        Output of the same cell of bf16 in the same run; None where it was not measured.
    """
    output = [repeat["tok_per_s"] for repeat in repeats]
    middle = {name: median(repeat[name] for repeat in repeats) for name in MEDIANS}
    worst = {name: max(repeat[name] for repeat in repeats) for name in WORST}
    return {
        **middle,
        **worst,
        "cv": cv(output),
        "ratio_bf16": middle["tok_per_s"] / bf16_tok_per_s if bf16_tok_per_s else None,
        "requests": sum(repeat["requests"] for repeat in repeats),
        "repeats": [dict(repeat) for repeat in repeats],
        "advisory": _one_of_each_kind(text for repeat in repeats for text in repeat["advisory"]),
    }


def _one_of_each_kind(texts: Iterable[str]) -> list[str]:
    return list({text.split(":", 1)[0]: text for text in texts}.values())


MEDIANS = ("tok_per_s", "steady_tok_per_s", "ttft_s", "tpot_s")
WORST = ("client_cpu_share", "lag_p99_s", "prefix_hit_share")


def request_rows(measured: "Measured") -> list[dict[str, Any]]:
    """One row a request, times in seconds since the first was sent."""
    begun_s = min((answer.sent_s for answer in measured.answers), default=0.0)
    return [
        {
            "request": index,
            "sent_s": answer.sent_s - begun_s,
            "ended_s": answer.ended_s - begun_s,
            "ttft_s": answer.ttft_s,
            "tpot_s": answer.tpot_s,
            "longest_gap_s": answer.longest_gap_s,
            "prompt_tokens": answer.prompt_tokens,
            "output_tokens": answer.completion_tokens,
            "chunks": answer.chunks,
            "finish_reason": answer.finish_reason,
            "error": answer.problem(measured.cell.prompt_tokens, measured.cell.output_tokens),
        }
        for index, answer in enumerate(measured.answers)
    ]
