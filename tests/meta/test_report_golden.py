"""The whole report of one made-up run in which everything happens, form by form, as it was looked at and committed.

A changed line is a change of what people read. Where it is meant: `python -m tests.meta.test_report_golden`, and look
at the difference.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from quantkit.formats import FORMATS
from tests.meta.made_up import cell_row, failed, gate_row, made_up_record, quant_row, serve_rows
from tests.report.compare import against_run, section
from tests.report.csv import cells_csv
from tests.report.markdown import markdown
from tests.report.plots import specs
from tests.report.run import Run
from tests.report.summary import summary_json
from tests.report.terminal import table
from tests.support.record import Record, Row

FOLDER = Path(__file__).with_name("golden")
BUILDS = ("bf16", "fp8", "w8a8emb4", "q4w4a16", "q4w4a16ple4", "new4")
GRID = ((1, 128), (8, 128), (8, 1024), (64, 128))
BF16, FP8, EMB4, INT4, PLE4 = (FORMATS[name] for name in BUILDS[:-1])
REFUSED = "tests.support.load.cellcheck.CellRefused: repeat 1 of 64x128, got {}, expected a number"
DIED = "tests.support.engine.base.ServerDied: server fp8 ended"


def _cells() -> Iterable[Row]:
    """A cell that failed with its repeat, a noisy one, a single repeat, a published bound, a slower bf16."""
    yield failed(cell_row(FP8, (64, 128)), REFUSED.format(DIED))
    yield Row("sweep", "fp8", "repeat-1-64x128", "failed", DIED, {})
    yield cell_row(EMB4, (8, 1024), wobble=(1.0, 0.7, 1.3))
    yield cell_row(PLE4, (64, 128), wobble=(1.0,))
    yield replace(
        cell_row(INT4, (1, 128)), numbers={"tok_per_s": 118.2, "repeat_count": 3, "cv_at_most": 0.02}
    )
    yield cell_row(BF16, (1, 128), nth=2, wobble=(0.9, 0.9, 0.91))


def _served() -> Iterable[Row]:
    """A boot that is not as meant, one with warnings, a wrong answer and what the other builds said."""
    boot = {row.build: row for build in (FP8, EMB4) for row in serve_rows(build) if row.item == "boot"}
    yield failed(replace(boot["fp8"], numbers={**boot["fp8"].numbers, "kv_tokens_metrics": 1}), "KvDisagrees")
    yield replace(boot["w8a8emb4"], numbers={**boot["w8a8emb4"].numbers, "warnings": ["untuned shapes"]})
    wrong = next(row for row in serve_rows(FORMATS["bf16"]) if row.item == "tool")
    yield failed(replace(wrong, build="new4"), "WrongCall: got 'get_time'")
    yield Row("serve", "w8a8emb4", "image refused", "ok", "", {"answer": "At most 0 image(s)"})
    yield Row("serve", "w8a8emb4", "served weights", "ok", "", {"mean_abs_dlogprob": 0.0123})


def _weights() -> Iterable[Row]:
    """Tables with figures of their own, figures that a publication left out, and what cannot exist."""
    row = quant_row(EMB4)
    tables = {"relative_rms_error": 0.0017, "kinds": {"embed_tokens": {"relative_rms_error": 0.0017}}}
    yield replace(row, numbers={**row.numbers, "tables": tables})
    yield Row(
        "quant",
        "q4w4a16ple4",
        "fidelity",
        "ok",
        "",
        {"groups_off_grid": 3, "per_tensor_frobenius": {"min": 0.001, "max": 0.002}},
    )
    yield Row("quant", "bf16", "bounds", "infeasible", "nothing is quantized in this build", {})


def _others() -> Iterable[Row]:
    """Products that were refused or did not all run, and each verdict of the gate."""
    yield Row("gemm", "", "fp8-64", "ok", "", {"no_sum": "1 of 2 shapes did not run", "model": "checkpoint"})
    yield Row("gemm", "", "fp8fnuz-1", "infeasible", "unsupported: gfx942 alone multiplies it", {})
    yield gate_row(BF16, (1, 128), "better", ratio=1.2, ratio_bf16=1.0, enforced=True)
    yield gate_row(FP8, (1, 128), "worse", ratio=0.8, ratio_bf16=0.81, enforced=True)
    yield gate_row(FP8, (64, 128), "gone", ratio=None, tolerance=None)
    yield gate_row(INT4, (1, 128), "not_comparable", ratio=None, tolerance=None, why="image: a then, b now")


def everything() -> Record:
    """The run."""
    changed = {row.key: row for rows in (_cells(), _served(), _weights(), _others()) for row in rows}
    changed["serve", "q4w4a16", "boot"] = None  # type: ignore[assignment]
    head = {"usd_per_hour": 2.0, "bf16_source_hash": "beef", "caveats": ["made up"]}
    record = made_up_record(BUILDS, GRID, changed, **head)
    return replace(record, header={**record.header, "builds": [*BUILDS, "q4w4a16emb4"]})


def _page() -> str:
    record = everything()
    before = made_up_record(("bf16", "fp8", "q4w4a16emb4"), GRID[:3])
    return markdown(record, (section(Run(record), against_run(Run(record), before, "yesterday")),))


def _plots() -> str:
    """Each plot in a line, and a line for each of its marks."""
    found = []
    for name, spec in specs(Run(everything())).items():
        found += [f"{name}: {json.dumps({**spec, 'data': None}, ensure_ascii=False)}"]
        found += [f"    {json.dumps(row, ensure_ascii=False)}" for row in spec["data"]["values"]]
    return "\n".join(found) + "\n"


def _summary() -> str:
    """Objects that hold no others in a line each."""
    return re.sub(r"\{[^{}\[\]]*\}", lambda found: " ".join(found[0].split()), summary_json(everything()))


FORMS: dict[str, Callable[[], str]] = {
    "report.md": _page,
    "terminal.txt": lambda: "\n".join(table(everything(), colour=True)) + "\n",
    "cells.csv": lambda: cells_csv(everything()),
    "summary.json": _summary,
    "plots.txt": _plots,
}


def made(name: str) -> str:
    """A form; figures with more digits than libraries of mathematics agree on are cut to nine."""
    return re.sub(r"\d+\.\d{9,}(?:e-\d+)?", lambda found: f"{float(found[0]):.9g}", FORMS[name]())


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_as_it_was_looked_at(name: str) -> None:
    assert made(name) == (FOLDER / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    for each in FORMS:
        (FOLDER / each).write_text(made(each), encoding="utf-8")
