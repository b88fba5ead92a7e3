"""summary.json: the report for programs, by the committed schema `summary.schema.json`. Pure.

A figure that was not measured is null, and its reason stands in `missing`; the schema's version rises with any
change of meaning.
"""

import json
from pathlib import Path
from typing import Any

from tests.report.answer import answers
from tests.report.caveats import drift_of, run_caveats, unfinished
from tests.report.fidelity import fidelity_figure
from tests.report.run import Build, Cell, Gap, Run
from tests.report.spread import cell_interval, pooled
from tests.report.standing import Answer
from tests.report.tables import answered, kernels
from tests.support.record import Record

SCHEMA_VERSION = 1
SCHEMA = Path(__file__).with_name("summary.schema.json")


def _or_null(value: Any) -> Any:
    return None if isinstance(value, Gap) else value


def _answer(answer: Answer) -> dict[str, Any]:
    standings = [
        {
            "build": each.build,
            "value": each.value,
            "low": each.interval.low if each.interval else None,
            "high": each.interval.high if each.interval else None,
            "words": each.words,
        }
        for each in answer.standings
    ]
    return {
        "key": answer.key,
        "asked": answer.asked,
        "picks": list(answer.picks),
        "verdict": answer.verdict,
        "basis": answer.basis,
        "standings": standings,
        "caveats": list(answer.caveats),
    }


def _build(run: Run, build: Build) -> dict[str, Any]:
    def figure(suite: str, item: str, *path: str) -> Any:
        return _or_null(run.figure(suite, build.name, item, *path))

    found = _or_null(kernels(run, build))
    return {
        "name": build.name,
        "linears": build.linears,
        "tables": build.tables,
        "bytes": figure("quant", "fidelity", "size_bytes"),
        "relative_rms_error": _or_null(fidelity_figure(run, build)),
        "groups_off_grid": figure("quant", "fidelity", "groups_off_grid"),
        "kernels": [] if found == "dense" else found,
        "loaded_gib": figure("serve", "boot", "loaded_gib"),
        "predicted_gib": figure("serve", "boot", "predicted_gib"),
        "predicted_kv_tokens": figure("serve", "boot", "predicted_kv_tokens"),
        "kv_tokens": figure("serve", "boot", "kv_tokens_log"),
        "boot_s": figure("serve", "boot", "boot_s"),
        "answers": _or_null(answered(run, build)),
        "mean_abs_dlogprob": figure("serve", "logprobs", "mean_abs_dlogprob"),
        "cells": [_cell(run, cell) for cell in run.all_cells if cell.build == build.name],
    }


def _cell(run: Run, cell: Cell) -> dict[str, Any]:
    interval = cell_interval(cell, pooled([c for c in run.cells.values() if c.build == cell.build]))
    names = (
        "concurrency",
        "prompt_tokens",
        "outcome",
        "reason",
        "tok_per_s",
        "ratio",
        "ttft_s",
        "tpot_s",
        "cv",
    )
    return {
        "pass": cell.nth,
        **{name: getattr(cell, name) for name in names},
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "noisy": cell.load in run.noisy,
    }


def summary(record: Record) -> dict[str, Any]:
    """The whole report as one object."""
    run = Run(record)
    return {
        "schema_version": SCHEMA_VERSION,
        "machine": run.machine,
        "published": run.published,
        "source": str(run.header.get("source", "")),
        "commit": str(run.header.get("commit", "")),
        "answers": [_answer(answer) for answer in answers(run)],
        "caveats": [each for each in (unfinished(run), *run_caveats(run)) if each],
        "drift": drift_of(run),
        "builds": [_build(run, build) for build in run.builds],
        "gate": [
            {"build": row.build, "item": row.item, "verdict": str(row.numbers.get("verdict", row.outcome))}
            for row in record.of("gate")
        ],
        "missing": [
            {
                "suite": row.suite,
                "build": row.build,
                "item": row.item,
                "outcome": row.outcome,
                "reason": row.reason,
            }
            for row in run.record.rows
            if row.outcome != "ok"
        ],
    }


def summary_json(record: Record) -> str:
    """The summary as text, finite by construction."""
    return json.dumps(summary(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
