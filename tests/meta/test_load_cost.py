"""The load client costs a small part of what AsyncOpenAI does; limits of its own never cap the load."""

import pytest

from benchmarks.client import compared


@pytest.mark.slow
def test_an_event_costs_at_most_an_eighth_of_asyncopenai() -> None:
    ours, theirs = compared(streams=16, tokens=256, period_s=0.0, rounds=3)
    assert ours.total_s * 8 <= theirs.total_s, f"{theirs.total_s / ours.total_s:.1f} times less in all"
    assert ours.reading_s * 8 <= theirs.reading_s
