"""Two servers compared in one session: interleaved pairs, one permutation test over all cells, a fresh boot.

Pure: log ratios in, verdicts out; starts no server and reads no file. Imported by the sweep and `gating`.
"""

import re
from collections.abc import Iterable, Mapping
from math import exp

import numpy as np

from tests.support.gate.verdicts import Verdict
from tests.support.record import Row
from tests.support.stats import max_t_p_values

PAIRS = 8  # 256 sign patterns: the least p is 0.004
ALPHA = (
    0.01  # chance that any of a suite's cells is called a loss where there is none, before it is confirmed
)
PHASES = ("first", "fresh")  # a loss must be seen again after both servers were started anew
ITEM = re.compile(r"pair-(first|fresh)-(\d+)-(\d+x\d+)")

Pairs = dict[str, list[float]]  # by cell, log(B / A) of each pair


def b_goes_first(pair: int) -> bool:
    """ABBA: every other pair begins with B, so that a steady drift of the machine meets both alike."""
    return pair % 2 == 0


def pairs_of(rows: Iterable[Row]) -> dict[str, Pairs]:
    """Log ratios of a run's pairs, by phase and cell; the test does not ask for their order."""
    found: dict[str, Pairs] = {phase: {} for phase in PHASES}
    for row in rows:
        named = ITEM.fullmatch(row.item)
        if named and row.outcome == "ok":
            found[named[1]].setdefault(named[3], []).append(row.numbers["log_ratio"])
    return found


def losses(pairs: Pairs) -> dict[str, float]:
    """p of each cell of B being slower than A, adjusted for all cells; cells without all pairs are left out."""
    whole = {cell: values for cell, values in pairs.items() if len(values) == PAIRS}
    if not whole:
        return {}
    found = max_t_p_values(np.array(list(whole.values())).T)
    return dict(zip(whole, map(float, found), strict=True))


def alarmed(pairs: Pairs) -> list[str]:
    """Cells that a fresh boot has to confirm."""
    return [cell for cell, p in losses(pairs).items() if p <= ALPHA]


def verdicts(build: str, phases: Mapping[str, Pairs], enforced: bool) -> list[Verdict]:
    """One verdict a cell; `worse` only where both phases say so.

    Parameters
    ----------
    build
        Build of B, the one that is judged.
    enforced
        Whether a loss can fail the run.
    """
    first, fresh = phases["first"], phases["fresh"]
    lost, again = losses(first), losses(fresh)
    gained = losses({cell: [-value for value in values] for cell, values in first.items()})
    found = []
    for cell, values in first.items():
        if cell not in lost:
            why = f"{len(values)} of {PAIRS} pairs were measured"
            found.append(Verdict(build, cell, "not_comparable", enforced, why=why))
            continue
        ratio = exp(sum(values) / len(values))
        why = f"p {lost[cell]:.3f} of a loss in {PAIRS} pairs"
        verdict = "better" if gained[cell] <= ALPHA else "same"
        if lost[cell] <= ALPHA:
            verdict = "worse" if again.get(cell, 1.0) <= ALPHA else "same"
            why += f", {again[cell]:.3f} on a fresh boot" if cell in again else ", no fresh boot confirmed it"
        found.append(Verdict(build, cell, verdict, enforced, ratio, why=why))
    return found
