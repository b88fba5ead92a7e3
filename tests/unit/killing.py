"""Kill a build with SIGKILL at random moments, resume it, compare every byte. Run as a program.

`python -m tests.unit.killing SOURCE WORK --kills 200` prints one JSON object. It forks, so that a killed child
has everything imported and spends its life building; the parent holds no threads while it forks.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from quantkit.convert import build
from quantkit.formats import format_named
from quantkit.journal import JOURNAL
from tests.unit.files import contents

FORMATS = ("fp8", "w8a8emb4", "q4w4a16emb4")


def child_build(source: Path, out: Path, name: str) -> int:
    """Begin a build in a process of its own; the result is its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        build(source, out, format_named(name))
    finally:
        os._exit(0)


def killed_once(source: Path, work: Path, name: str, after_s: float) -> bool:
    """Kill a build after so long; whether it was killed before it ended."""
    pid = child_build(source, work / "out", name)
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def wholes(out: Path) -> set[str]:
    """Final names that stand in the folder."""
    names = {path.name for path in out.iterdir()} if out.exists() else set()
    return {name for name in names if not name.endswith(".part") and name != JOURNAL}


def one_round(
    source: Path, work: Path, name: str, expected: dict[str, bytes], longest_s: float
) -> dict[str, int]:
    """Kill up to three times at random moments, then let it finish; counts of what was seen."""
    shutil.rmtree(work / "out", ignore_errors=True)
    seen = {"killed": 0, "wrong": 0, "half_written": 0, "reused": 0}
    for _ in range(random.randint(1, 3)):
        seen["killed"] += killed_once(source, work, name, random.uniform(0, longest_s))
        for final in wholes(work / "out"):
            seen["half_written"] += (work / "out" / final).read_bytes() != expected[final]
    seen["reused"] += build(source, work / "out", format_named(name)).blocks_reused
    seen["wrong"] += contents(work / "out") != expected
    return seen


def main() -> int:
    """Exit status 0 where every resume ended byte-identical."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parsed = parser.parse_args()
    random.seed(parsed.seed)
    total = {"killed": 0, "wrong": 0, "half_written": 0, "reused": 0}
    expected, longest_s = {}, {}
    for name in FORMATS:
        build(parsed.source, parsed.work / name, format_named(name))
        begun = time.monotonic()
        build(parsed.source, parsed.work / f"{name}-timed", format_named(name))
        longest_s[name] = time.monotonic() - begun
        expected[name] = contents(parsed.work / name)
    while total["killed"] < parsed.kills:
        name = random.choice(FORMATS)
        seen = one_round(parsed.source, parsed.work, name, expected[name], longest_s[name])
        total = {key: total[key] + seen[key] for key in total}
    print(json.dumps(total))
    return int(total["wrong"] + total["half_written"] > 0 or total["reused"] == 0)


if __name__ == "__main__":
    sys.exit(main())
