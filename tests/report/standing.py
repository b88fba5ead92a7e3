"""An answer as data: who stands where under a rule, who was picked, and what it rests on. Knows no rule."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.report.spread import Interval
from tests.report.words import listed


@dataclass(frozen=True)
class Standing:
    """One build's figure under a rule, already in words, with the number it was ranked by."""

    build: str
    value: float
    words: str
    interval: Interval | None = None


@dataclass(frozen=True)
class Answer:
    """What to serve for one kind of use.

    Attributes
    ----------
    key, asked
        ``one``, ``many``, ``fidelity`` or ``shared``; and the question as a person would put it.
    picks
        The build, or those that cannot be told apart; empty where nothing was measured.
    verdict
        ``clear``, ``too close to call``, ``equal`` or ``not measured``.
    basis
        What was compared, in a few words.
    standings
        Every build that competed, best first.
    """

    key: str
    asked: str
    picks: tuple[str, ...]
    verdict: str
    basis: str
    standings: tuple[Standing, ...] = ()
    caveats: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The pick as one line."""
        return listed(self.picks, "or") if self.picks else "not measured"


def tied(standings: Sequence[Standing]) -> tuple[str, ...]:
    """The best build and all whose intervals overlap with its own."""
    if not standings:
        return ()
    best = standings[0].interval
    return tuple(
        each.build
        for each in standings
        if each is standings[0] or (best and each.interval and best.overlaps(each.interval))
    )
