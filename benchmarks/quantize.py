"""quantkit beside llm-compressor's model_free_ptq on one checkpoint: interleaved pairs, medians, peaks, the I/O floor.

`python -m benchmarks.quantize SOURCE --work DIR --json FILE --llmcompressor PYTHON`, where PYTHON is of a virtual
environment with `pip install llmcompressor torch==2.13.0`. llm-compressor rounds to nearest; quantkit's int4 is the
exact grid, and its builds are synced to disk before they count.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from quantkit.formats import FORMATS
from tests.support.host.machine import cpu_model

CHILD = Path(__file__).with_name("children.py")
RIVAL_SCHEMES = {"fp8": "FP8_DYNAMIC", "w8a8": "W8A8", "q4w4a16": "W4A16"}


def run(python: str, tool: str, source: Path, out: Path, scheme: str, keep: bool = False) -> dict[str, float]:
    """One child's figures; what earlier ones left to be written is written first."""
    if not keep:
        shutil.rmtree(out, ignore_errors=True)
    os.sync()
    command = [python, str(CHILD), tool, str(source), str(out), scheme]
    begun = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    whole = time.perf_counter() - begun
    if ended.returncode:
        sys.exit(f"{' '.join(command)} ended with {ended.returncode}: {ended.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return {**figures, "process_seconds": whole}


def pairs(arguments: argparse.Namespace, build: str) -> dict[str, list[dict[str, float]]]:
    """All repeats of one build, tools interleaved and their order turned about from pair to pair."""
    found: dict[str, list[dict[str, float]]] = {
        tool: [] for tool in ("quantkit", "llmcompressor", "floor", "verify")
    }
    for number in range(-1, arguments.pairs):  # the first warms caches and is not counted
        tools = ["floor", "quantkit", "llmcompressor"] if arguments.llmcompressor else ["floor", "quantkit"]
        for tool in tools if number % 2 else reversed(tools):
            python = arguments.llmcompressor if tool == "llmcompressor" else sys.executable
            scheme = RIVAL_SCHEMES[build] if tool == "llmcompressor" else build
            figures = run(python, tool, arguments.source, arguments.work / tool, scheme)
            if number >= 0:
                found[tool].append(figures)
        checked = run(
            sys.executable, "verify", arguments.source, arguments.work / "quantkit", build, keep=True
        )
        if number >= 0:
            found["verify"].append(checked)
    return found


def ratio(above: list[dict[str, float]], below: list[dict[str, float]], figure: str) -> float:
    """Median over the pairs of each pair's ratio."""
    return statistics.median(one[figure] / other[figure] for one, other in zip(above, below, strict=True))


def summary(build: str, found: dict[str, list[dict[str, float]]], source_gb: float) -> dict[str, Any]:
    """Medians of each tool, and ratios within pairs."""
    row: dict[str, Any] = {"build": build}
    for tool, repeats in found.items():
        if repeats:
            row[f"{tool}_s"] = statistics.median(one["seconds"] for one in repeats)
            row[f"{tool}_process_s"] = statistics.median(one["process_seconds"] for one in repeats)
            row[f"{tool}_peak_mb"] = max(one["peak_mb"] for one in repeats)
    if found["llmcompressor"]:
        row["times_as_fast"] = ratio(found["llmcompressor"], found["quantkit"], "seconds")
        row["process_times_as_fast"] = ratio(found["llmcompressor"], found["quantkit"], "process_seconds")
    row["times_floor"] = ratio(found["quantkit"], found["floor"], "seconds")
    row["verify_times_build"] = ratio(found["verify"], found["quantkit"], "seconds")
    row["s_per_gb"] = row["quantkit_s"] / source_gb
    return row


COLUMNS = {
    "build": "build",
    "quantkit_s": "quantkit s",
    "llmcompressor_s": "llm-compressor s",
    "times_as_fast": "times as fast",
    "quantkit_process_s": "with imports s",
    "llmcompressor_process_s": "with imports s",
    "process_times_as_fast": "times as fast",
    "quantkit_peak_mb": "quantkit MB",
    "llmcompressor_peak_mb": "llm-compressor MB",
    "times_floor": "times the floor",
    "verify_times_build": "verify / build",
    "s_per_gb": "s per GB",
}


def cell(value: str | float | None) -> str:
    """Three digits, and no more than there are before the point."""
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return value or ""


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown; columns that no row has are left out."""
    shown = {key: name for key, name in COLUMNS.items() if any(key in row for row in rows)}
    lines = [list(shown.values()), ["---"] * len(shown)]
    lines += [[cell(row.get(key)) for key in shown] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def read(file: Path) -> dict[str, Any]:
    """A run that `--json` wrote, its figures derived again from the repeats."""
    run: dict[str, Any] = json.loads(file.read_text())
    run["rows"] = [summary(build, found, run["source_gb"]) for build, found in run["repeats"].items()]
    return run


def text(run: dict[str, Any]) -> str:
    """What was compared and the table, in Markdown."""
    return f"{run['source_gb']:.2f} GB, {run['processor']}, {run['cores']} cores:\n\n{table(run['rows'])}"


def main() -> None:
    """Measure, print a table, and write all repeats where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder for outputs, emptied as it goes")
    parser.add_argument("--llmcompressor", metavar="PYTHON", help="python of the environment that has it")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--builds", nargs="+", default=list(RIVAL_SCHEMES), choices=list(FORMATS))
    parser.add_argument("--json", type=Path, required=True, help="every repeat is written there")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    source_gb = sum(path.stat().st_size for path in arguments.source.glob("*.safetensors")) / 1e9
    repeats = {build: pairs(arguments, build) for build in arguments.builds}
    machine = {"processor": cpu_model(), "cores": os.cpu_count()}
    run = {"source_gb": source_gb, **machine, "repeats": repeats}
    arguments.json.write_text(json.dumps(run, indent=1) + "\n")
    print(text(read(arguments.json)))


if __name__ == "__main__":
    main()
