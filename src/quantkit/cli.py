"""Command line: formats, plan, build, verify. Parses, calls, prints; decides nothing.

An input error is one sentence on standard error and exit status 2. Defaults come from the functions called.
"""

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from quantkit.checkpoint import Checkpoint
from quantkit.errors import QuantkitError
from quantkit.formats import FORMATS, format_named
from quantkit.machines import machine_named
from quantkit.output import free_bytes
from quantkit.plan import make_plan
from quantkit.writer import named_write_errors

GOOD, FAULTY, UNUSABLE = 0, 1, 2
INTERRUPTED, READER_GONE = 130, 141  # as shells count what a signal ended: 128 and its number
MOST = 256  # threads or ranks; far above what helps, and below what a system refuses
SCHEMA_VERSION = 1
DEFAULT_MACHINE = "mi300x"
PROBLEMS_SHOWN = 20


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps({"schema_version": SCHEMA_VERSION} | value, indent=1))


def _formats(arguments: argparse.Namespace) -> int:
    rows = [("build", "linears", "activations", "tables packed to int4")]
    for fmt in FORMATS.values():
        linears = fmt.linears.name if fmt.linears else "bf16"
        per_token = f"{linears} per token" if fmt.linears and fmt.linears.activations else "bf16"
        rows.append((fmt.name, linears, per_token, ", ".join(sorted(fmt.tables)) or "none"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return GOOD


def _plan(arguments: argparse.Namespace) -> int:
    from quantkit.planview import plan_to_dict, plan_to_text

    with Checkpoint.open(arguments.source) as source:
        plan = make_plan(source.config, source.entries, format_named(arguments.format))
    machine, free = machine_named(arguments.machine), free_bytes(arguments.out)
    found = plan_to_dict(plan, machine, arguments.tensor_parallel, free)
    if arguments.json:
        _print_json(found)
    else:
        print(plan_to_text(found))
    return GOOD


def _build(arguments: argparse.Namespace) -> int:
    from quantkit.convert import build

    made = build(
        arguments.source,
        arguments.out,
        format_named(arguments.format),
        on=arguments.on,
        workers=arguments.workers,
        off_grid=arguments.off_grid,
    )
    if arguments.json:
        _print_json(asdict(made) | {"out": str(made.out)})
        return GOOD
    found = made.found
    print(f"{made.format}: {made.modules} modules, {made.copied} tensors copied, {made.file_bytes:,} bytes")
    if found.groups:
        share = found.values_bit_identical / (found.groups * 32)
        print(
            f"int4: {found.groups:,} groups, {found.groups_off_grid} off the grid, {found.negative_steps:,} with a "
            f"negative step, {share:.2%} of values bit-identical"
        )
    for module in made.kept:
        print(f"left bf16, off the grid or fused with one that is: {module}")
    print(f"{made.blocks} blocks, {made.blocks_reused} of them from an earlier call; in {made.out}")
    return GOOD


def _verify(arguments: argparse.Namespace) -> int:
    from quantkit.card import card
    from quantkit.verify import verify

    report = verify(arguments.source, arguments.built, foreign=arguments.foreign)
    found = report.to_dict()
    if str(arguments.json) == "-":
        print(json.dumps(found, indent=1))
    elif arguments.json:
        _write(arguments.json, json.dumps(found, indent=1) + "\n")
    if arguments.card:
        _write(arguments.card, card(found))
    for problem in report.problems[:PROBLEMS_SHOWN]:
        print(problem, file=sys.stderr)
    if len(report.problems) > PROBLEMS_SHOWN:
        print(f"and {len(report.problems) - PROBLEMS_SHOWN} more: --json FILE has them all", file=sys.stderr)
    if not arguments.json:
        good = "faulty" if report.problems else "good"
        print(f"{good}: {found['build']}, {found['values']:,} values of {found['modules']} linears compared")
        for scheme, rules in found["rules"].items():
            print(f"{scheme} scales: {rules['rule'] or 'by no rule that is known'}")
    return FAULTY if report.problems else GOOD


def _write(path: Path, text: str) -> None:
    with named_write_errors(path):
        path.write_text(text, encoding="utf-8")


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() and len(text) <= len(str(MOST)) else 0
    if not 1 <= number <= MOST:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number from 1 to {MOST}")
    return number


class _Parser(argparse.ArgumentParser):
    def print_help(self, file: Any = None) -> None:
        """Print it at once: argparse says nothing where the output is full, and the interpreter too much."""
        print(self.format_help(), end="", file=file, flush=True)

    def error(self, message: str) -> NoReturn:
        """End as every other input error does."""
        self.exit(UNUSABLE, f"quantkit: {message} ({self.prog} --help says what there is)\n")


def _parser() -> argparse.ArgumentParser:
    from quantkit.convert import DEFAULT_WORKERS, OFF_GRID_CHOICES

    parser = _Parser(prog="quantkit", description="Every weight format from one QAT checkpoint.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("formats", help="the table of builds").set_defaults(run=_formats)

    plan = commands.add_parser("plan", help="decisions and sizes, from headers alone")
    plan.add_argument("source", type=Path)
    plan.add_argument("--format", required=True)
    plan.add_argument("--json", action="store_true", help="one JSON object")
    plan.add_argument(
        "--machine", default=DEFAULT_MACHINE, help="card to predict for: a record of machines.toml"
    )
    plan.add_argument(
        "--tensor-parallel", type=_count, default=1, metavar="N", help="ranks to check kernels for"
    )
    plan.add_argument(
        "--out", type=Path, default=Path(), help="where the build would go: its disk is looked at"
    )
    plan.set_defaults(run=_plan)

    build = commands.add_parser("build", help="write a build; run again after a crash, it resumes")
    build.add_argument("source", type=Path)
    build.add_argument("out", type=Path)
    build.add_argument("--format", required=True)
    build.add_argument("--on", type=Path, metavar="BUILD", help="take int4 tables over from a finished build")
    build.add_argument("--workers", type=_count, default=DEFAULT_WORKERS)
    build.add_argument("--off-grid", choices=OFF_GRID_CHOICES, default=OFF_GRID_CHOICES[0])
    build.add_argument("--json", action="store_true", help="one JSON object")
    build.set_defaults(run=_build)

    verify = commands.add_parser("verify", help="re-read both, compare every value, judge")
    verify.add_argument("source", type=Path)
    verify.add_argument("built", type=Path)
    verify.add_argument("--json", type=Path, metavar="FILE", help="write the report there; - prints it")
    verify.add_argument("--card", type=Path, metavar="FILE", help="write a model card from the report")
    verify.add_argument("--foreign", action="store_true", help="a checkpoint that others made: bounds only")
    verify.set_defaults(run=_verify)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the result is the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of any bytes, in any locale
    try:
        arguments = _parser().parse_args(argv)
        status: int = arguments.run(arguments)
        print(end="", flush=True)
    except QuantkitError as error:
        return _ended(UNUSABLE, str(error))
    except KeyboardInterrupt:
        return _ended(INTERRUPTED, "interrupted; run the same command again to go on")
    except OSError as error:
        if sys.stdout is not None:  # the interpreter flushes it once more as it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return READER_GONE
        return _ended(UNUSABLE, f"{error.filename or 'standard output'}, got {error.strerror}")
    return status


def _ended(status: int, sentence: str) -> int:
    print(f"quantkit: {sentence}", file=sys.stderr)
    return status
