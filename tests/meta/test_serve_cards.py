"""Card memory that does not fall back after a server is a failure, and one that takes its time is not."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.host.card_memory import SLACK_BYTES, MemoryHeld, wait_fallen
from tests.support.host.preflight import Card

GIB = 1 << 30


def cards(*used_gib: float) -> Callable[[], list[Card]]:
    """A card whose use is asked again and again."""
    answers: Iterator[float] = iter((*used_gib, *[used_gib[-1]] * 1000))
    return lambda: [Card(192 * GIB, int(next(answers) * GIB), ("pid 7",))]


def test_falls_after_a_while() -> None:
    """Drivers take a moment."""
    wait_fallen(cards(170, 90, 0.2), [Card(192 * GIB, 0)], seconds=5)


def test_held() -> None:
    """What stays is named with who holds it."""
    with pytest.raises(MemoryHeld, match="pid 7"):
        wait_fallen(cards(170), [Card(192 * GIB, 0)], seconds=0.3)


def test_each_card_by_itself() -> None:
    """What one lets go of, another still holds; and a driver's own is no server's."""
    before = [Card(192 * GIB, 100 * GIB), Card(192 * GIB, 0)]
    with pytest.raises(MemoryHeld, match=f"got {GIB:,} bytes held .no process known."):
        wait_fallen(lambda: [Card(192 * GIB, 0), Card(192 * GIB, GIB)], before, seconds=0)
    wait_fallen(lambda: [Card(192 * GIB, 0), Card(192 * GIB, SLACK_BYTES)], before, seconds=0)


def test_gone() -> None:
    """A card that is no longer listed has not let go of anything."""
    with pytest.raises(ValueError, match="shorter"):
        wait_fallen(list, [Card(192 * GIB, 0)], seconds=0)


def test_no_card() -> None:
    """Nothing to wait for on a laptop."""
    wait_fallen(list, [], seconds=0)
