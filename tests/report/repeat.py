"""The commands that measure a run again and write its report, as far as the record tells them. Pure."""

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from tests.report.run import Run

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
SUITES = ("quant", "gemm", "serve", "sweep")


def _given(header: Mapping[str, Any]) -> Iterable[str]:
    """Options as they stood on the command line; an older record tells the source's name alone."""
    given = header.get("given")
    if isinstance(given, Mapping):
        for name, value in given.items():
            yield f"--{str(name).replace('_', '-')}={value}"
        return
    if header.get("source"):
        yield from ("--source", str(header["source"]))
    if header.get("bf16_source_hash"):
        yield from ("--bf16-source", "BF16_CHECKPOINT")


def _options(header: Mapping[str, Any]) -> Iterable[str]:
    settings = header.get("settings", {})
    yield from _given(header)
    if header.get("builds"):
        yield from ("--builds", ",".join(map(str, header["builds"])))
    if settings.get("grid"):
        yield from ("--grid", str(settings["grid"]))
    if settings.get("rows"):
        yield from ("--rows", ",".join(map(str, settings["rows"])))
    if settings.get("image"):
        yield from ("--image", str(settings["image"]))
    for argument in settings.get("engine_args", ()):
        yield f"--engine-arg={argument}"
    for name, value in settings.get("engine_env", {}).items():
        yield f"--engine-env={name}={value}"


def commands(run: Run) -> tuple[str, ...]:
    """One command a line; for published figures, the one that measures them on a card of one's own."""
    if run.published:
        words = ["-m", run.machine, "--grid", "article"]
    else:
        words = [f"tests/{suite}" for suite in SUITES if run.record.of(suite)] or ["tests"]
        words += _options(run.header)
    line = shlex.join(["pytest", *words, "--run", "RUN"])
    return (CONTROL.sub(" ", line), "python -m tests.report RUN")
