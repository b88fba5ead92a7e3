"""A published sweep as what a machine's first runs are compared with, where card, image and model agree.

A publication tells little of how it measured; what it does not tell is not compared. Judges nothing: the gate does,
and only advises. Imported by `gating`.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.cells import GRIDS
from tests.support.gate.baseline import ROOT, differences, key_of
from tests.support.gate.verdicts import Baseline, Expected
from tests.support.record import Row, line_to_row

BASE = "bf16"
Header = Mapping[str, Any]


def told(head: Header) -> dict[str, Any]:
    """What a publication tells of how it measured, as `own` has it of a run."""
    return {
        "card": head["arch"],
        "image": head["image"],
        "model": head["model"],
        "output tokens": head["settings"]["output_tokens"],
        "engine_args": [],
        "engine_env": {},
    }


def own(header: Header) -> dict[str, Any]:
    """The same of a run, from its record's header."""
    settings, key = header["settings"], key_of(header)
    return {
        "card": key["card"],
        "image": key["image"],
        "model": header["source_pin"].get("repo") or f"{header['source']}, of no repository",
        "output tokens": GRIDS[settings["grid"]].cells[0].output_tokens,
        "engine_args": settings["engine_args"],
        "engine_env": settings["engine_env"],
    }


def bf16_differs(head: Header, header: Header) -> str:
    """How the checkpoint served as bf16 differs from the published one; empty where it is that."""
    now = header["bf16_source_pin"].get("repo") or header["settings"]["bf16"]
    return "; ".join(differences({BASE: now}, {BASE: head["bf16_model"]}))


def _expected(row: Row, base: Mapping[str, float]) -> Expected:
    numbers = row.numbers
    repeats = tuple(repeat["tok_per_s"] for repeat in numbers.get("repeats", ())) or (numbers["tok_per_s"],)
    ratios = (numbers["tok_per_s"] / base[row.item],) if row.item in base else ()
    return Expected((repeats,), ratios, numbers.get("cv", numbers.get("cv_at_most", 0.0)))


def published_baselines(head: Header, rows: Iterable[Row], header: Header) -> dict[str, Baseline]:
    """Published rows as baselines of a run, by build.

    Parameters
    ----------
    head
        What stands over the published rows.
    header
        Of the run's record.
    """
    swept = [row for row in rows if row.suite == "sweep"]
    differs = "; ".join(differences(own(header), told(head)))
    other = bf16_differs(head, header)
    base = {} if other else {row.item: row.numbers["tok_per_s"] for row in swept if row.build == BASE}
    cells: dict[str, dict[str, Expected]] = {}
    for row in swept:
        cells.setdefault(row.build, {})[row.item] = _expected(row, {} if row.build == BASE else base)
    why = {build: "; ".join(filter(None, (differs, other if build == BASE else ""))) for build in cells}
    return {
        build: Baseline({} if why[build] else found, differs=why[build], published=True)
        for build, found in cells.items()
    }


def published_for(machine: str, header: Header, root: Path = ROOT) -> dict[str, Baseline]:
    """What was published for a machine, as baselines of a run; empty where nothing was."""
    path = root / machine / "published" / "sweep.json"
    if not path.is_file():
        return {}
    given = json.loads(path.read_text(encoding="utf-8"))
    return published_baselines(given, map(line_to_row, given["rows"]), header)
