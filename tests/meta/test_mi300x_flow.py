"""`pytest -m mi300x` from its preflight to its last line, on a machine that pretends: same code, another record.

The run is stopped by its budget, and taken up again by the gate's script. One vLLM in a container at a time.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.meta.fake_hub import COMMIT, REPO
from tests.meta.pretended import PRICE, Pretended, pretended
from tests.support.record import Record, read_record

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.xdist_group("docker")]
SUITES = ("tests/quant", "tests/gemm", "tests/serve", "tests/sweep")
BUILDS = ("bf16", "fp8", "q4w4a16emb4")
ARGS = (*SUITES, "--builds", ",".join(BUILDS), "--rows", "1", "--engine-arg=--enforce-eager",
        "--engine-env=VLLM_CPU_KVCACHE_SPACE=1", "--engine-env=VLLM_CPU_INT4_W4A8=0",
        "--engine-env=TORCH_COMPILE_DISABLE=1")  # fmt: skip
STOPPED_S = 100.0  # after the first items of any machine, and before the last of the fastest


@dataclass(frozen=True)
class Flow:
    """Both sessions of one run.

    Attributes
    ----------
    stopped, whole
        The record after each.
    """

    machine: Pretended
    first: tuple[int, str]
    stopped: Record
    second: tuple[int, str]
    whole: Record
    told: Path


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    """The run, in two sessions."""
    folder = tmp_path_factory.mktemp("mi300x")
    with pretended(folder) as machine:
        first = machine.pytest(*ARGS, "--budget", str(STOPPED_S / 3600 * PRICE))
        print(first[1])
        stopped = read_record(machine.run)
        told = {"GITHUB_STEP_SUMMARY": str(folder / "summary"), "GITHUB_OUTPUT": str(folder / "output")}
        second = machine.call(["scripts/gate", str(machine.run), *machine.arguments(), *ARGS], told)
        print(second[1])
        yield Flow(machine, first, stopped, second, read_record(machine.run), folder)


def outcomes(record: Record) -> set[str]:
    return {row.outcome for row in record.rows}


def test_the_budget_stops_it_between_items(flow: Flow) -> None:
    status, output = flow.first
    assert status == 11, output
    assert "preflight: mi300x is ready" in output
    assert f"source: {REPO} at {COMMIT}" in output
    assert outcomes(flow.stopped) <= {"ok", "infeasible", "not_run"}
    reasons = {row.reason for row in flow.stopped.rows if row.outcome == "not_run"}
    assert reasons
    assert all("the budget of $0.06 is spent" in reason for reason in reasons)


def test_the_second_session_ends_well_and_measures_nothing_twice(flow: Flow) -> None:
    status, output = flow.second
    assert status == 0, output
    assert outcomes(flow.whole) <= {"ok", "infeasible"}
    whole = {row.key: row for row in flow.whole.rows}
    kept = [row for row in flow.stopped.rows if row.outcome == "ok" and row.suite != "gate"]
    assert kept
    assert all(whole[row.key] == row for row in kept)


def test_every_suite_ran_where_the_record_says(flow: Flow) -> None:
    header = flow.whole.header
    assert (header["settings"]["machine"], header["settings"]["grid"]) == ("mi300x", "smoke")
    assert header["settings"]["image"] == flow.machine.facts["image"]
    assert header["source_pin"]["commit"] == COMMIT
    assert {row.suite for row in flow.whole.rows} == {"quant", "gemm", "serve", "sweep", "gate"}
    boots = {row.build: row.numbers for row in flow.whole.of("serve") if row.item == "boot"}
    assert tuple(boots) == BUILDS
    kernels = flow.machine.facts["kernels"]
    assert boots["fp8"]["kernels"] == [kernels["fp8"]]
    assert boots["q4w4a16emb4"]["kernels"] == [kernels["int4"]]
    assert all("--gpu-memory-utilization" in boot["engine_args"] for boot in boots.values())
    swept = {row.build for row in flow.whole.of("sweep") if row.item == "8x128"}
    assert swept == set(BUILDS)


def test_no_cell_is_compared_with_what_was_published_for_another_card(flow: Flow) -> None:
    verdicts = flow.whole.of("gate")
    assert len(verdicts) == 2 * len(BUILDS)
    for row in verdicts:
        assert (row.numbers["verdict"], row.numbers["enforced"]) == ("not_comparable", False)
        assert "card: gfx942 then" in row.numbers["why"]
        assert "image: vllm/vllm-openai-rocm@sha256:" in row.numbers["why"]


def test_it_says_what_it_costs_and_that_it_goes_on_costing(flow: Flow) -> None:
    first, second = (
        [int(minutes) for minutes in re.findall(r"cost: (\d+) min so far, \$0\.\d\d", output)]
        for _, output in (flow.first, flow.second)
    )
    assert first
    assert first + second == sorted(first + second), "the second session counts on where the first ended"
    assert second[0] >= 1  # the first was stopped by 100 s of budget
    assert all(" left, $0." in output for _, output in (flow.first, flow.second))
    assert flow.first[1].rstrip().endswith("mi300x bills $1.99 an hour until it is destroyed")
    assert "mi300x bills $1.99 an hour until it is destroyed" in flow.second[1]


def test_report_summary_and_junit_are_there(flow: Flow) -> None:
    run = flow.machine.run
    assert (run / "report.html").is_file()
    summary = (flow.told / "summary").read_text()
    assert summary.startswith("## good (exit status 0 at try 1)")
    assert all(build in summary for build in BUILDS)
    assert (flow.told / "output").read_text() == "status=0\nverdict=good\n"
    suite = ElementTree.parse(run / "junit-1.xml").getroot()[0]
    assert (suite.get("errors"), suite.get("failures")) == ("0", "0")
    assert int(suite.get("tests", "0")) > 0


def test_nothing_is_left_behind(flow: Flow) -> None:
    assert flow.machine.host.client.containers.list(all=True) == []
