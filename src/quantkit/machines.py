"""Machine records, read from machines.toml: what a card is called, holds, multiplies, and must run.

Reads that one file and nothing else; probes no hardware. `plan` predicts with a record, the suites choose one.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from quantkit.errors import QuantkitError

RECORDS = Path(__file__).with_name("machines.toml")
ENGINES = ("process", "docker")
PLAIN: Mapping[object, tuple[Any, str]] = {
    str: (str, "a text"),
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
}


class UnknownMachine(QuantkitError):
    """There is no record of that name, or a record has a wrong key."""


@dataclass(frozen=True)
class Container:
    """What a machine's containers are given beside its devices.

    Attributes
    ----------
    python
        The interpreter inside.
    binds, tmpfs
        Host paths bound read-only at the same place inside; paths inside that are memory.
    env
        Variables for everything that runs inside.
    """

    python: str = "python3"
    binds: tuple[str, ...] = ()
    tmpfs: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """One record of machines.toml; the file's head says what each key means."""

    name: str
    arch: str
    memory_gib: float
    fp8: str
    engine: str
    image: str
    last_level_cache_mib: int
    usd_per_hour: float
    devices: tuple[str, ...] = ()
    kernels: Mapping[str, str] = field(default_factory=dict)
    firmware: str = ""
    source: str = ""
    grid: str = "smoke"
    container: Container = field(default_factory=Container)

    @property
    def advisory_speed(self) -> bool:
        """Whether a throughput verdict only informs: a laptop's CPU is shared and noisy."""
        return self.arch == "cpu"


def _frozen(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def _record(kind: type[Any], what: str, table: Mapping[str, Any]) -> Any:
    types = {each.name: each.type for each in fields(kind)}
    for key, value in table.items():
        if key not in types:
            raise UnknownMachine(f"key of {what}", got=repr(key), expected=f"one of {', '.join(types)}")
        plain, words = PLAIN.get(types[key], (object, ""))
        if not isinstance(value, plain):
            raise UnknownMachine(f"{key} of {what}", got=repr(value), expected=words)
    try:
        return kind(**_frozen(table))
    except TypeError as wrong:  # a key is missing
        raise UnknownMachine(what, got=wrong, expected="all keys of a record") from None


def _machine(name: str, table: Mapping[str, Any]) -> Machine:
    if not name.isidentifier():  # it is also a pytest mark
        raise UnknownMachine("name of a machine", got=repr(name), expected="letters, digits and underscores")
    inside = _record(Container, f"the container of machine {name}", table.get("container", {}))
    made: Machine = _record(Machine, f"machine {name}", {"name": name, **table, "container": inside})
    if made.engine not in ENGINES:
        raise UnknownMachine(
            f"engine of machine {name}", got=repr(made.engine), expected=f"one of {', '.join(ENGINES)}"
        )
    return made


def read_machines(path: Path) -> dict[str, Machine]:
    """All records of a machines file, by name.

    Raises
    ------
    UnknownMachine
        For a file that is absent or no TOML, and a record with a missing or an unknown key, or a value of another type.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as wrong:
        raise UnknownMachine(f"machines file {path}", got=wrong, expected="a table per machine") from None
    return {name: _machine(name, record) for name, record in tables.items()}


@cache
def machines(more: Path | None = None) -> dict[str, Machine]:
    """The records that quantkit ships, by name, then those of a further file; a name that both have is the file's."""
    shipped = read_machines(RECORDS)
    return shipped if more is None else {**shipped, **read_machines(more)}


def machine_named(name: str, more: Path | None = None) -> Machine:
    """The record of that name, shipped or of a further file.

    Raises
    ------
    UnknownMachine
        With the names there are.
    """
    known = machines(more)
    if name not in known:
        raise UnknownMachine("machine", got=repr(name), expected=f"one of {', '.join(known)}")
    return known[name]
