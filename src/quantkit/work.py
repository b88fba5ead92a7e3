"""Blocks handed to plain threads one by one; the first error, or Ctrl-C, stops all of them.

Knows nothing of what a block is. `convert` uses it; the kernels and the reads release the interpreter lock, so
threads suffice.
"""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
State = TypeVar("State")


class _Queue(Generic[Item]):
    def __init__(self, items: Iterable[Item]) -> None:
        self._items = enumerate(items)
        self._lock = threading.Lock()
        self._opened = threading.Event()
        self._errors: list[tuple[int, Exception]] = []
        self._stopped = False

    def open(self) -> None:
        """Hand items out from now on."""
        self._opened.set()

    def take(self) -> tuple[int, Item] | None:
        """The next item, or None when there is none left or the work was stopped; waits until it is opened."""
        self._opened.wait()
        with self._lock:
            return None if self._stopped else next(self._items, None)

    def stop(self, number: int | None = None, error: Exception | None = None) -> None:
        """Hand out nothing more."""
        with self._lock:
            self._stopped = True
            if number is not None and error is not None:
                self._errors.append((number, error))
        self._opened.set()

    def raise_first(self) -> None:
        """Raise the error of the earliest item, if any."""
        if self._errors:
            raise min(self._errors, key=lambda found: found[0])[1]


def for_each(
    items: Iterable[Item], workers: int, make_state: Callable[[], State], act: Callable[[State, Item], None]
) -> None:
    """Call ``act(state, item)`` for every item, on `workers` threads with a state of their own each.

    Raises
    ------
    Exception
        The one that the earliest failing item raised; no new item is begun after the first failure.
    """
    queue = _Queue(items)

    def run() -> None:
        state = make_state()
        while (taken := queue.take()) is not None:
            number, item = taken
            try:
                act(state, item)
            except Exception as error:
                queue.stop(number, error)

    with ThreadPoolExecutor(workers) as pool:
        try:
            begun = [pool.submit(run) for _ in range(workers)]
            queue.open()  # not before: of a thread that Ctrl-C met on its way into the pool, nobody waits for the end
            for each in begun:
                each.result()
        except BaseException:  # Ctrl-C, say: leaving the pool waits for its threads, so let them end
            queue.stop()
            raise
    queue.raise_first()
