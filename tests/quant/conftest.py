"""Fixtures of the fidelity suite: each build verified once, however many tests ask.

Imports the plumbing and quantkit; no other suite imports it.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from quantkit.formats import Format
from quantkit.verify import Report, verify
from tests.support.settings import Settings


@pytest.fixture(scope="session")
def source_of(settings: Settings) -> Callable[[Format], Path]:
    """Gives the checkpoint that a build was made from."""

    def find(build: Format) -> Path:
        own = build.name == "bf16" and settings.bf16_source is not None
        return settings.bf16_source if own and settings.bf16_source else settings.source

    return find


@pytest.fixture(scope="session")
def verified(
    built: Callable[[Format], Path], source_of: Callable[[Format], Path], settings: Settings
) -> Callable[[Format], Report]:
    """Gives the judge's report on a build, made first where it is not there yet; a found one is others' work."""
    known: dict[str, Report] = {}

    def report(build: Format) -> Report:
        if build.name not in known:
            others = build.name in settings.found
            known[build.name] = verify(source_of(build), built(build), foreign=others)
        return known[build.name]

    return report
