"""The serving suite's own rules, without a server: every question is asked, and which bounds hold which build."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quantkit.formats import FORMATS
from tests.serve import test_answers as answers
from tests.serve import test_logprobs as suite
from tests.serve.test_answers import ask_all
from tests.support.answers.asking import ask
from tests.support.answers.checkers import Answer, WrongText
from tests.support.answers.decoded import Decoded
from tests.support.answers.logprobs import Scored, ShiftTooLarge, load, shift
from tests.support.answers.probes import Probe, Probes
from tests.support.settings import Boot

ASKED = (Probe("text", "one", words=("1",)), Probe("text", "two", words=("2",)), Probe("tool", "no"))
BASE = Scored((1, 2), (math.log(0.5),), ({2: math.log(0.5)},))
BOUNDS = {"fp8": {"mean_abs_dlogprob": 0.1}, "served": {"mean_abs_dlogprob": 0.2}}
PROBES = Probes(Path("toy.toml"), {}, (), ASKED, (), BOUNDS)


class Skipped(Exception):
    """The suite's test skipped; as a skip it would silence the test that looks at it."""


def moved(by: float) -> tuple[Scored, ...]:
    """The base, its one log probability so much lower."""
    return (replace(BASE, logprobs=(BASE.logprobs[0] - by,)),)


def asked(*came: Answer) -> tuple[dict[str, Any], list[str]]:
    """The row, and what was asked, where these answers come in turn; the first wrong one raises."""
    row: dict[str, Any] = {}
    told: list[str] = []
    left = list(came)

    def how(client: Any, probe: Probe, probes: Probes, model: str) -> Answer:
        told.append(probe.ask)
        return left.pop(0)

    server = cast(Any, SimpleNamespace(model="m"))
    try:
        ask_all(cast(Any, None), server, PROBES, "text", row, how)
    except WrongText as wrong:
        row["error"] = str(wrong)
    return row, told


def test_every_question_is_asked_and_kept_before_one_is_called_wrong() -> None:
    calls = (("f", "{}"), ("g", "[]"))
    row, told = asked(Answer("1", "hm", calls=(), finish="stop"), Answer("2", finish="stop"))
    assert told == row["prompt"] == ["one", "two"]
    assert (row["answer"], row["reasoning"], "tool_call" in row, "error" in row) == (
        ["1", "2"],
        ["hm"],
        False,
        False,
    )
    row, told = asked(Answer("0", calls=calls, finish="stop"), Answer("0", finish="stop"))
    assert (told, row["answer"], row["tool_call"]) == (["one", "two"], ["0", "0"], ["f({}) g([])"])
    assert "'one'" in row["error"]


@pytest.mark.parametrize(
    ("test", "kind", "how"),
    [
        ("text", "text", "ask"),
        ("streamed", "text", "ask_streaming"),
        ("thinking", "thinking", "ask"),
        ("tool", "tool", "ask"),
        ("tool_result", "tool result", "ask"),
    ],
)
def test_each_test_asks_its_kind(monkeypatch: pytest.MonkeyPatch, test: str, kind: str, how: str) -> None:
    seen: list[tuple[str, Any]] = []

    def note(client: Any, server: Any, probes: Any, kind: str, row: Any, how: Any = ask) -> None:
        seen.append((kind, how))

    monkeypatch.setattr(answers, "ask_all", note)
    getattr(answers, f"test_{test}")(None, None, None, PROBES, {})
    assert seen == [(kind, getattr(answers, how))]


def against_bf16(run: Path, build: str, scores: tuple[Scored, ...], own_bf16: bool = False) -> dict[str, Any]:
    """The row of the log probabilities against bf16's."""
    row: dict[str, Any] = {}
    settings = SimpleNamespace(run=run, bf16_source=run if own_bf16 else None)
    try:
        suite.test_logprobs(Boot(FORMATS[build], 1), scores, PROBES, cast(Any, settings), row)
    except pytest.skip.Exception as skipped:
        raise Skipped(str(skipped)) from None
    return row


def test_which_bounds_hold_against_bf16(tmp_path: Path) -> None:
    """None without bf16, none from a bf16 that is another model, none for a build without a table of them."""
    with pytest.raises(Skipped, match="bf16 was not served"):
        against_bf16(tmp_path, "fp8", moved(0.05))
    assert against_bf16(tmp_path, "bf16", (BASE,))["mean_abs_dlogprob"] == 0.0
    assert against_bf16(tmp_path, "fp8", moved(0.05))["mean_abs_dlogprob"] == pytest.approx(0.05)
    assert load(tmp_path / "logprobs" / "fp8.json") == moved(0.05)
    with pytest.raises(ShiftTooLarge, match="fp8 against bf16"):
        against_bf16(tmp_path, "fp8", moved(0.15))
    against_bf16(tmp_path, "fp8", moved(0.15), own_bf16=True)
    against_bf16(tmp_path, "w8a8", moved(9.0))


def served(
    monkeypatch: pytest.MonkeyPatch, build: str, by: float, rounding: float = 0.0, own: float | None = 0.1
) -> dict[str, Any]:
    """The row of the log probabilities against those of the decoded files."""
    decoded = Decoded((BASE,), moved(rounding))
    monkeypatch.setattr(suite, "decoded_scores", lambda folder, sequences: decoded)
    row: dict[str, Any] = {}
    server = cast(Any, SimpleNamespace(checkpoint=Path("x")))
    bf16 = None if own is None else {"mean_abs_dlogprob": own}
    boot = Boot(FORMATS[build], 1)
    try:
        suite.test_served_weights(boot, server, moved(by), PROBES, lambda *key: bf16, row)
    except pytest.skip.Exception as skipped:
        raise Skipped(str(skipped)) from None
    return row


def test_a_build_lies_within_three_times_what_rounding_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of bf16's own distance, or of the build's own reference in bfloat16, whichever is more."""
    row = served(monkeypatch, "fp8", 0.29, rounding=0.01)
    assert (row["rounding"], row["mean_abs_dlogprob"]) == (pytest.approx(0.01), pytest.approx(0.29))
    served(monkeypatch, "fp8", 0.59, rounding=0.2)
    for by, rounding in ((0.31, 0.01), (0.61, 0.2)):
        with pytest.raises(ShiftTooLarge, match="fp8 as served"):
            served(monkeypatch, "fp8", by, rounding)
    with pytest.raises(Skipped, match="bf16 was not served"):
        served(monkeypatch, "fp8", 0.0, own=None)


def test_bf16_as_served_has_a_bound_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert served(monkeypatch, "bf16", 0.19, own=None).keys() >= asdict(shift([BASE], [BASE])).keys()
    with pytest.raises(ShiftTooLarge, match="bf16 as served"):
        served(monkeypatch, "bf16", 0.21, own=None)
