"""What one run measures, of what, on which machine: the command line as one checked, frozen record.

Knows no test and probes no hardware; `options` fills it from pytest's command line.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from quantkit.formats import FORMATS, Format, format_named
from quantkit.machines import Machine

GRIDS = ("smoke", "article")
GATES = ("baseline", "ab", "off")


@dataclass(frozen=True)
class Boot:
    """One start of one build's server; bf16 is started a second time, last, to see how the run drifted."""

    build: Format
    nth: int = 1

    def __str__(self) -> str:
        return self.build.name if self.nth == 1 else f"{self.build.name}@{self.nth}"


@dataclass(frozen=True)
class Settings:
    """The settings of one run.

    Attributes
    ----------
    source, bf16_source
        The QAT checkpoint; the checkpoint served as ``bf16`` where it is another.
    checkpoints
        Folder that builds are made in, and found in.
    run
        Folder of this run: its record and everything beside it.
    against
        What ``--gate ab`` compares the one build with: a build's name, or an engine's image.
    found
        Builds of others, taken as they are: they lay under `checkpoints` by their names when the run began.
    price, budget
        US dollars an hour, and dollars after which no further item starts (None: no limit).
    """

    source: Path
    bf16_source: Path | None
    builds: tuple[Format, ...]
    checkpoints: Path
    run: Path
    from_runs: tuple[Path, ...]
    retry_failed: bool
    grid: str
    rows: tuple[int, ...]
    image: str
    engine_args: tuple[str, ...]
    engine_env: Mapping[str, str]
    gate: str
    against: str
    accept_regression: str
    price: float
    budget: float | None
    dry_run: bool
    machine: Machine
    found: tuple[str, ...]

    @property
    def boots(self) -> tuple[Boot, ...]:
        """Every server start of a sweep: each build once, and bf16 once more at the end."""
        once = tuple(Boot(build) for build in self.builds)
        return (*once, *(Boot(build, 2) for build in self.builds if build.name == "bf16"))

    @property
    def key(self) -> dict[str, object]:
        """What must be equal for two runs' figures to be compared."""
        return {
            "machine": self.machine.name,
            "grid": self.grid,
            "rows": list(self.rows),
            "image": self.image,
            "engine_args": list(self.engine_args),
            "engine_env": dict(self.engine_env),
            "bf16": "the QAT source's copy" if self.bf16_source is None else "a source of its own",
            "found": list(self.found),
        }


def named_builds(names: str, with_bf16_source: bool) -> tuple[Format, ...]:
    """The builds that a comma-separated list names, ``all`` being every one, in the table's order.

    With a bf16 source of its own the QAT checkpoint's copy becomes a further build, ``bf16qat``.
    """
    known = dict(FORMATS)
    if with_bf16_source:
        known["bf16qat"] = replace(FORMATS["bf16"], name="bf16qat")
    if names == "all":
        return tuple(known.values())
    wanted = {name.strip() for name in names.split(",")}
    for name in wanted - known.keys():
        format_named(name)
    return tuple(build for name, build in known.items() if name in wanted)
