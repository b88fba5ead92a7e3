"""Work on threads: every item once, a state each, and an end at the first error or Ctrl-C."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from quantkit.work import for_each


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_every_item_once_with_a_state_for_each_thread(workers: int) -> None:
    states: list[list[int]] = []

    def new_state() -> list[int]:
        states.append([])
        return states[-1]

    for_each(range(1000), workers, new_state, list.append)
    assert len(states) == workers
    assert sorted(item for state in states for item in state) == list(range(1000))


def test_nothing_is_begun_after_an_error() -> None:
    seen: list[int] = []

    def act(state: None, item: int) -> None:
        seen.append(item)
        if item == 10:
            raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 10"):
        for_each(range(100_000), 2, lambda: None, act)
    assert len(seen) < 1000


def test_the_earliest_error_is_raised() -> None:
    barrier = threading.Barrier(2)

    def act(state: None, item: int) -> None:
        barrier.wait(10)  # both fail, in either order
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 0"):
        for_each(range(2), 2, lambda: None, act)


def test_a_state_that_cannot_be_made_is_an_error() -> None:
    def fail() -> None:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        for_each(range(3), 2, fail, lambda state, item: None)


def test_ctrl_c_before_all_threads_are_known_begins_no_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that the pool does not know yet is not waited for, so it must not be at work."""
    submit, seen = ThreadPoolExecutor.submit, list[int]()

    def interrupted(self: ThreadPoolExecutor, run: Callable[[], None]) -> None:
        submit(self, run)
        time.sleep(0.05)  # in which that thread would begin
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        for_each(range(1000), 2, lambda: None, lambda state, item: seen.append(item))
    assert seen == []


CTRL_C = """
import os, signal, threading, time
from quantkit.work import for_each

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
seen = []

def act(state, item):
    seen.append(item)
    if item == 5:
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.001)

try:
    for_each(range(1_000_000), 2, lambda: None, act)
except KeyboardInterrupt:
    print(len(seen), threading.active_count())
"""


def test_ctrl_c_ends_all_threads_soon() -> None:
    """In a process of its own: a signal sent to this one would reach whatever runs the tests."""
    ran = subprocess.run(
        [sys.executable, "-c", CTRL_C], capture_output=True, text=True, timeout=60, check=True
    )
    seen, threads = map(int, ran.stdout.split())
    assert 5 < seen < 10_000
    assert threads == 1
