"""Machine records, read from machines.toml: what a card is called, holds, multiplies, and must run.

Reads that one file and nothing else; probes no hardware. `plan` predicts with a record, the suites choose one.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from quantkit.errors import QuantkitError

RECORDS = Path(__file__).with_name("machines.toml")


class UnknownMachine(QuantkitError):
    """There is no record of that name, or a record has a wrong key."""


@dataclass(frozen=True)
class Machine:
    """One record of machines.toml; the file's head says what each key means."""

    name: str
    arch: str
    memory_gib: float
    fp8: str
    engine: str
    image: str
    devices: tuple[str, ...]
    last_level_cache_mib: int
    usd_per_hour: float
    kernels: Mapping[str, str] = field(default_factory=dict)

    @property
    def advisory_speed(self) -> bool:
        """Whether a throughput verdict only informs: a laptop's CPU is shared and noisy."""
        return self.arch == "cpu"


def _machine(name: str, record: dict[str, Any]) -> Machine:
    try:
        return Machine(name=name, **{**record, "devices": tuple(record.get("devices", ()))})
    except TypeError as wrong:
        raise UnknownMachine(
            f"record {name} in machines.toml", got=wrong, expected="the keys of Machine"
        ) from None


def read_machines(path: Path) -> dict[str, Machine]:
    """All records of a machines file, by name.

    Raises
    ------
    UnknownMachine
        For a record with a missing or an unknown key.
    """
    with path.open("rb") as file:
        return {name: _machine(name, record) for name, record in tomllib.load(file).items()}


@cache
def machines() -> dict[str, Machine]:
    """The records that quantkit ships, by name."""
    return read_machines(RECORDS)


def machine_named(name: str) -> Machine:
    """The record of that name.

    Raises
    ------
    UnknownMachine
        With the names there are.
    """
    known = machines()
    if name not in known:
        raise UnknownMachine("machine", got=repr(name), expected=f"one of {', '.join(known)}")
    return known[name]
