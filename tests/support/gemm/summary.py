"""The table of matrix products for a terminal or a report: one line a backend and number of rows.

Pure: rows of a record in, lines of text out; imported by whoever shows a run.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tests.support.record import Row

HEAD = ("format-rows", "us/token", "TFLOP/s", "GB/s", "of copy", "of peak", "binds", "x bf16", "")


def _figure(numbers: Mapping[str, Any], name: str, pattern: str) -> str:
    value = numbers.get(name)
    return "-" if value is None else format(value, pattern)


def _cells(row: Row) -> tuple[str, ...]:
    numbers = row.numbers
    return (
        row.item,
        _figure(numbers, "us_per_token" if "us_per_token" in numbers else "us", ",.1f"),
        _figure(numbers, "tflops", ".4g"),
        _figure(numbers, "gb_per_s", ".4g"),
        _figure(numbers, "share_copy", ".0%"),
        _figure(numbers, "share_peak", ".0%"),
        numbers.get("binds", "-"),
        _figure(numbers, "ratio_bf16", ".2f"),
        row.reason or numbers.get("no_sum", ""),
    )


def summary_table(rows: Iterable[Row]) -> list[str]:
    """Lines of the table, its head first; empty where no row is of the suite.

    Parameters
    ----------
    rows
        Rows of a run record, of any suite. A ``-`` is a figure that was not measured; the last column says why.
    """
    body = [_cells(row) for row in rows if row.suite == "gemm" and row.item != "card"]
    if not body:
        return []
    table = [HEAD, *body]
    widths = [max(len(line[at]) for line in table) for at in range(len(HEAD) - 1)]
    return [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:-1], widths[1:]), line[-1]]).rstrip()
        for line in table
    ]
