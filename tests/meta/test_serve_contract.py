"""The boot contract case by case, without a server: kernels, quantization, memory to the byte, the KV pool."""

import json
from dataclasses import replace
from typing import Any

import pytest

from quantkit.formats import FORMATS
from quantkit.machines import machine_named
from quantkit.memory import GIB, rotary_bytes
from quantkit.textconfig import text_config
from tests.nano import NANO
from tests.support.boot.contract import (
    INT8_SUMMING,
    BrokenContract,
    Dequantized,
    Expected,
    KvDisagrees,
    LookupMissing,
    TooLittleLoaded,
    WrongKernel,
    boot_numbers,
    check_kernels,
    check_kv,
    check_memory,
    predicted_bytes,
    predicted_kv_tokens,
)
from tests.support.boot.log import BootFacts

TEXT = text_config(json.loads((NANO / "config.json").read_text()))
CPU = machine_named("cpu")
FP8_KERNEL, INT4_KERNEL = "ChannelWiseTorchFP8ScaledMMLinearKernel", "CPUWNA16LinearKernel"
KERNELS: dict[str, set[str]] = {
    "bf16": set(),
    "fp8": {FP8_KERNEL},
    "fp8fnuzemb4": {FP8_KERNEL, INT4_KERNEL},
    "w8a8": {INT8_SUMMING},
    "w8a8emb4": {INT8_SUMMING, INT4_KERNEL},
    "q4w4a16ple4": {INT4_KERNEL},
    "q4w4a16emb4": {INT4_KERNEL},
}


def expected(build: str = "fp8", machine: str = "cpu", **sizes: Any) -> Expected:
    """What a build of the nano must show."""
    return Expected(FORMATS[build], machine_named(machine), TEXT, **{"weight_bytes": 1000, **sizes})


def facts(*kernels: str, **said: Any) -> BootFacts:
    """What an engine with these kernels says of a quantized build."""
    pairs = tuple((kernel, "scheme") for kernel in kernels)
    return BootFacts(kernels=pairs, **{"quantization": "compressed-tensors", "lookup_plugin": True, **said})


@pytest.mark.parametrize(("name", "kernels"), KERNELS.items())
def test_the_kernels_of_a_build(name: str, kernels: set[str]) -> None:
    """Of its linears, and of a head that is its own; a table is looked up, not multiplied."""
    assert expected(name).kernels == frozenset(kernels)
    check_kernels(facts(*kernels, quantization="compressed-tensors" if kernels else "None"), expected(name))


def test_a_machine_that_was_not_observed_expects_no_kernel() -> None:
    unknown = replace(expected(), machine=replace(CPU, kernels={}))
    assert unknown.kernels is None
    check_kernels(facts("AnyKernel"), unknown)
    assert replace(unknown, build=FORMATS["bf16"]).kernels == frozenset()


@pytest.mark.parametrize(
    ("name", "said", "error", "words"),
    [
        ("fp8", facts(), WrongKernel, r"linear kernel of fp8, got none \(dense\), expected \['Channel"),
        ("fp8", facts(FP8_KERNEL, "Other"), WrongKernel, "'Other'"),
        (
            "bf16",
            facts("Other", quantization="None"),
            WrongKernel,
            r"got \['Other'\], expected none \(dense\)",
        ),
        ("bf16", facts(), WrongKernel, "quantization of bf16, got compressed-tensors"),
        ("fp8", facts(FP8_KERNEL, quantization="None"), WrongKernel, "quantization of fp8, got None"),
        ("q4w4a16ple4", facts(INT4_KERNEL, lookup_plugin=False), LookupMissing, "install quantkit"),
    ],
)
def test_a_breach_is_named(name: str, said: BootFacts, error: type[BrokenContract], words: str) -> None:
    with pytest.raises(error, match=words):
        check_kernels(said, expected(name))


def test_the_lookup_is_the_cpus_alone() -> None:
    card = expected("q4w4a16ple4", "mi300x")
    assert card.kernels
    check_kernels(facts(*card.kernels, lookup_plugin=False), card)
    check_kernels(facts(FP8_KERNEL, lookup_plugin=False), expected("fp8"))


def test_memory_to_the_byte() -> None:
    """Two per cent either way; memory that nobody told is not right."""
    for held in (980, 1020):
        check_memory(facts(loaded_bytes=held), expected())
    wrong = {979: TooLittleLoaded, 1021: Dequantized, None: Dequantized}
    for each, error in wrong.items():
        with pytest.raises(error):
            check_memory(facts(loaded_bytes=each), expected())


def test_what_kernels_and_cards_add() -> None:
    """A sum of four bytes for a row of int8, a zero of two for a group of int4; on a card rotary caches and slack."""
    sizes = expected(int8_rows=10, int4_groups=100, slack_bytes=7)
    assert predicted_bytes(facts(loaded_bytes=1), sizes) == 1000
    assert predicted_bytes(facts(INT8_SUMMING, loaded_bytes=1), sizes) == 1040
    assert predicted_bytes(facts(loaded_bytes=1, product_plugin=True), sizes) == 1200
    assert predicted_bytes(facts(loaded_gib=1.0), sizes) == 1007 + rotary_bytes(TEXT)


def test_the_pool_of_an_engine_that_is_told_it() -> None:
    one, two = (predicted_kv_tokens(facts(kv_context=9216), expected(kv_pool_bytes=n * GIB)) for n in (1, 2))
    assert one is not None
    assert two is not None
    assert 1.9 * one <= two <= 2.1 * one
    assert predicted_kv_tokens(facts(), replace(expected(), machine=replace(CPU, memory_gib=0))) is None


def test_log_and_metrics_agree() -> None:
    check_kv(facts(kv_tokens=5), 5)
    with pytest.raises(KvDisagrees, match="5 tokens in the log, 6 in /metrics"):
        check_kv(facts(kv_tokens=5), 6)


def test_the_row_of_a_boot() -> None:
    said = facts("K", "L", "K", loaded_gib=2.0, kv_tokens=5, warnings=("b", "a"))
    row = boot_numbers(said, expected(weight_bytes=3 * GIB))
    assert (row["kernels"], row["schemes"]) == (["K", "L"], ["scheme"] * 3)
    assert (row["loaded_gib"], row["loaded_bytes"], row["warnings"]) == (2.0, 2 * GIB, ["a", "b"])
    assert row["predicted_bytes"] == 3 * GIB + rotary_bytes(TEXT)
    assert row["predicted_gib"] == row["predicted_bytes"] / GIB
    assert row["kv_tokens_log"] == 5
