"""How figures are written at the edges of their units, and how far they may be off: each case by hand."""

import html
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from quantkit.formats import FORMATS
from tests.meta.made_up import cell_row
from tests.report.markdown import escaped
from tests.report.plots.heat import HEAT_NAMES, heat_class
from tests.report.plots.scatter import _front, _share_labels
from tests.report.run import Cell, Gap, cell_of
from tests.report.spread import T975, Interval, Spread, around, cell_interval, geometric_mean, pooled, t975
from tests.report.tables import Column, Table
from tests.report.words import listed, written

WRITTEN = (
    *(("rate", 1945.2, "1,945"), ("rate", 100, "100"), ("rate", 99.9, "99.9"), ("ratio", 0.754, "0.75×")),
    *(("percent", 0.015, "1.5 %"), ("percent", 0.001, "0.1 %"), ("percent", 0.00094, "0.094 %")),
    *(("percent", 0, "0.0 %"), ("size", 1023, "1023 B"), ("size", 1024, "1.00 KiB")),
    *(("size", 1024**2, "1.00 MiB"), ("size", 1024**3, "1.00 GiB"), ("size", 2 * 1024**4, "2048.00 GiB")),
    *(("gib", 7.07, "7.07 GiB"), ("gib", 0.1, "0.10 GiB"), ("gib", 0.05, "51.20 MiB")),
    *(("ms", 0.00383, "3.83 ms"), ("ms", 0.0999, "99.90 ms"), ("ms", 0.1, "100 ms"), ("ms", 2.0, "2,000 ms")),
    *(("s", 181.94, "181.9 s"), ("whole", 9017531, "9,017,531"), ("error", 0, "0"), ("error", 1.5, "1.5")),
    *(("error", 0.012345, "0.0123"), ("usd", 2.126, "$2.13"), ("usd", 0.5, "$0.50"), ("usd", 0.1, "$0.10")),
    *(("usd", 0.0123, "$0.012"), ("text", 3, "3"), ("text", True, "yes"), ("text", False, "no")),
    *(("text", ["a", "b"], "a, b"), ("rate", True, "yes"), ("rate", "dense", "dense"), ("rate", ["a"], "a")),
    ("rate", Gap("why"), "not measured"),
)


@pytest.mark.parametrize(("form", "value", "words"), WRITTEN)
def test_how_a_figure_is_written(form: str, value: Any, words: str) -> None:
    assert written(form, value) == words


