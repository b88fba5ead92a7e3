"""Whether a repeat of a cell is a number at all: a table of checks, each of which can say why not.

Pure: judges what was measured, never how fast it was. Imported by the sweep and its judges.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from quantkit.errors import QuantkitError
from tests.support.load.summary import grown

if TYPE_CHECKING:
    from tests.support.load.client import Measured  # which brings aiohttp; the gate reads figures without it

PREFIX_HIT_LIMIT = 0.01  # chance hits of random prompts are far below; a shared prompt is far above
LAG_OVER_TPOT_LIMIT = 0.05  # a late stamp of 5 % of a token's time would show in TPOT
CPU_SHARE_LIMIT = 0.70  # above this a core has no room for a burst of events
GENERATED = "vllm:generation_tokens_total"
PREEMPTED = "vllm:num_preemptions_total"
FIGURES = ("tok_per_s", "steady_tok_per_s", "ttft_s", "tpot_s")

Numbers = Mapping[str, Any]


class CellRefused(QuantkitError):
    """What was measured is not a number for this cell: a precondition does not hold."""


@dataclass(frozen=True)
class Problem:
    """What is wrong, by name, and in a sentence."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def _answers(measured: "Measured", _: Numbers) -> str:
    wanted = measured.cell
    wrong = [
        problem
        for a in measured.answers
        if (problem := a.problem(wanted.prompt_tokens, wanted.output_tokens))
    ]
    if wrong:
        return f"{len(wrong)} of {len(measured.answers)} requests: {wrong[0]}"
    if len(measured.answers) != wanted.requests:
        return f"{len(measured.answers)} requests completed, expected {wanted.requests}"
    return ""


def _prefix_hits(_: "Measured", numbers: Numbers) -> str:
    share = numbers["prefix_hit_share"]
    if share is None:
        return "the server does not count prefix-cache hits"
    return (
        ""
        if share <= PREFIX_HIT_LIMIT
        else f"{share:.1%} of the prompt tokens, expected under {PREFIX_HIT_LIMIT:.0%}"
    )


def _concurrency(measured: "Measured", numbers: Numbers) -> str:
    running, waiting = numbers["most_running"], numbers["most_waiting"]
    if running is None:
        return f"never were {measured.cell.concurrency} requests streaming at once"
    if not running >= measured.cell.concurrency:
        return f"the server ran {running:g} at most, expected {measured.cell.concurrency}"
    return "" if waiting == 0 else f"{waiting:g} requests waited in the server while all should run"


def _server_counts(measured: "Measured", numbers: Numbers) -> str:
    made = grown(measured.before, measured.after, GENERATED)
    if made is None:
        return "the server's own count of tokens is missing: it died, or is another one"
    if made != numbers["output_tokens"]:
        counted = numbers["output_tokens"]
        return f"the server counts {made:g} tokens made, the answers {counted}: it was restarted, or shared"
    preempted = grown(measured.before, measured.after, PREEMPTED)
    return f"{preempted:g} requests were preempted: the KV cache is too small" if preempted else ""


def _figures(_: "Measured", numbers: Numbers) -> str:
    bad = [
        name
        for name in FIGURES
        if numbers[name] is None or not (isfinite(numbers[name]) and numbers[name] > 0)
    ]
    return "" if not bad else f"{bad[0]} is {numbers[bad[0]]}, expected a finite positive number"


def _client(_: "Measured", numbers: Numbers) -> str:
    lag, tpot, share = numbers["lag_p99_s"], numbers["tpot_s"], numbers["client_cpu_share"]
    if not share <= CPU_SHARE_LIMIT:
        return f"used {share:.0%} of a core, expected under {CPU_SHARE_LIMIT:.0%} {ADVICE}"
    if tpot is not None and not lag <= LAG_OVER_TPOT_LIMIT * tpot:
        limit = f"{LAG_OVER_TPOT_LIMIT:.0%} of TPOT ({tpot * 1e3:.3g} ms)"
        return f"lagged {lag * 1e3:.2g} ms at p99, over {limit} {ADVICE}"
    return ""


ADVICE = "(give the client cores of its own, for instance by taskset, or stop what else runs)"

# In the order in which causes come before their consequences: the first that speaks is the reason given.
CHECKS: tuple[tuple[str, Callable[["Measured", Numbers], str]], ...] = (
    ("answers", _answers),
    ("server counts", _server_counts),
    ("prefix cache", _prefix_hits),
    ("concurrency", _concurrency),
    ("figures", _figures),
    ("client", _client),
)


def problems(measured: "Measured", numbers: Numbers) -> list[Problem]:
    """Everything that keeps this repeat from being a number, causes first."""
    found = ((kind, check(measured, numbers)) for kind, check in CHECKS)
    return [Problem(kind, text) for kind, text in found if text]


def judged(measured: "Measured", numbers: Numbers, shares_cores: bool) -> list[str]:
    """What is to be said of a good repeat.

    Parameters
    ----------
    shares_cores
        True where client and server run on the same cores: then a slow client is said and not failed.

    Raises
    ------
    CellRefused
        With the first reason why it is no number.
    """
    found = problems(measured, numbers)
    advisory = [problem for problem in found if shares_cores and problem.kind == "client"]
    hard = [problem for problem in found if problem not in advisory]
    if hard:
        raise CellRefused(f"cell {measured.cell} is no number: {hard[0]}")
    return [str(problem) for problem in advisory]
