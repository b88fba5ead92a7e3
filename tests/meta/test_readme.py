"""The README says nothing that is not so: its table is the committed record's, its commands and options exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.quantize import read, text
from quantkit.formats import FORMATS
from tests.report.terminal import table
from tests.support.plugins.options import OPTIONS
from tests.support.plugins.recording import KNOWN
from tests.support.record import read_record

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEMO = ROOT / "docs" / "demo"
MEASURED = ROOT / "benchmarks" / "measured"


def blocks(kind: str) -> list[tuple[str, str]]:
    """What stands between a marker of this kind and its end: (argument, text)."""
    return re.findall(rf"<!-- {kind}: (\S+) -->\n(.*?)<!-- end -->", README, flags=re.DOTALL)


def test_the_table_is_that_of_the_committed_record() -> None:
    """If this fails after a new docs/demo/record.jsonl: paste what `python -m tests.meta.test_readme` prints."""
    [(folder, text)] = blocks("table")
    assert folder == "docs/demo"
    assert text == demo_block()


def test_the_committed_record_is_a_whole_run() -> None:
    record = read_record(DEMO)
    assert {row.build for row in record.of("sweep")} == set(FORMATS)
    assert [
        row.key for row in record.rows if row.outcome == "failed" and not row.reason.startswith(KNOWN)
    ] == []
    assert record.footer["not_run"] == 0


def test_the_benchmark_is_that_of_the_committed_repeats() -> None:
    """If this fails after a new file in benchmarks/measured: paste what `python -m tests.meta.test_readme` prints."""
    [(folder, shown)] = blocks("benchmark")
    assert folder == "benchmarks/measured"
    assert shown == benchmark_block()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake ([a-z-]+)", README))))
def test_a_make_target_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize(
    "command", sorted(set(re.findall(r"^    [.]venv/bin/quantkit (\w+)", README, flags=re.MULTILINE)))
)
def test_a_subcommand_exists(command: str) -> None:
    run = [sys.executable, "-m", "quantkit", command, "--help"]
    assert subprocess.run(run, capture_output=True, timeout=60, check=False).returncode == 0


def test_every_option_exists() -> None:
    named = set(re.findall(r"(?<=\s)(--[a-z][a-z-]*)", README)) | set(
        re.findall(r"`(--[a-z][a-z-]*)`", README)
    )
    assert named - {"--format"} <= {name for name, _ in OPTIONS}


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "docs/machines.md", "tests/README.md", "tests/sweep/README.md"]
)
def test_every_file_named_exists(page: str) -> None:
    named = re.findall(r"`((?:src|tests|docs|baselines)/[\w./-]+)`", (ROOT / page).read_text())
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_ten_builds() -> None:
    assert len(FORMATS) == 10
    assert "it builds ten weight formats" in README


def demo_block() -> str:
    """The README's block for the committed record."""
    return "\n```\n" + "\n".join(table(read_record(DEMO))) + "\n```\n\n"


def benchmark_block() -> str:
    """The README's block for the committed repeats of the quantizers' benchmark, smallest source first."""
    runs = sorted((read(file) for file in MEASURED.glob("*.json")), key=lambda run: run["source_gb"])
    return "\n" + "\n\n".join(text(run) for run in runs) + "\n\n"


if __name__ == "__main__":
    sys.stdout.write(demo_block() + benchmark_block())
