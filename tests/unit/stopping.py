"""Builds that are stopped by one function after so many calls, and a log of what later ones write."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from quantkit.writer import ShardFile, Stored


class Stopped(Exception):
    """Stands for whatever ends a process."""


def failing_after(count: int, function: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """The function, until it has been called so many times."""
    calls = iter(range(count))

    def call(*arguments: Any) -> Any:
        if next(calls, None) is None:
            raise error
        return function(*arguments)

    return call


def stop(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, count: int, error: Exception) -> None:
    """Let one function fail after so many calls."""
    monkeypatch.setattr(owner, name, failing_after(count, getattr(owner, name), error))


@contextmanager
def stopped(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, count: int) -> Iterator[None]:
    """A build that is stopped by one function after so many calls."""
    with monkeypatch.context() as patch:
        stop(patch, owner, name, count, Stopped())
        with pytest.raises(Stopped):
            yield


def write_log(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Tensor and row of every write from now on."""
    written: list[tuple[str, int]] = []
    original = ShardFile.write_rows

    def logged(self: ShardFile, tensor: Stored, start_row: int, data: memoryview) -> None:
        written.append((tensor.name, start_row))
        original(self, tensor, start_row, data)

    monkeypatch.setattr(ShardFile, "write_rows", logged)
    return written
