"""A run as the report sees it: builds, cells and figures, each there or a Gap with its reason. Pure.

Knows the shape of the record's rows and nothing of tables, pages or terminals. A missing row, field or build
is never an error here and never a number.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean, median, stdev
from typing import Any

from quantkit.formats import FORMATS, Format
from tests.support.record import Record, Row

BASE = "bf16"  # every ratio is against this build, in the same cell of the same run
NOISY_CV = 0.10  # a load under which a cell varies more than this is ranked only where none is steadier
CELL = re.compile(r"(\d+)x(\d+)(@2)?")
MODULES = re.compile(r"\b(?:tests|quantkit)(?:\.\w+)+\.(?=[A-Z])")
REPEAT = re.compile(r"CellRefused: repeat \d+ of \S+, got (.+), expected a number")
HEADLINE = ("text", "thinking", "tool")  # the three that an answers figure such as 3/3 counts
QUESTIONS = (*HEADLINE, "text streamed", "tool result", "image refused")


@dataclass(frozen=True)
class Gap:
    """A figure that is not there, and why."""

    reason: str

    def __str__(self) -> str:
        return "not measured"


@dataclass(frozen=True)
class Repeat:
    """One repeat of a cell: output tokens a second, and the medians of its requests in seconds."""

    tok_per_s: float
    ttft_s: float | None
    tpot_s: float | None


@dataclass(frozen=True)
class Cell:
    """One build under one load.

    Attributes
    ----------
    nth
        2 for bf16's second pass at the end of a run.
    cv
        Sample standard deviation over mean of the repeats, None where unknown.
    cv_at_most
        A published bound on `cv`, where the repeats themselves were not published.
    """

    build: str
    concurrency: int
    prompt_tokens: int
    nth: int
    outcome: str
    reason: str
    output_tokens: int | None = None
    tok_per_s: float | None = None
    steady_tok_per_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    cv: float | None = None
    cv_at_most: float | None = None
    repeat_count: int = 0
    repeats: tuple[Repeat, ...] = ()
    ratio: float | None = None

    @property
    def load(self) -> tuple[int, int]:
        """Requests at once, and tokens of each prompt."""
        return (self.concurrency, self.prompt_tokens)

    @property
    def known_cv(self) -> float | None:
        """The cell's own variation, or the published bound on it."""
        return self.cv if self.cv is not None else self.cv_at_most


def is_noisy(cell: Cell) -> bool:
    """Whether the cell's own repeats vary by more than NOISY_CV; a bound on them does not say so."""
    return cell.cv is not None and cell.cv > NOISY_CV


def plain_reason(reason: str) -> str:
    """A reason without the modules that its errors live in; a cell's is that of the repeat that spoilt it."""
    text = MODULES.sub("", reason)
    inner = REPEAT.fullmatch(text)
    return inner[1] if inner else text


def load_name(load: tuple[int, int]) -> str:
    """``64 × 8192`` for 64 requests at once of 8,192 prompt tokens each."""
    return f"{load[0]} × {load[1]}"


