"""Fixtures of the unit tests: miniature checkpoints of every size, made once a session.

A miniature has a real config's layers, names and ratios at widths of a few dozen.
"""

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from benchmarks.shaped import make_checkpoint, real_config, shrunk

settings.register_profile("unit", deadline=None)  # a deadline would make a busy machine fail
settings.load_profile("unit")


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Make fsync free: what it is for, a power cut, is nothing a test can see, and it is most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


Miniature = Callable[[str], Path]


@pytest.fixture(scope="session")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> Miniature:
    """Folder of the miniature of a size; never write there."""

    @cache
    def make(size: str) -> Path:
        folder = tmp_path_factory.mktemp("miniatures") / size
        return make_checkpoint(
            folder, shrunk(real_config(size)), shard_bytes=1 << 20 if size == "31B" else 1 << 62
        )

    return make


@pytest.fixture(scope="session")
def source(miniature: Miniature) -> Path:
    """The E2B miniature; never write there."""
    return miniature("E2B")
