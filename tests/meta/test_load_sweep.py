"""The sweep's own tests on a scripted server: order of work, rows, resume, what cannot be measured."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantkit.errors import NotACheckpoint
from tests.meta.small_project import pytest_in
from tests.support.cells import GRIDS, Cell, seed_of
from tests.support.load.prompts import random_prompt, usable_ids
from tests.support.record import Record, read_record

ROOT = Path(__file__).parents[2]
PLUGINS = ("options", "recording", "collecting", "closing", "gating")
CONFTEST = """
import os
from types import SimpleNamespace
import pytest
from tests.support.miniatures.stream_server import MODEL, Script, StreamServer

pytest_plugins = {plugins}

@pytest.fixture(scope="session")
def server(boot, settings):
    script = Script(first_s=0.02, per_token_s=0.01, context_tokens=int(os.environ["CONTEXT"]))
    with StreamServer(script) as running:
        yield SimpleNamespace(
            boot=boot, base_url=running.base_url, model=MODEL, checkpoint=settings.source, alive=lambda: None
        )
"""


class Project:
    """The real sweep in a folder of its own, with a scripted server for an engine."""

    def __init__(self, root: Path, conftest: str = CONFTEST) -> None:
        self.root = root
        for folder in ("support", "sweep"):
            shutil.copytree(ROOT / "tests" / folder, root / "tests" / folder)
        (root / "source").mkdir()
        config = {"vocab_size": 512, "eos_token_id": [1, 106], "pad_token_id": 0}
        (root / "source/config.json").write_text(json.dumps(config))
        plugins = [f"tests.support.plugins.{name}" for name in PLUGINS]
        (root / "conftest.py").write_text(conftest.replace("{plugins}", str(plugins)))
        shutil.copy(ROOT / "pyproject.toml", root)

    def run(self, *args: str, context: int = 4096) -> tuple[int, str]:
        """Exit status and output of a sweep into ``run``."""
        words = ("tests/sweep", "--source", "source", "--builds", "bf16", "--run", "run", *args)
        return pytest_in(self.root, *words, env={"CONTEXT": str(context)}, timeout_s=300)

    @property
    def record(self) -> Record:
        """What the run recorded."""
        return read_record(self.root / "run")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A sweep that has not run."""
    return Project(tmp_path)


def items(record: Record) -> list[str]:
    """Items of the sweep, in the order they were measured."""
    return [row.item for row in record.of("sweep")]


FIELDS = {
    *(
        "concurrency",
        "prompt_tokens",
        "output_tokens",
        "requests",
        "repeats",
        "tok_per_s",
        "steady_tok_per_s",
    ),
    *(
        "ttft_s",
        "tpot_s",
        "cv",
        "ratio_bf16",
        "client_cpu_share",
        "lag_p99_s",
        "prefix_hit_share",
        "advisory",
    ),
}


@pytest.mark.slow
def test_rows_come_in_order_and_a_broken_run_resumes_at_the_repeat(project: Project) -> None:
    status, output = project.run()
    assert status == 0, output
    repeats = [f"repeat-{repeat}-{cell}" for repeat in (1, 2, 3) for cell in ("1x128", "8x128")]
    once = [*repeats, "1x128", "8x128"]
    whole = [*once, *(f"{item}@2" for item in once)]
    assert items(project.record) == whole
    assert "drift of bf16 over the run, 8x128" in output
    row = project.record.row("sweep", "bf16", "8x128")
    assert row is not None
    assert row.numbers.keys() >= FIELDS
    assert [each["requests"] for each in row.numbers["repeats"]] == [16, 16, 16]
    first = (project.root / "run/requests/bf16/8x128-1.jsonl").read_text().splitlines()
    assert len(first) == 16
    assert json.loads(first[0])["output_tokens"] == 32

    journal = project.root / "run/journal.jsonl"
    kept = [line for line in journal.read_text().splitlines() if measured_before(json.loads(line))]
    journal.write_text("\n".join(kept) + "\n")
    status, output = project.run("-v")
    assert status == 0, output
    assert sorted(items(project.record)) == sorted(whole)
    tests = set(re.findall(r"test_repeat\[\S+\]", output))
    assert len(tests) == 2 + 6  # repeats 3 of two cells, and the second start's six
    earlier, now = (json.loads(line)["numbers"] for line in (kept[1], repeat_1(project)))
    assert earlier == now, "a repeat that was there was measured again"


