"""Whether a card's memory falls back to its earlier level when a server is gone. Knows no engine and no test.

Asks whoever can list the cards, so that tests stand a fake in its place. Imported by `serving`.
"""

import time
from collections.abc import Callable, Sequence

from quantkit.errors import QuantkitError
from tests.support.host.preflight import Card

SLACK_BYTES = 256 << 20  # a driver's own bookkeeping comes and goes
WAIT_S = 60.0  # drivers free a large pool within seconds
POLL_S = 0.25


class MemoryHeld(QuantkitError):
    """A server is gone, and its card's memory is not."""


def wait_fallen(cards: Callable[[], Sequence[Card]], before: Sequence[Card], seconds: float = WAIT_S) -> None:
    """Return when every card uses no more than before, but for the driver's slack.

    Raises
    ------
    MemoryHeld
        Where it does not within so many seconds, with the processes that hold some.
    """
    deadline = time.monotonic() + seconds
    while held := _held(before, now := cards()):
        if time.monotonic() >= deadline:
            holders = sorted({holder for card in now for holder in card.holders}) or "no process known"
            raise MemoryHeld(
                "card memory after the server ended", got=f"{held:,} bytes held", hint=f"{holders}"
            )
        time.sleep(POLL_S)


def _held(before: Sequence[Card], now: Sequence[Card]) -> int:
    more = (card.used_bytes - was.used_bytes for was, card in zip(before, now, strict=True))
    return sum(grown for grown in more if grown > SLACK_BYTES)
