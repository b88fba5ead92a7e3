"""quantkit beside llm-compressor's model_free_ptq on one checkpoint: interleaved pairs, medians, peaks, the I/O floor.

`python -m benchmarks.quantize SOURCE --work DIR --llmcompressor PYTHON`, where PYTHON is of a virtual environment with
`pip install llmcompressor torch==2.13.0`. llm-compressor rounds to nearest; quantkit's int4 is the exact grid, and
its builds are synced to disk before they count.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from quantkit.formats import FORMATS

CHILD = Path(__file__).with_name("children.py")
RIVAL_SCHEMES = {"fp8": "FP8_DYNAMIC", "w8a8": "W8A8", "q4w4a16": "W4A16"}


def run(python: str, tool: str, source: Path, out: Path, scheme: str, keep: bool = False) -> dict[str, float]:
    """One child's figures; what earlier ones left to be written is written first."""
    if not keep:
        shutil.rmtree(out, ignore_errors=True)
    os.sync()
    command = [python, str(CHILD), tool, str(source), str(out), scheme]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    if ended.returncode:
        sys.exit(f"{' '.join(command)} ended with {ended.returncode}: {ended.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return figures


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


def summary(build: str, found: dict[str, list[dict[str, float]]], source_gb: float) -> dict[str, Any]:
    """Medians and ratios; a ratio is the median over pairs of each pair's ratio."""
    row: dict[str, Any] = {"build": build}
    for tool, repeats in found.items():
        if repeats:
            row[f"{tool}_s"] = statistics.median(one["seconds"] for one in repeats)
            row[f"{tool}_peak_mb"] = max(one["peak_mb"] for one in repeats)
    ours = found["quantkit"]
    for tool in ("llmcompressor", "floor", "verify"):
        if found[tool]:
            ratios = [other["seconds"] / own["seconds"] for own, other in zip(ours, found[tool], strict=True)]
            row[f"{tool}_over_quantkit"] = statistics.median(ratios)
    row["s_per_gb"] = row["quantkit_s"] / source_gb
    row["repeats"] = found
    return row


COLUMNS = {
    "build": "build",
    "quantkit_s": "quantkit s",
    "llmcompressor_s": "llm-compressor s",
    "llmcompressor_over_quantkit": "times as fast",
    "quantkit_peak_mb": "quantkit MB",
    "llmcompressor_peak_mb": "llm-compressor MB",
    "floor_s": "floor s",
    "verify_s": "verify s",
    "s_per_gb": "s per GB",
}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [list(COLUMNS.values()), ["---"] * len(COLUMNS)]
    for row in rows:
        values = [row.get(key) for key in COLUMNS]
        lines.append(["" if v is None else v if isinstance(v, str) else f"{v:.3g}" for v in values])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Measure, print a table, and write all repeats where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder for outputs, emptied as it goes")
    parser.add_argument("--llmcompressor", metavar="PYTHON", help="python of the environment that has it")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--builds", nargs="+", default=list(RIVAL_SCHEMES), choices=list(FORMATS))
    parser.add_argument("--json", type=Path, help="write all repeats there")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    source_gb = sum(path.stat().st_size for path in arguments.source.glob("*.safetensors")) / 1e9
    rows = [summary(build, pairs(arguments, build), source_gb) for build in arguments.builds]
    print(f"{arguments.source}: {source_gb:.2f} GB, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