def measured_before(line: dict[str, Any]) -> bool:
    """Header, and the first two repeats of the first start."""
    return line["kind"] == "header" or (
        line["item"].startswith(("repeat-1", "repeat-2")) and "@" not in line["item"]
    )


def repeat_1(project: Project) -> str:
    """The record's line of the first repeat."""
    lines = (project.root / "run/record.jsonl").read_text().splitlines()
    return next(line for line in lines if '"repeat-1-1x128"' in line)


@pytest.mark.slow
def test_cells_longer_than_the_context_are_infeasible(project: Project) -> None:
    status, output = project.run(context=128)
    assert status == 0, output
    rows = project.record.of("sweep")
    assert {row.outcome for row in rows} == {"infeasible"}
    assert {row.reason for row in rows} == {"160 tokens of prompt and output exceed the context of 128"}


def test_grids_are_the_articles_and_a_smaller_one() -> None:
    assert list(map(str, GRIDS["smoke"].cells)) == ["1x128", "8x128"]
    article = GRIDS["article"]
    assert [str(cell) for cell in article.cells][::4] == ["1x128", "8x1024", "64x8192"]
    assert [{cell.output_tokens for cell in grid.cells} for grid in GRIDS.values()] == [{32}, {512}]
    assert [cell.requests for cell in article.cells[:3]] == [8, 16, 128]
    assert [grid.repeats for grid in GRIDS.values()] == [3, 3]
    assert Cell(1, 8192, 512).infeasible_in(8704) == ""
    assert "8704 tokens" in Cell(1, 8192, 512).infeasible_in(8703)


def test_no_two_prompts_of_a_run_begin_alike() -> None:
    keys = [
        (boot, cell, repeat, i)
        for boot in ("bf16", "bf16@2")
        for cell in "ab"
        for repeat in "12"
        for i in range(99)
    ]
    seeds = [seed_of("nonce", *key) for key in keys]
    assert seed_of("nonce", "ab", "c") != seed_of("nonce", "a", "bc")
    assert seed_of("nonce", "a") != seed_of("another", "a")
    begins = {
        tuple(random_prompt(np.arange(400), 16, seed)) for seed in seeds
    }  # 16: a block of the prefix cache
    assert len(begins) == len(keys)
    assert random_prompt(np.arange(400), 16, 7) == random_prompt(np.arange(400), 16, 7)


SPECIAL: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "text under a wrapper": (
        {
            "image_token_id": 9,
            "text_config": {"vocab_size": 12, "eos_token_id": [1, 2], "bos_token_id": None},
        },
        {"added_tokens": [{"id": 5, "content": "<x>"}]},
    ),
    "text alone": (
        {"vocab_size": 12, "eos_token_ids": [1, 2], "audio_token_index": 9, "pad_token_id": 5},
        None,
    ),
    "no added tokens": ({"vocab_size": 12, "stop_token_ids": [1, 2, 5, 9]}, {"model": {}}),
}


@pytest.mark.parametrize(("config", "tokenizer"), SPECIAL.values(), ids=SPECIAL)
def test_special_ids_are_never_drawn(
    config: dict[str, Any], tokenizer: dict[str, Any] | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if tokenizer is not None:
        (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert usable_ids(tmp_path).tolist() == [0, 3, 4, 6, 7, 8, 10, 11]


def test_a_vocabulary_of_special_ids_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 2, "eos_token_id": [0, 1]}')
    with pytest.raises(NotACheckpoint, match="no id that is not special"):
        usable_ids(tmp_path)
