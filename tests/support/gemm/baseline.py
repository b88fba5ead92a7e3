"""Ratios to bf16 against `baselines/<machine>/gemm.json`: a verdict an item, and the file written from a run.

Absolute times stand in no baseline: a ratio within one process is what a change of kernels moves. The file is written
by ``pytest tests/gemm --force-regen --from RUN1,RUN2,RUN3``; `gating` calls what is here.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from quantkit.errors import BadRecord, QuantkitError
from tests.support.gemm.samples import spread
from tests.support.record import Record

SCHEMA_VERSION = 1
ROOT = Path(__file__).parents[3] / "baselines"
# Below 3 % lie differences between clocks, drivers and allocations that no change of kernels makes.
LEAST_TOLERANCE = 0.03
# What a card's row says of the device that its speed does not depend on, or that is itself a speed.
NOT_KEY = frozenset({"copy_gb_per_s", "copy_spread_gb_per_s", "empty_replay_us"})

Numbers = Mapping[str, Any]
Ratios = Mapping[str, Mapping[str, float]]  # ``token`` and each shape: ratio to bf16, and spread


class BaselineRefused(QuantkitError):
    """No baseline may be written from these runs."""


class RatioWorse(QuantkitError):
    """A number format gained less over bf16 than its baseline allows: a regression."""


@dataclass(frozen=True)
class Verdict:
    """One item against its baseline; `change` is relative, of the ratio to bf16."""

    verdict: str
    change: float | None = None
    tolerance: float | None = None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For a row: what is known."""
        return {name: value for name, value in vars(self).items() if value not in (None, "")}


def path_of(machine: str, root: Path = ROOT) -> Path:
    """The file of a machine's ratios."""
    return root / machine / "gemm.json"


def key_of(card: Numbers, model: str) -> dict[str, Any]:
    """What must be equal for ratios to be compared: the device's facts, torch among them, and the model."""
    return {"model": model, **{name: value for name, value in card.items() if name not in NOT_KEY}}


def ratios_of(numbers: Numbers) -> dict[str, dict[str, float]]:
    """The ratios of a row with their spread, ``token`` and by shape; empty for bf16 and for what did not run."""
    timed = {"token": numbers, **numbers.get("shapes", {})}
    return {
        name: {"ratio": each["ratio_bf16"], "spread": each["ratio_spread"]}
        for name, each in timed.items()
        if "ratio_spread" in each
    }


def judge(now: Numbers, then: Numbers | None) -> Verdict:
    """One item: its token's ratio where both have one, else the median over the shapes that both have.

    Parameters
    ----------
    now, then
        As `ratios_of` gives them; `then` is None where the baseline lacks the item.

    Notes
    -----
    The tolerance is the spread that both runs report, and never below `LEAST_TOLERANCE`.
    """
    if then is None:
        return Verdict("new", why="not in the baseline")
    shared = ["token"] if "token" in now and "token" in then else sorted(now.keys() & then.keys())
    if not shared:
        return Verdict("not_comparable", why="no ratio in both")
    change = median(now[name]["ratio"] / then[name]["ratio"] - 1 for name in shared)
    spreads = ((now[name]["spread"] + then[name]["spread"]) / then[name]["ratio"] for name in shared)
    tolerance = max(LEAST_TOLERANCE, median(spreads))
    if not abs(change) > tolerance:
        return Verdict("same", change, tolerance)
    return Verdict("better" if change > 0 else "worse", change, tolerance)


def judge_item(item: str, numbers: Numbers, card: Numbers, path: Path) -> Verdict:
    """One item of a run against a machine's file."""
    if not path.exists():
        return Verdict("new", why="no baseline yet")
    given = read_baseline(path)
    key = key_of(card, numbers["model"])
    if differs := [
        name for name in sorted(key.keys() | given["key"]) if key.get(name) != given["key"].get(name)
    ]:
        return Verdict("not_comparable", why=f"other {', '.join(differs)}")
    return judge(ratios_of(numbers), given["ratios"].get(item))


def require_no_worse(item: str, verdict: Verdict) -> None:
    """Refuse an item that is worse than its baseline.

    Raises
    ------
    RatioWorse
        With how far it fell.
    """
    if verdict.verdict == "worse":
        got, allowed = f"{verdict.change:+.1%}", f"within {verdict.tolerance:.1%} of the baseline"
        raise RatioWorse(f"ratio to bf16 of {item}", got=got, expected=allowed)


