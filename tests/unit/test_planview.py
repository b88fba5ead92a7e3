"""What a plan says: counts, disk, cards whose memory nobody knows, and ranks."""

from dataclasses import replace

import pytest

from benchmarks.shaped import real_config
from quantkit.machines import machine_named
from quantkit.planview import plan_to_dict, plan_to_text
from tests.unit.headers import plan_of

CARD = machine_named("mi300x")
PLENTY = 1 << 50


def test_counts_of_a_build_with_packed_tables() -> None:
    said = plan_to_dict(plan_of(real_config("E2B"), "q4w4a16emb4"), CARD, 1, PLENTY)
    tables = 262_144 * (1536 + 35 * 256) // 32
    assert (said["linears"], said["linear_values"]) == (276, 1_876_819_968)
    assert said["groups"] == 58_650_624 + tables
    assert said["copied"] == 262


def test_tensors_are_told_by_scheme_and_rule() -> None:
    text = plan_to_text(plan_to_dict(plan_of(real_config("E2B"), "fp8emb4"), CARD, 1, PLENTY))
    assert text.splitlines()[1:4] == [
        "    276 tensors  fp8        linear",
        "    262 tensors  as it is   norm or scalar, copied",
        "      2 tensors  int4       table, packed",
    ]


def test_a_disk_that_is_one_byte_short() -> None:
    plan = plan_of(real_config("E2B"), "fp8")
    for free, suffices, words in (
        (plan.file_bytes, True, ", enough"),
        (plan.file_bytes - 1, False, "NOT ENOUGH"),
    ):
        said = plan_to_dict(plan, CARD, 1, free)
        assert (said["disk_free_bytes"], said["disk_suffices"]) == (free, suffices)
        assert plan_to_text(said).endswith(words)


def test_no_tokens_are_promised_where_no_memory_is_known() -> None:
    said = plan_to_dict(plan_of(real_config("E2B"), "fp8"), replace(CARD, memory_gib=0), 1, PLENTY)
    assert said["kv_tokens"] is None
    assert "no card memory is known" in said["kv_tokens_basis"]
    assert "KV tokens" not in plan_to_text(said)
    assert "KV tokens on mi300x (a fit" in plan_to_text(
        plan_to_dict(plan_of(real_config("E2B"), "fp8"), CARD, 1, PLENTY)
    )


@pytest.mark.parametrize(("machine", "kernel"), [("mi300x", "Triton W4A16"), ("cpu", "CPU WNA16")])
def test_kernels_are_the_machine_s_and_the_ranks_(machine: str, kernel: str) -> None:
    plan = plan_of(real_config("E2B"), "q4w4a16")
    assert plan_to_dict(plan, machine_named(machine), 1, PLENTY)["not_eligible"] == []
    said = plan_to_dict(plan, machine_named(machine), 128, PLENTY)
    assert {misfit["kernel"] for misfit in said["not_eligible"]} == {kernel}
    assert f" x o_proj, {kernel}: K of " in plan_to_text(said)


def test_what_has_no_kernel_is_told_by_kind_and_reason() -> None:
    plan = plan_of(real_config("E2B"), "fp8")
    said = [plan_to_text(plan_to_dict(plan, CARD, ranks, PLENTY)).splitlines() for ranks in (3, 256)]
    lines = [[line for line in lines if line.startswith("no kernel")] for lines in said]
    assert "no kernel: 28 x q_proj, torch scaled_mm: N of 2048 is not divisible by 3" in lines[0]
    assert "no kernel: 28 x q_proj, torch scaled_mm: N of 8 a rank is no multiple of 16" in lines[1]
    assert all(len(found) < 12 for found in lines)
