"""Command line: formats, plan, build, verify. Parses, calls, prints; decides nothing.

An input error is one sentence on standard error and exit status 2. Defaults come from the functions called.
"""

import argparse
import difflib
import io
import itertools
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from quantkit.checkpoint import Checkpoint
from quantkit.errors import NotEligible, OutputNotUsable, QuantkitError
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
ONE_OBJECT = "print one JSON object (default: text)"


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
    machine, free = machine_named(arguments.machine, arguments.machines), free_bytes(arguments.out)
    found = plan_to_dict(plan, machine, arguments.tensor_parallel, free)
    if arguments.json:
        _print_json(found)
    else:
        print(plan_to_text(found))
    if not found["not_eligible"]:
        return GOOD
    what = f"{machine.name} with --tensor-parallel {arguments.tensor_parallel}"
    got = f"no kernel for {len(found['not_eligible'])} of {found['linears']} linears"
    print(end="", flush=True)
    raise NotEligible(what, got=got, expected="one for each", hint="ask for other ranks or another format")


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
    if not made.blocks:
        print(f"finished already, nothing was written: {made.out}")
        return GOOD
    print(f"{made.blocks} blocks, {made.blocks_reused} of them from an earlier call; in {made.out}")
    return GOOD


def _verify(arguments: argparse.Namespace) -> int:
    from quantkit.card import card
    from quantkit.verify import verify

    if arguments.source.is_dir() and arguments.built.is_dir() and arguments.source.samefile(arguments.built):
        raise OutputNotUsable(f"build {arguments.built}", got="the source itself", expected="another folder")
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
        parts = ((found, "linears"), (found["tables"], "tables"))
        said = [f"{part['values']:,} values of {part['modules']} {name}" for part, name in parts]
        print(f"{good}: {found['build']}, {' and '.join(said)} compared, ", end="")
        print(
            f"{found['copied']} copied tensors compared byte for byte, {found['copied_identical']} identical"
        )
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
    def _print_message(self, message: str, file: Any = None) -> None:
        """Print it at once: argparse says nothing where the output is full, and the interpreter too much."""
        print(message, end="", file=file, flush=True)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Name a misspelt option before argparse says that the option it was meant for is absent."""
        known = self._option_string_actions
        for word in itertools.takewhile("--".__ne__, args if self._subparsers is None else ()):
            name = word.partition("=")[0]
            if re.match("--?[a-z]", name) and not any(option.startswith(name) for option in known):
                near = difflib.get_close_matches(name, known, 1)
                self.error(
                    f"unrecognized arguments: {name}" + "".join(f", expected {option}" for option in near)
                )
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End as every other input error does."""
        self.exit(UNUSABLE, f"quantkit: {message} ({self.prog} --help says what there is)\n")


def _source_and_format(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", type=Path, help="folder of the bfloat16 checkpoint: a Gemma 4 QAT release")
    command.add_argument("--format", required=True, help=f"what to make: {', '.join(FORMATS)}")


def _plan_options(plan: argparse.ArgumentParser) -> None:
    _source_and_format(plan)
    plan.add_argument("--json", action="store_true", help=ONE_OBJECT)
    about = "card to predict for: a record of machines.toml (default: %(default)s)"
    plan.add_argument("--machine", default=DEFAULT_MACHINE, metavar="NAME", help=about)
    about = "file of further machine records, like machines.toml (default: none)"
    plan.add_argument("--machines", type=Path, metavar="FILE", help=about)
    about = f"ranks to check kernels for, 1 to {MOST} (default: %(default)s)"
    plan.add_argument("--tensor-parallel", type=_count, default=1, metavar="N", help=about)
    about = "where the build would go: its disk is looked at (default: the current folder)"
    plan.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help=about)


def _build_options(build: argparse.ArgumentParser) -> None:
    from quantkit.convert import DEFAULT_WORKERS, OFF_GRID_CHOICES

    _source_and_format(build)
    build.add_argument("out", type=Path, help="folder for the build: a new one, or one that this build began")
    about = "take int4 tables over from a finished build of the same source (default: make them)"
    build.add_argument("--on", type=Path, metavar="BUILD", help=about)
    about = f"threads, 1 to {MOST} (default: %(default)s)"
    build.add_argument("--workers", type=_count, default=DEFAULT_WORKERS, metavar="N", help=about)
    about = "a linear off the 4-bit grid: refuse the build, or keep that linear bf16 (default: %(default)s)"
    build.add_argument("--off-grid", choices=OFF_GRID_CHOICES, default=OFF_GRID_CHOICES[0], help=about)
    build.add_argument("--json", action="store_true", help=ONE_OBJECT)


def _verify_options(verify: argparse.ArgumentParser) -> None:
    verify.add_argument("source", type=Path, help="folder of the checkpoint that the build was made from")
    verify.add_argument(
        "built",
        type=Path,
        help="folder of the build; its quantkit.json and README.md are notes, and not judged",
    )
    about = "write the report there; - prints it (default: one line alone)"
    verify.add_argument("--json", type=Path, metavar="FILE", help=about)
    about = "write a model card from the report (default: none)"
    verify.add_argument("--card", type=Path, metavar="FILE", help=about)
    about = (
        "a checkpoint that others made: judge it by bounds (default: as a build of quantkit, byte for byte)"
    )
    verify.add_argument("--foreign", action="store_true", help=about)


COMMANDS = (
    ("formats", "the table of builds", _formats, lambda parser: None),
    ("plan", "decisions and sizes, from headers alone", _plan, _plan_options),
    ("build", "write a build; run again after a crash, it resumes", _build, _build_options),
    ("verify", "re-read both, compare every value, judge", _verify, _verify_options),
)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="quantkit", description="Every weight format from one QAT checkpoint.")
    parser.add_argument("--version", action="version", version=f"quantkit {version('quantkit')}")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about, run, add_options in COMMANDS:
        command = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        add_options(command)
        command.set_defaults(run=run)
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