def read_baseline(path: Path) -> dict[str, Any]:
    """A machine's file.

    Raises
    ------
    BadRecord
        For what is no JSON, has another schema, or a ratio or spread that is not finite and positive.
    """
    try:
        given: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if given["schema_version"] != SCHEMA_VERSION:
            raise BadRecord(f"schema of {path}", got=given["schema_version"], expected=SCHEMA_VERSION)
        for item, shapes in given["ratios"].items():
            for name, each in shapes.items():
                if not (0 < each["ratio"] < math.inf and 0 <= each["spread"] < math.inf):
                    raise BadRecord(f"ratio of {item} {name} in {path}", got=each, expected="finite, above 0")
        assert isinstance(given["key"], dict)
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as wrong:
        raise BadRecord(
            f"baseline {path}", got=repr(wrong), expected="a file that this module wrote"
        ) from None
    return given


def _ratios_by_item(record: Record) -> dict[str, Ratios]:
    rows = (row for row in record.of("gemm") if row.outcome == "ok" and "shapes" in row.numbers)
    return {row.item: ratios for row in rows if (ratios := ratios_of(row.numbers))}


def _key_of_run(record: Record) -> dict[str, Any]:
    card = record.row("gemm", "", "card")
    models = [row.numbers["model"] for row in record.of("gemm") if "model" in row.numbers]
    if card is None or card.outcome != "ok" or not _ratios_by_item(record):
        raise BaselineRefused("run", got="no timed ratio to bf16", expected="a finished run of tests/gemm")
    return key_of(card.numbers, models[0])


def merged(runs: Sequence[Ratios]) -> dict[str, dict[str, float]]:
    """What all runs have of one item: the median ratio, and a spread that covers the runs' own and their distance."""
    found = {}
    for name in [name for name in runs[0] if all(name in run for run in runs)]:
        ratios = [run[name]["ratio"] for run in runs]
        own = median(run[name]["spread"] for run in runs)
        found[name] = {"ratio": median(ratios), "spread": max(own, spread(ratios))}
    return found


def baseline_of(records: Sequence[Record], accepted: str) -> dict[str, Any]:
    """The content of a machine's file, from runs on one device.

    Raises
    ------
    BaselineRefused
        Where a run timed nothing, or the runs differ in device, torch or model.
    """
    key, *others = [_key_of_run(record) for record in records]
    if any(other != key for other in others):
        raise BaselineRefused("runs to merge", got="other devices or models", expected="one")
    items = [_ratios_by_item(record) for record in records]
    shared = [item for item in items[0] if all(item in run for run in items)]
    ratios = {item: merged([run[item] for run in items]) for item in shared}
    header = records[-1].header
    made = {"date": header["started"], "commit": header["commit"], "accepted": accepted}
    return {"schema_version": SCHEMA_VERSION, "key": key, **made, "ratios": ratios}


def changes(old: Numbers | None, new: Numbers) -> list[str]:
    """Every item, old against new, in a line; those that are worse, or gone, say so."""
    before = old["ratios"] if old is not None and old["key"] == new["key"] else {}
    told = [_change(item, before.get(item), now) for item, now in new["ratios"].items()]
    return told + [f"gemm {item}: GONE" for item in sorted(before.keys() - new["ratios"].keys())]


def _change(item: str, then: Ratios | None, now: Ratios) -> str:
    name = "token" if "token" in now and "token" in (then or now) else min(now.keys() & (then or now).keys())
    ratio = now[name]["ratio"]
    if then is None:
        return f"gemm {item}: {name}, old none, new {ratio:.3f}"
    old, worse = then[name]["ratio"], judge(now, then).verdict == "worse"
    return f"gemm {item}: {name}, old {old:.3f}, new {ratio:.3f}, ratio {ratio / old:.3f}{' WORSE' * worse}"


def planned(
    records: Sequence[Record], machine: str, accepted: str, root: Path
) -> tuple[Path, dict[str, Any], list[str]]:
    """The file that would be written, its content, and how that differs from what is there.

    Raises
    ------
    BaselineRefused
        Where an item is worse, or gone, and no reason was given.
    """
    path = path_of(machine, root)
    content = baseline_of(records, accepted)
    told = changes(read_baseline(path) if path.exists() else None, content)
    if (bad := [line for line in told if line.endswith(("WORSE", "GONE"))]) and not accepted:
        raise BaselineRefused(
            "new ratios", got="; ".join(bad), expected='none worse or gone, or --accept-regression "why"'
        )
    return path, content, told


def write(path: Path, content: Numbers) -> None:
    """Write the file whole, and only where it can be read again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        read_baseline(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
