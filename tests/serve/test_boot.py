"""Each build boots on the engine as meant: kernels, memory, KV pool, and the facts that a baseline holds."""

from pathlib import Path
from typing import Any

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from tests.support.boot.contract import (
    Expected,
    boot_numbers,
    check_kernels,
    check_kv,
    check_memory,
    stable_facts,
)
from tests.support.plugins.serving import Server
from tests.support.settings import Boot

BASELINES = Path(__file__).parents[2] / "baselines"
pytestmark = pytest.mark.xdist_group("engine")


@pytest.mark.row("boot")
def test_boot(
    boot: Boot,
    server: Server,
    expected: Expected,
    row: dict[str, Any],
    data_regression: DataRegressionFixture,
    pytestconfig: pytest.Config,
) -> None:
    """The engine runs this build as meant, and says the same as the committed baseline."""
    metrics = server.metrics()
    row["boot_s"] = server.boot_s
    row["engine_args"] = list(server.running.launch.args)
    row["kv_tokens_metrics"] = metrics.kv_tokens
    facts = server.boot_facts
    row.update(boot_numbers(facts, expected))
    check_kernels(facts, expected)
    check_memory(facts, expected)
    check_kv(facts, metrics.kv_tokens)
    assert facts.prefix_caching == metrics.prefix_caching
    baseline = BASELINES / expected.machine.name / "boot" / f"{boot.build.name}.yml"
    row["baseline"] = "known" if baseline.exists() or pytestconfig.getoption("force_regen") else "new"
    if row["baseline"] == "new":  # a build's first run fails nothing; --force-regen writes what it found
        return
    data_regression.check(stable_facts(facts, expected), fullpath=baseline)
