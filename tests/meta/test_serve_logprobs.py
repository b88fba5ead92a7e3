"""Log probabilities that differ in a known way give the known figures; bounds are kept or named; questions are read."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from quantkit.formats import FORMATS
from tests.support.answers import logprobs
from tests.support.answers.logprobs import (
    NoLogprobs,
    Scored,
    Shift,
    ShiftTooLarge,
    _read,
    check_shift,
    divergence,
    load,
    save,
    scored,
    shift,
    token_ids,
)
from tests.support.answers.probes import BOUNDED, FOLDER, BadProbes, probes_for, read_probes
from tests.support.engine.readiness import Answer
from tests.support.record import read_record

BASE = Scored(
    (1, 2, 3), (math.log(0.5), math.log(0.25)), ({2: math.log(0.5), 9: math.log(0.3)}, {3: math.log(0.25)})
)
RECORD = Path(__file__).parents[2] / "docs" / "demo"
NANO_BOUNDS = read_probes(FOLDER / "nano.toml").bounds
# The least wrong of the rolled builds that were measured, by the reference in fp32: rows of one q_proj of six, by one.
ROLLED = {
    "q4w4a16": Shift(216, 0.4174, math.inf, 0.9028, 0.12558),
    "w8a8": Shift(216, 0.3696, math.inf, 0.9213, 0.10754),
    "fp8": Shift(216, 0.3827, math.inf, 0.9213, 0.11355),
}
GOOD = Shift(2, 0.01, 0.1, 0.99, 0.001)


def test_same_is_no_shift() -> None:
    """A set against itself."""
    assert shift([BASE], [BASE]) == Shift(2, 0.0, 0.0, 1.0, 0.0)


def test_known_shift() -> None:
    """Figures worked out by hand."""
    tops = ({2: math.log(0.2), 9: math.log(0.6)}, BASE.top[1])
    other = replace(BASE, logprobs=(math.log(0.2), math.log(0.25)), top=tops)
    found = shift([BASE], [other])
    assert found.mean_abs_dlogprob == pytest.approx(math.log(2.5) / 2)
    assert found.max_abs_dlogprob == pytest.approx(math.log(2.5))
    assert found.top1_agreement == 0.5
    by_hand = 0.5 * math.log(0.5 / 0.2) + 0.3 * math.log(0.3 / 0.6) + 0.2 * math.log(0.2 / 0.2)
    assert found.kl == pytest.approx(by_hand / 2)


def test_divergence_of_tokens_that_one_side_lacks() -> None:
    """What is not in both counts with the rest."""
    assert divergence(
        {1: math.log(0.5), 2: math.log(0.4)}, {1: math.log(0.5), 3: math.log(0.4)}
    ) == pytest.approx(0)


def test_other_sequences_are_refused() -> None:
    """Figures of different tokens are not compared."""
    with pytest.raises(NoLogprobs):
        shift([BASE], [replace(BASE, tokens=(1, 2, 4))])
    with pytest.raises(NoLogprobs):
        shift([], [])


@pytest.mark.parametrize("entry", [{}, {"2": {"logprob": math.nan}}, {"2": {"logprob": -math.inf}}], ids=str)
def test_missing_logprob_is_refused(entry: dict[str, dict[str, float]]) -> None:
    """A token without a finite figure is no figure."""
    with pytest.raises(NoLogprobs):
        _read((1, 2), [entry])


@pytest.mark.parametrize("name", ["mean_abs_dlogprob", "kl", "top1_agreement"])
def test_bounds(name: str) -> None:
    """Each figure has its own bound, and NaN keeps none."""
    bounds = {"mean_abs_dlogprob": 0.02, "kl": 0.002, "top1_agreement": 0.95}
    check_shift("x", GOOD, bounds)
    for worse in ({"top1_agreement": 0.9}.get(name, 1.0), math.nan):
        with pytest.raises(ShiftTooLarge, match=name):
            check_shift("x", Shift(**{**vars(GOOD), name: worse}), {name: bounds[name]})


def test_every_build_of_the_nano_is_judged() -> None:
    """Three bounds for every build, and each is kept by the committed run of a real engine."""
    rows = {row.build: row for row in read_record(RECORD).of("serve") if row.item == "logprobs"}
    assert rows.keys() == FORMATS.keys()
    for build in FORMATS.keys() - {"bf16"}:
        assert NANO_BOUNDS[build].keys() == BOUNDED
        check_shift(build, Shift(**rows[build].numbers), NANO_BOUNDS[build])


@pytest.mark.parametrize("figure", sorted(BOUNDED))
@pytest.mark.parametrize("rolled", ROLLED)
def test_rolled_rows_of_one_module_break_every_bound(rolled: str, figure: str) -> None:
    """Each of the three figures would do alone."""
    with pytest.raises(ShiftTooLarge, match=figure):
        check_shift(rolled, ROLLED[rolled], {figure: NANO_BOUNDS[rolled][figure]})


LOGPROBS = [None, {"2": {"logprob": -0.5}, "9": {"logprob": -2.0}}]


@pytest.mark.parametrize(
    ("status", "content", "got"),
    [
        (200, {"choices": [{"prompt_logprobs": LOGPROBS}]}, ""),
        (500, {"choices": [{"prompt_logprobs": LOGPROBS}]}, "got 500"),
        (200, None, "got 200"),
        (200, {}, "got 0 entries, expected 2"),
        (200, {"choices": [{"prompt_logprobs": None}]}, "got 0 entries"),
        (200, {"choices": [{"prompt_logprobs": LOGPROBS[:1]}]}, "got 1 entries"),
        (200, {"choices": [{"prompt_logprobs": [*LOGPROBS, None]}]}, "got 3 entries"),
    ],
)
def test_what_a_server_must_give(
    monkeypatch: pytest.MonkeyPatch, status: int, content: object, got: str
) -> None:
    """The first token has no figure; every other has one, in an answer that is one."""
    monkeypatch.setattr(logprobs, "ask", lambda *_: Answer(status, json.dumps(content).encode()))
    if not got:
        expected = Scored((1, 2), (-0.5,), ({2: -0.5, 9: -2.0},))
        assert scored("http://x", "m", (1, 2)) == expected
        return
    with pytest.raises(NoLogprobs, match=got):
        scored("http://x", "m", (1, 2))


def test_a_text_has_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (b"{}", b'{"tokens": []}', b'["x"]', b"null", b"no JSON"):
        monkeypatch.setattr(logprobs, "ask", lambda *_, body=content: Answer(200, body))
        with pytest.raises(NoLogprobs, match="tokens of a text"):
            token_ids("http://x", "m", "text")
    monkeypatch.setattr(logprobs, "ask", lambda *_: Answer(200, b'{"tokens": [3, 4]}'))
    assert token_ids("http://x", "m", "text") == (3, 4)


def test_kept_in_the_run(tmp_path: Path) -> None:
    """What was saved is what is read."""
    save(tmp_path / "run" / "bf16.json", [BASE])
    assert load(tmp_path / "run" / "bf16.json") == (BASE,)


def test_questions_of_a_model() -> None:
    """The file that matches the most keys is taken, and none is an error."""
    nano = {"model_type": "gemma4_text", "hidden_size": 128, "vocab_size": 512}
    assert probes_for(nano).path.name == "nano.toml"
    assert probes_for({**nano, "hidden_size": 1536, "vocab_size": 262144}).path.name == "gemma-4.toml"
    with pytest.raises(BadProbes, match="none that match"):
        probes_for({"model_type": "another"})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("words = [", "wrds = ["),
        ("[[thinking]]", "[[think]]"),
        ("reason = ", "because = "),
        ("kl = ", "kullback = "),
        ("[[bounds]]\nbuilds = [", "[[bounds]]\nbuild = ["),
        ("[[bounds]]\n", "[[bounds]]\nbuilds = []\nkl = 1.0\nreason = 'none'\n[[bounds]]\n"),
    ],
    ids=[
        "unknown key",
        "unknown kind",
        "no reason",
        "unknown bound",
        "builds misspelt",
        "bounds of no build",
    ],
)
def test_bad_questions(tmp_path: Path, old: str, new: str) -> None:
    """A typing error in a file of questions is an error, not a question less."""
    file = tmp_path / "mine.toml"
    file.write_text((FOLDER / "nano.toml").read_text().replace(old, new))
    with pytest.raises(BadProbes, match=r"mine\.toml"):
        read_probes(file)
