"""What a run will take: seconds, hours and dollars of its items, from published rates. Pure.

Knows no clock and no pytest; `meter` and `billing` ask it. An item without a rate is said to have none, and a
guess is called one.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.cells import Grid
from tests.support.record import Key, line_to_row

PUBLISHED = Path(__file__).parents[2] / "baselines"
# An item of the sweep: a measurement of a cell ("repeat-1-8x128", "@2" in bf16's second pass), or the cell's medians.
CELL = re.compile(r"(?P<measured>.+-)?(?P<cell>\d+x\d+)(@\d+)?")
ALIKE = {"bf16qat": "bf16"}  # the same tensors in the same format
# Seconds an item takes where nothing was published: guesses for E2B on a server's disk and card, said as such.
GUESSED_S = {"quant": 60.0, "gemm": 20.0, "serve": 10.0}


@dataclass(frozen=True)
class Rates:
    """Seconds that were published for one machine.

    Attributes
    ----------
    source
        What the figures are from, for the reader.
    boots, cells
        Seconds by build; seconds of one repeat by (build, cell).
    """

    source: str = ""
    boots: Mapping[str, float] = field(default_factory=dict)
    cells: Mapping[tuple[str, str], float] = field(default_factory=dict)


def published_rates(machine: str, grid: Grid, folder: Path = PUBLISHED) -> Rates:
    """The rates of a machine from its published sweep, for the cells of a grid; empty where there is none."""
    path = folder / machine / "published" / "sweep.json"
    if not path.is_file():
        return Rates()
    sweep = json.loads(path.read_text(encoding="utf-8"))
    cells = {str(cell): cell.requests * cell.output_tokens for cell in grid.cells}
    boots_s, cells_s = {}, {}
    for row in map(line_to_row, sweep["rows"]):
        if row.item == "boot":
            boots_s[row.build] = float(row.numbers["boot_s"])
        if row.item in cells:
            cells_s[row.build, row.item] = cells[row.item] / float(row.numbers["tok_per_s"])
    return Rates(f"{sweep['what']} Source: {sweep['source']}, {sweep['date']}", boots_s, cells_s)


def stage_of(key: Key) -> str:
    """The line of the estimate that an item belongs to."""
    suite, _, item = key
    return "cells" if suite == "sweep" and CELL.fullmatch(item) else suite


def _pass_of(key: Key) -> tuple[str, str]:
    return (key[1], "@2" if key[2].endswith("@2") else "")


def expected_s(keys: Iterable[Key], rates: Rates) -> dict[Key, float]:
    """Seconds of each item that has a rate.

    The first item of a server's start carries its boot, the first measurement of a cell the warm-up, counted as
    one repeat more.
    """
    seconds: dict[Key, float] = {}
    begun = set()
    for key in keys:
        suite, build, item = key[0], ALIKE.get(key[1], key[1]), CELL.fullmatch(key[2])
        if suite in GUESSED_S and rates.source:
            seconds[key] = GUESSED_S[suite]
        if suite == "sweep" and item and (build, item["cell"]) in rates.cells:
            first = (_pass_of(key), item["cell"]) not in begun
            seconds[key] = rates.cells[build, item["cell"]] * (1 + first) if item["measured"] else 0.0
            begun.add((_pass_of(key), item["cell"]))
        if suite in ("serve", "sweep") and build in rates.boots and (_pass_of(key), "") not in begun:
            begun.add((_pass_of(key), ""))
            seconds[key] = seconds.get(key, 0.0) + rates.boots[build]
    return seconds


def dollars(seconds: float, price: float) -> str:
    """``$2.39``."""
    return f"${seconds / 3600 * price:.2f}"


def hours(seconds: float) -> str:
    """``1.2 h``, or minutes below one hour."""
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def estimate_lines(machine: str, keys: Iterable[Key], rates: Rates, price: float) -> list[str]:
    """The table of a dry run: what would run, how long, how many dollars, and where the figures are from."""
    keys = tuple(keys)
    seconds = expected_s(keys, rates)
    stages: dict[str, list[Key]] = defaultdict(list)
    for key in keys:
        stages[stage_of(key)].append(key)
    boots = {_pass_of(key) for key in keys if key[0] in ("serve", "sweep") and key[1]}
    lines = [f"would run on {machine}: {len(keys)} items, {len(boots)} server starts"]
    for stage, members in stages.items():
        known = [seconds[key] for key in members if key in seconds]
        took = f"{hours(sum(known)):>8}  {dollars(sum(known), price):>8}" if known else f"{'not known':>18}"
        without = len(members) - len(known)
        lines.append(
            f"  {stage:<7}{len(members):>6} items {took}"
            + (f"  ({without} without a rate)" if known and without else "")
        )
    if not seconds:
        return [*lines, f"hours and dollars are not known: no rates were published for {machine}"]
    total = sum(seconds.values())
    lines.append(
        f"  {'all':<7}{len(keys):>6} items {hours(total):>8}  {dollars(total, price):>8}  at ${price:.2f} an hour"
    )
    guesses = ", ".join(f"{suite} {guess:.0f} s" for suite, guess in GUESSED_S.items())
    return [
        *lines,
        f"boots and cells: {rates.source}",
        f"guessed, an item: {guesses}; downloads are not counted",
    ]
