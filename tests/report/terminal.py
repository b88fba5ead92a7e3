"""The table at the end of a run: answers first, then a row a build, in 100 columns of plain text.

Colour only where asked for; whether to ask for it is `wants_colour`'s to say. Writes nothing itself.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TextIO

from tests.report.answer import answers
from tests.report.caveats import unfinished
from tests.report.products import rows_name, token_rows
from tests.report.run import Gap, Run, load_name
from tests.report.standing import Answer
from tests.report.tables import Column, Table, overview
from tests.report.troubles import causes
from tests.report.words import rate, ratio, written
from tests.support.record import Record

WIDTH = 100
GAP = "-"  # a figure that was not measured; why stands below the table and in the report
WIDEST = 24  # of one column
BOLD, RED, RESET = "\x1b[1m", "\x1b[31m", "\x1b[0m"
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def wants_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether to colour: on a terminal, unless NO_COLOR is set to anything or the terminal is dumb."""
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def _plain(text: str) -> str:
    """Text that cannot steer a terminal, in characters that every terminal has."""
    return CONTROL.sub(" ", text).replace(" × ", "x").replace("×", "x").replace("–", "-")


def short_kernel(name: str) -> str:
    """``TritonW4A16`` for TritonW4A16LinearKernel."""
    return re.sub(r"(ScaledMM)?LinearKernel$", "", name)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "~"


def _word(column: Column, value: object) -> str:
    if isinstance(value, Gap):
        return GAP
    if column.name == "kernel" and isinstance(value, list | tuple):
        value = "+".join(short_kernel(str(each)) for each in value)
    return _cut(_plain(written(column.form, value)), WIDEST)


def _figure(value: float | None, over_bf16: float | None) -> str:
    """``109 0.91x``: a figure and its ratio to bf16, as far as they are known."""
    if value is None:
        return GAP
    return _plain(rate(value).replace(",", "") + ("" if over_bf16 is None else f" {ratio(over_bf16)}"))


def _speed_columns(run: Run) -> list[list[str]]:
    cells = ((load, [run.cell(build.name, load) for build in run.builds]) for load in run.grid)
    return [
        [_plain(load_name(load)), *(_figure(cell.tok_per_s, cell.ratio) for cell in row)]
        for load, row in cells
    ]


def _product_columns(run: Run) -> list[list[str]]:
    """Microseconds of a token's matrix products: a line a number format, a column a number of rows that ran."""
    rows = ((name, count, row.numbers) for name, count, row in token_rows(run))
    found = {(name, count): numbers for name, count, numbers in rows if "us_per_token" in numbers}
    names, counts = dict.fromkeys(name for name, _ in found), dict.fromkeys(count for _, count in found)
    columns = [["a token's products, us", *names]]
    for count in counts:
        shown = (found.get((name, count), {}) for name in names)
        figures = (_figure(each.get("us_per_token"), each.get("ratio_bf16")) for each in shown)
        columns.append([rows_name(count), *figures])
    return columns


def _columns(table: Table) -> list[list[str]]:
    return [
        [column.name, *(_word(column, row[index]) for row in table.rows)]
        for index, column in enumerate(table.columns)
    ]


def blocks(columns: Sequence[Sequence[str]], width: int = WIDTH) -> list[list[str]]:
    """Columns laid side by side, broken into blocks of that width; each block repeats the first column."""
    widths = [max(map(len, column)) for column in columns]
    groups: list[list[int]] = [[]]
    for index in range(1, len(columns)):
        taken = widths[0] + sum(widths[each] + 2 for each in [*groups[-1], index])
        if taken > width and groups[-1]:
            groups.append([])
        groups[-1].append(index)
    return [_block(columns, widths, [0, *group]) for group in groups]


def _block(columns: Sequence[Sequence[str]], widths: Sequence[int], group: Sequence[int]) -> list[str]:
    lines = []
    for number in range(len(columns[0])):
        cells = [columns[index][number].ljust(widths[index]) for index in group]
        lines.append("  ".join(cells).rstrip())
    return lines


def _answer_lines(answer: Answer) -> list[str]:
    note = "" if answer.verdict in ("clear", "not measured") else f" ({answer.verdict})"
    lines = textwrap.wrap(_plain(f"{answer.asked}: {answer.headline}{note}"), WIDTH, subsequent_indent="  ")
    if answer.standings:
        first = f"{answer.standings[0].build}: {answer.standings[0].words}"
        lines += textwrap.wrap(_plain(first), WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines


def _trouble_lines(run: Run, most: int = 20) -> list[str]:
    """What failed or was not run; what cannot exist is only counted."""
    found = causes(run)
    told = [each for each in found if each.outcome != "infeasible"]
    lines = [f"{each.outcome.replace('_', ' ')}: {each.build} {each.counted}: {each.reason}" for each in told]
    lines = [_cut(_plain(line), WIDTH) for line in lines]
    if len(lines) > most:
        lines = [*lines[:most], f"and {len(lines) - most} more: see report.md"]
    impossible = sum(len(each.items) for each in found if each.outcome == "infeasible")
    return [*lines, f"{impossible} items cannot exist here: see report.md"] if impossible else lines


def table(record: Record, *, colour: bool = False) -> list[str]:
    """The lines of the terminal's report, none wider than 100 columns.

    Parameters
    ----------
    record
        The run.
    colour
        Headings bold and failures red; off, no line holds an escape.
    """
    run = Run(record)
    said = unfinished(run)
    parts = [textwrap.wrap(said, WIDTH) + [line for answer in answers(run) for line in _answer_lines(answer)]]
    parts += blocks(_columns(overview(run)) + _speed_columns(run)) if run.builds else [["no build ran"]]
    parts += blocks(columns) if len(columns := _product_columns(run)) > 1 else []
    headings = {id(part) for part in parts[1:]}
    lines: list[str] = []
    for part in parts:
        head = f"{BOLD}{part[0]}{RESET}" if colour and id(part) in headings else part[0]
        lines += [head, *part[1:], ""]
    trouble = [
        f"{RED}{line}{RESET}" if colour and line.startswith("failed") else line
        for line in _trouble_lines(run)
    ]
    return [*lines, *trouble] if trouble else lines[:-1]
