"""Ratios to bf16 against `baselines/<machine>/gemm.json`: a verdict an item, and the file written from a run.

Absolute times stand in no baseline: a ratio within one process is what a change of kernels moves. Run as
``python -m tests.support.gemm.baseline RUN`` to write the file of a finished run, and look at it before committing.
"""

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from quantkit.errors import BadRecord, QuantkitError
from tests.support.record import Record, Row, read_record

SCHEMA_VERSION = 1
ROOT = Path(__file__).parents[3] / "baselines"
# Below 3 % lie differences between clocks, drivers and allocations that no change of kernels makes.
LEAST_TOLERANCE = 0.03
# What a card's row says of the device that its speed does not depend on, or that is itself a speed.
NOT_KEY = frozenset({"copy_gb_per_s", "copy_spread_gb_per_s", "empty_replay_us"})

Numbers = Mapping[str, Any]


class BaselineRefused(QuantkitError):
    """No baseline may be written from this run."""


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


def _product_rows(record: Record) -> list[Row]:
    return [row for row in record.of("gemm") if row.outcome == "ok" and "shapes" in row.numbers]


def baseline_of(record: Record, accepted: str, old: Mapping[str, Any] | None) -> dict[str, Any]:
    """The content of a machine's file, from a run.

    Raises
    ------
    BaselineRefused
        Where the run timed nothing, or is worse than what it would replace and no reason is given.
    """
    card, rows = record.row("gemm", "", "card"), _product_rows(record)
    found = {row.item: ratios for row in rows if (ratios := ratios_of(row.numbers))}
    if card is None or card.outcome != "ok" or not found:
        raise BaselineRefused("run", got="no timed ratio to bf16", expected="a finished run of tests/gemm")
    key = key_of(card.numbers, rows[0].numbers["model"])
    if old is not None and old["key"] == key:
        worse = [
            item for item, now in found.items() if judge(now, old["ratios"].get(item)).verdict == "worse"
        ]
        gone = sorted(old["ratios"].keys() - found.keys())
        if (worse or gone) and not accepted:
            raise BaselineRefused(
                "new ratios",
                got=f"worse {worse}, gone {gone}",
                expected="neither",
                hint="--accept-regression REASON",
            )
    made = {"date": record.header["started"], "commit": record.header["commit"], "accepted": accepted}
    return {"schema_version": SCHEMA_VERSION, "key": key, **made, "ratios": found}


def write_baseline(record: Record, accepted: str = "", root: Path = ROOT) -> Path:
    """Write the file of the run's machine; its path."""
    path = path_of(record.header["settings"]["machine"], root)
    content = baseline_of(record, accepted, read_baseline(path) if path.exists() else None)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def main() -> None:
    """Command line: the run, and the reason for which worse ratios may be written."""
    parser = argparse.ArgumentParser(
        description="write a machine's baseline of GEMM ratios from a finished run"
    )
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument(
        "--accept-regression", default="", help="reason for which worse ratios may be written"
    )
    given = parser.parse_args()
    try:
        print(write_baseline(read_record(given.run), given.accept_regression))
    except QuantkitError as wrong:
        parser.error(str(wrong))


if __name__ == "__main__":
    main()
