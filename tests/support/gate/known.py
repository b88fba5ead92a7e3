"""Known failures: one committed table, each entry a strict xfail with its reason. Knows no suite's code.

An entry that names a build or a machine that does not exist is an error, for it would silently match nothing.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit.errors import QuantkitError
from quantkit.formats import FORMATS
from quantkit.machines import machines
from tests.support.host.machine import cpu_flags
from tests.support.record import Key

TABLE = Path(__file__).parents[3] / "baselines" / "known_failures.toml"


class BadKnownFailure(QuantkitError):
    """An entry of known_failures.toml that cannot be applied."""


@dataclass(frozen=True)
class KnownFailure:
    """One entry; the file's head says what each key means."""

    machine: str
    suite: str
    item: str
    builds: tuple[str, ...]
    error: str
    without_cpu_flags: frozenset[str]
    reason: str
    source: str

    def holds(self, machine: str, key: Key, flags: frozenset[str]) -> bool:
        """Whether this item, on this machine and processor, is the one that is known to fail."""
        suite, build, item = key
        here = machine == self.machine and not (self.without_cpu_flags & flags)
        return here and suite == self.suite and item == self.item and build in self.builds


def _entry(found: Mapping[str, Any]) -> KnownFailure:
    try:
        entry = KnownFailure(
            **{
                **found,
                "builds": tuple(found["builds"]),
                "without_cpu_flags": frozenset(found.get("without_cpu_flags", ())),
            }
        )
    except (TypeError, KeyError) as wrong:
        raise BadKnownFailure(
            "an entry of known_failures.toml", got=wrong, expected="its eight keys"
        ) from None
    unknown = [name for name in entry.builds if name not in FORMATS]
    if unknown or entry.machine not in machines():
        raise BadKnownFailure(
            f"known failure of {entry.item}", got=unknown or entry.machine, expected="known names"
        )
    return entry


def known_failures(path: Path = TABLE) -> tuple[KnownFailure, ...]:
    """All entries of the table, checked; a project without a table knows of none."""
    if not path.is_file():
        return ()
    with path.open("rb") as file:
        return tuple(_entry(found) for found in tomllib.load(file).get("failure", ()))


def known_failure(entries: Iterable[KnownFailure], machine: str, key: Key) -> KnownFailure | None:
    """The entry that this item falls under on this host, if any."""
    flags = cpu_flags()
    return next((entry for entry in entries if entry.holds(machine, key, flags)), None)
