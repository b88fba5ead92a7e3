"""The load client and the gate on a real engine: another client agrees, equals do not alarm, a slowed one does.

Boots one server of the small model; minutes, so for `make ci`.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from math import log
from pathlib import Path
from statistics import mean

import numpy as np
import pytest

from quantkit.formats import FORMATS, Format
from tests.support.cells import Cell
from tests.support.engine.base import Engine
from tests.support.gate.ab import ALPHA, PAIRS, b_goes_first, losses
from tests.support.load.client import Target, measure
from tests.support.load.prompts import random_prompt, usable_ids
from tests.support.load.summary import repeat_numbers
from tests.support.miniatures.delaying_proxy import DelayingProxy
from tests.support.plugins.serving import Server, launch_for, serve
from tests.support.settings import Boot, Settings

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("engine")]

CELLS = (Cell(1, 32, 16), Cell(8, 32, 16))
CHECKED = Cell(8, 128, 32)
SEEDS = iter(range(10**9))


@pytest.fixture(scope="module")
def nano(engine: Engine, built: Callable[[Format], Path], settings: Settings) -> Iterator[Server]:
    """A server of the small model's bf16 build."""
    boot = Boot(FORMATS["bf16"])
    with serve(engine, launch_for(boot, built(boot.build), settings), boot) as server:
        yield server


def output(server: Server, base_url: str, cell: Cell) -> dict[str, float]:
    """One repeat's numbers, through `base_url`."""
    ids = usable_ids(server.checkpoint)
    prompts = [random_prompt(ids, cell.prompt_tokens, next(SEEDS)) for _ in range(cell.requests)]
    numbers = repeat_numbers(
        measure(Target(base_url, server.model), cell, prompts, prompts[: cell.concurrency])
    )
    assert numbers["output_tokens"] == cell.requests * cell.output_tokens
    return numbers


def compared(server: Server, a_url: str, b_url: str) -> dict[str, float]:
    """p of each cell being slower through B than through A."""
    pairs: dict[str, list[float]] = {str(cell): [] for cell in CELLS}
    for pair in range(1, PAIRS + 1):
        for cell in CELLS:
            urls = (b_url, a_url) if b_goes_first(pair) else (a_url, b_url)
            found = {url: output(server, url, cell)["tok_per_s"] for url in urls}
            pairs[str(cell)].append(log(found[b_url] / found[a_url]))
    return losses(pairs)


def test_a_slowed_server_alarms_in_every_cell_and_an_equal_one_in_none(nano: Server) -> None:
    with DelayingProxy(nano.base_url, 1) as a, DelayingProxy(nano.base_url, 1) as same:
        equal = compared(nano, a.base_url, same.base_url)
    assert all(p > ALPHA for p in equal.values()), equal
    with DelayingProxy(nano.base_url, 1) as a, DelayingProxy(nano.base_url, 2) as slow:
        slowed = compared(nano, a.base_url, slow.base_url)
    assert {cell for cell, p in slowed.items() if p <= ALPHA} == {str(cell) for cell in CELLS}, slowed


def vllm_bench(server: Server, folder: Path, seed: int) -> dict[str, float]:
    """The same load by vLLM's own client."""
    options = {
        "--backend": "openai",
        "--base-url": server.base_url,
        "--model": server.model,
        "--tokenizer": server.checkpoint,
        "--dataset-name": "random",
        "--random-input-len": CHECKED.prompt_tokens,
        "--random-output-len": CHECKED.output_tokens,
        "--num-prompts": CHECKED.requests,
        "--max-concurrency": CHECKED.concurrency,
        "--num-warmups": CHECKED.concurrency,
        "--seed": seed,
        "--result-dir": folder,
        "--result-filename": f"{seed}.json",
    }
    flags = ("--ignore-eos", "--save-result", "--disable-tqdm")
    main = (
        "import argparse, vllm.benchmarks.serve as s; p = argparse.ArgumentParser(); s.add_cli_args(p);"
        "s.main(p.parse_args())"
    )
    command = [sys.executable, "-c", main, *(str(part) for pair in options.items() for part in pair), *flags]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    found = json.loads((folder / f"{seed}.json").read_text())
    assert found["completed"] == CHECKED.requests
    return {
        "tok_per_s": found["output_throughput"],
        "ttft_s": found["median_ttft_ms"] / 1e3,
        "tpot_s": found["median_tpot_ms"] / 1e3,
    }


def test_vllms_own_client_agrees_within_its_spread(nano: Server, tmp_path: Path) -> None:
    ours, theirs = [], []
    for turn in range(5):
        theirs.append(vllm_bench(nano, tmp_path, next(SEEDS) + turn))
        ours.append(output(nano, nano.base_url, CHECKED))
    for name in ("tok_per_s", "tpot_s", "ttft_s"):
        a, b = ([each[name] for each in side] for side in (theirs, ours))
        spread = max(max(a) - min(a), 0.05 * mean(a))  # five quiet repeats may agree by chance
        assert abs(np.median(a) - np.median(b)) <= spread, f"{name}: {a} theirs, {b} ours"