def test_how_names_are_listed() -> None:
    assert [listed(list("abc")[:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert listed(["a", "b"], "or") == "a or b"


def student(freedom: int, to: float, steps: int = 2000) -> float:
    """The share of Student's distribution below a positive value, by Simpson's rule."""
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    heights = [(1 + (to * i / steps) ** 2 / freedom) ** (-(freedom + 1) / 2) for i in range(steps + 1)]
    inner = sum(heights[i] * (4 if i % 2 else 2) for i in range(1, steps))
    return float(0.5 + scale * (heights[0] + inner + heights[-1]) * to / steps / 3)


@pytest.mark.parametrize("freedom", range(1, len(T975) + 1))
def test_the_quantiles_are_students(freedom: int) -> None:
    """The table has three decimals."""
    assert abs(student(freedom, t975(freedom)) - 0.975) <= 3e-5


@pytest.mark.parametrize(
    ("low", "high", "overlap"),
    [
        *((1.0, 2.0, True), (0.0, 0.9, False), (2.1, 3.0, False), (0.0, 1.0, True), (2.0, 3.0, True)),
        *((0.0, 9.0, True), (None, 0.5, True), (5.0, None, True), (None, None, True)),
    ],
)
def test_what_overlaps(low: float | None, high: float | None, overlap: bool) -> None:
    """Ends that touch do, and what is not known could be anything."""
    one, other = Interval(1.5, 1.0, 2.0), Interval(0.0, low, high)
    assert one.overlaps(other) is overlap
    assert other.overlaps(one) is overlap


def cell(*wobble: float, **changed: Any) -> Cell:
    """A cell of fp8 with such repeats."""
    made = cell_of(cell_row(FORMATS["fp8"], (1, 128), wobble=wobble))
    assert made is not None
    return replace(made, **changed)


def test_what_a_spread_is_pooled_from() -> None:
    """Each cell by its degrees of freedom; noisy ones only where all are; a single repeat tells nothing."""
    quiet, other = cell(1.0, 0.99, 1.01), cell(1.0, 0.98)
    noisy, single = cell(1.0, 0.5, 1.5), cell(1.0, cv=0.9)
    assert other.cv is not None
    by_hand = math.sqrt((2 * 0.01**2 + other.cv**2) / 3)
    for cells, cv, freedom in (([quiet, other, noisy, single], by_hand, 3), ([noisy], 0.5, 2)):
        found = pooled(cells)
        assert found is not None
        assert found.cv == pytest.approx(cv)
        assert found.freedom == freedom
    assert pooled([single]) is None
    assert pooled([cell(1.0, 1.0, cv=None)]) is None
    assert pooled([cell(1.0, cv=None, cv_at_most=0.02, repeat_count=3)]) == Spread(0.02, 2)


def test_what_an_interval_rests_on() -> None:
    spread = Spread(0.01, 2)
    assert around(100.0, spread, 4).high == pytest.approx(100 * math.exp(4.303 * 0.01 / 2))
    assert around(100.0, spread, 4).low == pytest.approx(100 / math.exp(4.303 * 0.01 / 2))
    assert around(100.0, spread, 0) == around(100.0, None, 4) == Interval(100.0)
    assert cell_interval(cell(1.0, tok_per_s=None), spread) is None
    noisy = cell(1.0, 0.5, 1.5, tok_per_s=100.0, cv=0.5)
    assert cell_interval(noisy, spread) == around(100.0, Spread(0.5, 2), 3)
    assert cell_interval(replace(noisy, repeat_count=1), spread) == around(100.0, spread, 1)
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_why_figures_are_missing() -> None:
    """Each reason once; `all` where it holds for every row of several; a table of gaps alone is hollow."""
    columns = (Column("build"), Column("x"), Column("y"))
    some = Table("t", "c", columns, (("a", Gap("p"), Gap("q")), ("b", Gap("p"), 1)))
    assert some.gaps == (("p", ("all",)), ("q", ("a",)))
    assert not some.hollow
    one = Table("t", "c", columns, (("a", Gap("p"), Gap("p")),))
    assert (one.gaps, one.hollow) == ((("p", ("a",)),), True)
    assert not Table("t", "c", columns, ()).hollow


@pytest.mark.parametrize(
    ("ratio", "name"),
    [
        *((0.2, "under 0.25"), (0.25, "to 0.5"), (0.5, "to 0.8"), (0.8, "to 0.95"), (0.95, "within 5 %")),
        *((1.04, "within 5 %"), (1.05, "to 1.25"), (1.25, "to 2"), (2.0, "over 2")),
    ],
)
def test_the_colour_of_a_ratio(ratio: float, name: str) -> None:
    assert HEAT_NAMES[heat_class(ratio)] == name


def labels(*places: tuple[float, float]) -> list[str]:
    """The labels of points a, b, c ... of a plot."""
    points: list[dict[str, Any]] = [
        {"build": name, "x": x, "y": y} for name, (x, y) in zip("abcd", places, strict=False)
    ]
    _front(points, ())
    _share_labels(points)
    return [point["label"] for point in points]


def test_which_points_have_a_name() -> None:
    """Less of x and more of y wins; equal points both stay; points that all but coincide share one label."""
    assert labels((1, 100), (2, 100), (1, 90), (3, 120)) == ["a", "", "", "d"]
    assert labels((1, 100), (1, 100)) == ["a\nb", ""]
    assert labels((6.6, 95), (10, 100)) == ["a\nb", ""]
    assert labels((6.4, 95), (10, 100)) == ["a", "b"]
    assert labels((6.6, 93), (10, 100)) == ["a", "b"]
    assert labels((0, 0)) == ["a"]


def shown(markdown_: str) -> str:
    """What CommonMark shows of inline text: a backslash before punctuation is eaten, an entity is its character."""
    return re.sub(
        r"\\([!-/:-@\[-`{-~])|&#?\w+;", lambda found: found[1] or html.unescape(found[0]), markdown_
    )


@pytest.mark.parametrize(
    "text",
    ["assert ['model.language_model' == []", "a | b", "*a* _b_ `c` #1 ~d~", "<b> & &amp; @x", r"C:\[x]"],
)
def test_markdown_shows_the_text_of_a_record_as_it_is(text: str) -> None:
    assert shown(escaped(text)) == text