def finite_number(value: Any) -> float | None:
    """The number, or None for what is none (a flag is none)."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _repeats(numbers: Mapping[str, Any]) -> tuple[Repeat, ...]:
    given = numbers.get("repeats")
    rows = [each for each in given if isinstance(each, Mapping)] if isinstance(given, list | tuple) else []
    kept = [each for each in rows if finite_number(each.get("tok_per_s"))]
    return tuple(
        Repeat(each["tok_per_s"], finite_number(each.get("ttft_s")), finite_number(each.get("tpot_s")))
        for each in kept
    )


def _cv(numbers: Mapping[str, Any], repeats: tuple[Repeat, ...]) -> float | None:
    rates = [each.tok_per_s for each in repeats]
    if len(rates) > 1:
        return stdev(rates) / mean(rates)
    return finite_number(numbers.get("cv"))


def cell_of(row: Row) -> Cell | None:
    """The cell of a sweep row; None for a row of another kind, such as one repeat's.

    A row that did not end ok yields a cell without numbers, whatever it holds.
    """
    named = CELL.fullmatch(row.item)
    if row.suite != "sweep" or not named:
        return None
    head = (row.build, int(named[1]), int(named[2]), 2 if named[3] else 1, row.outcome, row.reason)
    numbers = row.numbers
    if row.outcome != "ok":
        return Cell(*head)
    repeats = _repeats(numbers)
    plain: dict[str, Any] = {
        name: finite_number(numbers.get(name))
        for name in ("output_tokens", "tok_per_s", "steady_tok_per_s", "ttft_s", "tpot_s", "cv_at_most")
    }
    if plain["tok_per_s"] is None and repeats:
        plain["tok_per_s"] = median(each.tok_per_s for each in repeats)
    count = len(repeats) or int(finite_number(numbers.get("repeat_count")) or 0)
    return Cell(*head, cv=_cv(numbers, repeats), repeat_count=count, repeats=repeats, **plain)


@dataclass(frozen=True)
class Build:
    """One build: its name and its row of the table of formats, None for a name that the table lacks."""

    name: str
    format: Format | None

    @property
    def linears(self) -> str:
        """How its linears are stored."""
        if self.format is None:
            return "unknown"
        return self.format.linears.name if self.format.linears else "bf16"

    @property
    def tables(self) -> str:
        """How its tables are stored: ``bf16``, ``PLE int4`` or ``int4``."""
        if self.format is None:
            return "unknown"
        if not self.format.tables:
            return "bf16"
        return "int4" if self.format.unties_lm_head else "PLE int4"


def _format_of(name: str) -> Format | None:
    return FORMATS.get(name) or (FORMATS[BASE] if name == "bf16qat" else None)


class Run:
    """A record, asked by build, cell and figure.

    Parameters
    ----------
    record
        As `tests.support.record.read_record` gives it.
    """

    def __init__(self, record: Record) -> None:
        rows = tuple(replace(row, reason=plain_reason(row.reason)) for row in record.rows)
        self.record = record = replace(record, rows=rows)
        self.header = record.header
        self._rows = {row.key: row for row in record.rows}

    @cached_property
    def builds(self) -> tuple[Build, ...]:
        """Every build that the record names, in the order of the table of formats, unknown ones last."""
        named = {row.build: None for row in self.record.rows if row.build and row.suite != "gate"}
        order = {name: index for index, name in enumerate(dict.fromkeys([BASE, "bf16qat", *FORMATS]))}
        names = sorted(named, key=lambda name: order.get(name, len(order)))
        return tuple(Build(name, _format_of(name)) for name in names)

    @cached_property
    def all_cells(self) -> tuple[Cell, ...]:
        """Every cell, both passes of bf16, with the ratio to bf16's first pass."""
        cells = [cell for row in self.record.of("sweep") if (cell := cell_of(row))]
        base = {c.load: c.tok_per_s for c in cells if c.build == BASE and c.nth == 1 and c.tok_per_s}
        return tuple(
            Cell(
                **{**vars(c), "ratio": c.tok_per_s / base[c.load] if c.tok_per_s and c.load in base else None}
            )
            for c in cells
        )

    @cached_property
    def cells(self) -> Mapping[tuple[str, tuple[int, int]], Cell]:
        """Cells by build and load, first passes only."""
        return {(cell.build, cell.load): cell for cell in self.all_cells if cell.nth == 1}

    @cached_property
    def grid(self) -> tuple[tuple[int, int], ...]:
        """Every load that any build was put under, by concurrency, then prompt."""
        return tuple(sorted({cell.load for cell in self.all_cells}))

    @cached_property
    def noisy(self) -> frozenset[tuple[int, int]]:
        """Loads under which some build varied by more than NOISY_CV."""
        return frozenset(cell.load for cell in self.all_cells if is_noisy(cell))

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """The numbers of requests at once, rising."""
        return tuple(sorted({load[0] for load in self.grid}))

    def row(self, suite: str, build: str, item: str) -> Row | None:
        """The row of that key."""
        return self._rows.get((suite, build, item))

    def figure(self, suite: str, build: str, item: str, *path: str) -> Any:
        """A figure of a row by the names that lead to it, or a Gap with the reason."""
        row = self.row(suite, build, item)
        if row is None:
            return Gap(f"this run has no {suite} {item}")
        value: Any = row.numbers
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is None:
            return Gap(row.reason or "not recorded")
        return value

    def cell(self, build: str, load: tuple[int, int]) -> Cell:
        """The cell, or one that says it was not run."""
        absent = Cell(build, *load, 1, "not_run", "this run has no such cell")
        return self.cells.get((build, load), absent)

    @cached_property
    def planned(self) -> tuple[Build, ...]:
        """Every build that the header says was to be measured, whether or not a row names it."""
        return tuple(Build(str(name), _format_of(str(name))) for name in self.header.get("builds", ()))

    @property
    def machine(self) -> str:
        """Name of the machine's record, empty where the header does not tell."""
        settings = self.header.get("settings", {})
        return str(self.header.get("machine") or settings.get("machine") or "")

    @property
    def published(self) -> bool:
        """Whether these figures were taken over from a publication rather than measured here."""
        return self.header.get("origin") == "published"
