"""The report as one self-contained page: no request, no script that the page does not name by its hash.

Text from a record reaches the page through autoescaped templates and escaped JSON alone, and the page's own
policy forbids whatever else would run or be fetched.
"""

import hashlib
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from tests.report.answer import answers
from tests.report.bundle import vega
from tests.report.caveats import run_caveats, unfinished
from tests.report.definitions import DEFINITIONS
from tests.report.markdown import title_of
from tests.report.plots import specs
from tests.report.repeat import commands
from tests.report.run import Gap, Run
from tests.report.sections import Section, sections
from tests.report.standing import Answer
from tests.report.words import written
from tests.support.record import Record

ASSETS = Path(__file__).with_name("assets")
STANDINGS = 4  # builds that an answer lists before the fold, besides those it picks


def asset(name: str) -> str:
    """The text of a file of `assets`."""
    return (ASSETS / name).read_text(encoding="utf-8")


def embedded_json(value: Any) -> Markup:
    """JSON that may stand inside a script element: it cannot close it, nor open a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for special in "<>&\u2028\u2029":
        text = text.replace(special, f"\\u{ord(special):04x}")
    return Markup(text)


def policy(scripts: tuple[str, ...]) -> str:
    """A content policy under which just these scripts run and nothing is fetched."""
    hashes = (b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    )


def bars(answer: Answer) -> Mapping[str, tuple[float, float, float]]:
    """For each standing with an interval: where its bar begins, how wide it is and where its dot is, in per cent.

    The axis runs from the lowest to the highest end of the standings that are listed.
    """
    shown = [
        each for index, each in enumerate(answer.standings) if index < STANDINGS or each.build in answer.picks
    ]
    known = {each.build: each.interval for each in shown if each.interval}
    ends = {build: (one.low or one.value, one.high or one.value) for build, one in known.items()}
    bottom = min((low for low, _ in ends.values()), default=0.0)
    span = max((high for _, high in ends.values()), default=1.0) - bottom or 1.0

    def place(value: float) -> float:
        return 2 + 96 * (value - bottom) / span

    return {
        build: (place(low), place(high) - place(low), place(known[build].value))
        for build, (low, high) in ends.items()
    }


def sort_key(value: Any) -> str:
    """What a column sorts by: numbers as they are, gaps last."""
    if isinstance(value, Gap):
        return ""
    return (
        repr(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
    )


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["sort_key"] = sort_key
    made.globals["written"] = written
    made.tests["gap"] = lambda value: isinstance(value, Gap)
    return made


def page(record: Record, first: Sequence[Section] = ()) -> str:
    """The whole page.

    Parameters
    ----------
    record
        Of any run, however little of it ended well.
    first
        Sections that come before all others, such as the differences from another run.
    """
    run = Run(record)
    library, own = vega(), asset("page.js")
    plots = specs(run)
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=title_of(run),
            run=run,
            answers=answers(run),
            unfinished=unfinished(run),
            caveats=run_caveats(run),
            sections=(*first, *sections(run)),
            definitions=DEFINITIONS,
            commands=commands(run),
            bars=bars,
            most=STANDINGS,
            policy=policy((library, own)),
            css=Markup(asset("page.css")),
            library=Markup(library),
            script=Markup(own),
            plots=embedded_json(plots),
            plotted={name: spec["description"] for name, spec in plots.items()},
        )
    )
