"""Memory and KV tokens of the builds are predicted as a real engine reported them; less than a table more is caught."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.shaped import real_config
from quantkit.checkpoint import Checkpoint
from quantkit.formats import FORMATS, Format
from quantkit.machines import machine_named
from quantkit.memory import GIB, engine_tensors, segment_slack
from quantkit.model import inventory
from quantkit.plan import make_plan
from quantkit.textconfig import text_config
from quantkit.writer import Stored
from tests.nano import NANO
from tests.report.published import published_record
from tests.support.boot.contract import (
    MEMORY_TOLERANCE,
    Dequantized,
    Expected,
    TooLittleLoaded,
    check_memory,
    expected_of,
    predicted_bytes,
    predicted_kv_tokens,
    stable_facts,
)
from tests.support.boot.log import BootFacts
from tests.support.record import read_record

ROOT = Path(__file__).parents[2]
LEFT_OVER = 128  # bytes: scalars that the engine holds as buffers, or as parameters of its own
BOOTS = ROOT / "baselines" / "cpu" / "boot"
by_name = pytest.mark.parametrize("name", FORMATS)


def boot_of(name: str, record: Any) -> dict[str, Any]:
    """Numbers of a build's boot."""
    return next(row.numbers for row in record.of("serve") if (row.build, row.item) == (name, "boot"))


@pytest.fixture
def loaded(name: str, built: Callable[[Format], Path]) -> tuple[BootFacts, Expected, dict[str, Any]]:
    """What the committed run's engine said of a build of the nano, and what it must say of it."""
    said = boot_of(name, read_record(ROOT / "docs" / "demo"))
    facts = BootFacts(
        kernels=tuple((kernel, "") for kernel in said["kernels"]),
        loaded_bytes=said["loaded_bytes"],
        product_plugin=said["product_plugin"],
        kv_context=9216,
    )
    with Checkpoint.open(built(FORMATS[name])) as checkpoint:
        return facts, expected_of(FORMATS[name], machine_named("cpu"), checkpoint, 1 * GIB), said


def test_a_baseline_holds_what_depends_on_build_and_machine_alone() -> None:
    """A card's warnings are its own; those of a laptop tell of its libraries."""
    text = text_config(json.loads((NANO / "config.json").read_text()))
    facts = BootFacts(warnings=("b", "a"), kernels=(("Kernel", "scheme"),))
    made = {
        name: stable_facts(facts, Expected(FORMATS["w8a8"], machine_named(name), text, 0))
        for name in ("cpu", "mi300x")
    }
    committed = [yaml.safe_load(path.read_text()) for path in BOOTS.iterdir()]
    assert len(committed) == len(FORMATS)
    assert all(each.keys() == made["cpu"].keys() for each in committed)
    assert (made["cpu"]["warnings"], made["mi300x"]["warnings"]) == ([], ["a", "b"])
    assert made["cpu"]["kernels"] == [["Kernel", "scheme"]]


@by_name
def test_every_byte_of_the_nano_is_predicted(loaded: tuple[BootFacts, Expected, dict[str, Any]]) -> None:
    """What kernels add is known, to a few scalars."""
    facts, expected, said = loaded
    assert abs(said["loaded_bytes"] - predicted_bytes(facts, expected)) <= LEFT_OVER
    assert predicted_kv_tokens(facts, expected) == said["kv_tokens_log"]
    check_memory(facts, expected)


@by_name
def test_one_dequantized_table_is_caught(loaded: tuple[BootFacts, Expected, dict[str, Any]]) -> None:
    """The least that an engine would dequantize: the nano's head, from int4 to bf16. Half of it, left out, too."""
    facts, expected, said = loaded
    head = 512 * 128 * (16 - 4.5) / 8
    with pytest.raises(Dequantized):
        check_memory(replace(facts, loaded_bytes=said["loaded_bytes"] + int(head)), expected)
    with pytest.raises(TooLittleLoaded):
        check_memory(replace(facts, loaded_bytes=said["loaded_bytes"] - int(head)), expected)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "bf16"])  # that one had towers
def test_published_loads_are_within_the_tolerance(name: str) -> None:
    """On a card the log names gibibytes, with the rotary caches in them and nothing of kernels."""
    said = boot_of(name, published_record(ROOT / "baselines" / "mi300x" / "published"))
    config = real_config("E2B")
    headers = {each.name: Stored(each.name, "BF16", each.shape) for each in inventory(config).tensors}
    plan = make_plan(config, headers, FORMATS[name])
    facts = BootFacts(kernels=tuple((k, "") for k in said["kernels"]), loaded_gib=said["loaded_gib"])
    held = engine_tensors({one.name: one.size_bytes for shard in plan.shards for one in shard.tensors})
    expected = Expected(
        FORMATS[name],
        machine_named("mi300x"),
        plan.inventory.config,
        weight_bytes=held.total(),
        slack_bytes=segment_slack(held.values()),
        int8_rows=10**9,  # which no kernel of a card adds anything for
        int4_groups=10**9,
    )
    check_memory(facts, expected)
    assert abs(said["loaded_gib"] * GIB / predicted_bytes(facts, expected) - 1) <= MEMORY_TOLERANCE / 2
    predicted = predicted_kv_tokens(facts, expected)
    assert predicted is not None
    assert abs(predicted / said["kv_tokens_log"] - 1) <= 0.03  # as the constant in `memory` was fitted
    assert (
        predicted_kv_tokens(facts, replace(expected, machine=replace(expected.machine, memory_gib=0))) is None
    )
