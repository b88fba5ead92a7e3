"""A model card written from a verify report alone: nothing in it is claimed that was not measured.

Pure: the report as a dictionary in, Markdown out. It knows no format; names and figures come from the report.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def _number(value: Any) -> str:
    if value is None:
        return "not finite"
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _share(part: Mapping[str, Any]) -> str:
    return f"{part['values_bit_identical'] / part['values']:.2%}" if part["values"] else "none"


def _part_row(name: str, part: Mapping[str, Any]) -> list[str]:
    counts = [
        _number(part[key]) for key in ("modules", "values", "groups", "groups_off_grid", "negative_steps")
    ]
    errors = [_number(part[key]) for key in ("relative_rms_error", "max_err_over_row_absmax")]
    return [name, *counts, _share(part), *errors]


def _verdict(report: Mapping[str, Any]) -> list[str]:
    if report["problems"]:
        first = report["problems"][0]
        return [
            f"**Verification found {len(report['problems'])} problems; do not serve this build.** First: {first}"
        ]
    rule = (
        "within the bounds of its formats"
        if report["foreign"]
        else "the nearest code, every scale the rule's"
    )
    return [f"Every stored value was compared with the source's by an independent decoder: each is {rule}."]


HEAD = (
    "modules",
    "count",
    "values",
    "groups",
    "off the grid",
    "negative steps",
    "bit-identical",
    "relative RMS error",
    "worst error / row absmax",
)


def card(report: Mapping[str, Any]) -> str:
    """Markdown from ``Report.to_dict()`` of `quantkit.verify`."""
    kinds = [_part_row(name, part) for name, part in report["kinds"].items()]
    rows = [*kinds, _part_row("all linears", report)]
    if report["tables"].get("modules"):
        rows.append(_part_row("packed tables", report["tables"]))
    copied = (
        f"{report['copied_identical']:,} of {report['copied']:,} copied tensors are identical byte for byte."
    )
    lines = [
        f"# {report['build']}",
        "",
        *_verdict(report),
        "",
        *_table(HEAD, rows),
        "",
        f"{copied} Tensors take {report['size_bytes']:,} bytes.",
        "",
        f"As an engine serves it ({report['served_as']}), the relative RMS error is "
        f"{_number(report['as_served']['relative_rms_error'])}.",
        "",
        "Errors are of weights, over all values of the modules named; they say nothing of answers.",
    ]
    return "\n".join(lines) + "\n"
