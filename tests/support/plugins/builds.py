"""pytest plugin: the builds under test, made once and found again under --checkpoints.

Everything that needs a build on disk asks the fixture `built`. Imports no suite.
"""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from filelock import FileLock

import quantkit
from quantkit.convert import build as write_build
from quantkit.formats import Format
from tests.support.plugins.options import WHOLE
from tests.support.settings import Settings
from tests.support.sources.sourcehash import code_hash, source_hash

WRITER = code_hash(Path(quantkit.__file__).parent)


def make(build: Format, settings: Settings) -> Path:
    """The folder of a build: the one that was found, or ours, made first where it is not there yet."""
    if build.name in settings.found:
        return settings.checkpoints / build.name
    source = (settings.bf16_source if build.name == "bf16" else None) or settings.source
    folder = settings.checkpoints / source_hash(source)[:16]
    folder.mkdir(parents=True, exist_ok=True)
    out, made_by = folder / build.name, folder / f".{build.name}.code"
    with FileLock(folder / f".{build.name}.lock"):
        if out.exists() and (not made_by.exists() or made_by.read_text() != WRITER):
            shutil.rmtree(out)  # of other code: what it shows would be said of this one's
        if not (out / WHOLE).exists():
            made_by.write_text(WRITER)
            write_build(source, out, build)
    return out


@pytest.fixture(scope="session")
def built(settings: Settings) -> Callable[[Format], Path]:
    """Gives the folder of a build."""
    return partial(make, settings=settings)
