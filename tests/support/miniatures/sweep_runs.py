"""Finished runs of a sweep with made-up figures, for the gate and --force-regen to be tried on.

Writes real run records. Imported by tests of the judge only.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.record import Record, Row, read_record, write_record

Figures = Mapping[str, Mapping[str, Sequence[float]]]  # build -> cell -> tokens a second of each repeat
HEADER: dict[str, Any] = {
    "started": "2026-01-02T03:04:05+0000",
    "commit": "0123abc",
    "facts": {
        "cpu": "a processor",
        "cores": 2,
        "gpus": [{"name": "gfx942", "arch": "gfx942", "memory": "", "driver": "6.1"}],
        "versions": {"vllm": "0.32.0"},
    },
    "source_hash": "5eed",
    "bf16_source_hash": "",
    "settings": {
        "machine": "cpu",
        "grid": "smoke",
        "rows": [1],
        "image": "engine@sha256:0",
        "engine_args": [],
        "engine_env": {},
        "bf16": "the QAT source's copy",
    },
}


def cell_row(build: str, cell: str, repeats: Sequence[float], ratio: float | None = 0.8) -> Row:
    """A cell that ended ok."""
    middle = sorted(repeats)[len(repeats) // 2]
    numbers = {
        "tok_per_s": middle,
        "steady_tok_per_s": middle,
        "ttft_s": 0.1,
        "tpot_s": 0.01,
        "ratio_bf16": ratio,
        "repeats": [{"tok_per_s": value} for value in repeats],
    }
    return Row("sweep", build, cell, "ok", numbers=numbers)


def finished_run(folder: Path, figures: Figures, header: Mapping[str, Any] = HEADER) -> Record:
    """A run's folder with its record, read back."""
    folder.mkdir(parents=True)
    rows = [
        cell_row(build, cell, repeats) for build, cells in figures.items() for cell, repeats in cells.items()
    ]
    write_record(folder, header, rows)
    return read_record(folder)
