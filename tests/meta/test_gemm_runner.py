"""The timing program against faked devices, each with one defect: what it refuses, what it times, what it never times.

The fakes are the CPU with one method replaced, so that the checks they meet are the real ones.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from quantkit.machines import machine_named
from tests.support.gemm.backends import Backend
from tests.support.gemm.launch import TimingFailed, bundle, kept_lines, run_program
from tests.support.gemm.plan import Timing, plan_for
from tests.support.gemm.rows import ending, product_numbers
from tests.support.gemm.runner import forms
from tests.support.gemm.runner.devices import Cpu, Sample
from tests.support.gemm.runner.forms import FORMS, WrongValues
from tests.support.gemm.runner.measure import measure
from tests.support.gemm.runner.products import Operand, Product, Weights, check
from tests.support.gemm.samples import Timed
from tests.support.gemm.shapes import Shape, Token

BACKENDS = tuple(FORMS)
TOKEN = Token("toy", (Shape("q_proj", 64, 64), Shape("o_proj", 96, 64), Shape("q_proj", 64, 64)))
TIMING = Timing(1, 1e6, least_samples=3, samples=4, control_side=64, copy_bytes=1 << 12, drift_limit=None)
PLAN = plan_for(machine_named("cpu"), TOKEN, [2], TIMING, [Backend.BF16, Backend.FP8])
PLAN |= {"span_bytes": 1 << 15, "distinct": True}
Spoil = Callable[[torch.Tensor], torch.Tensor]


class Faulty(Cpu):
    """One backend's product of one shape has its output spoilt, or raises."""

    def __init__(self, spoil: Spoil, backend: str = "fp8") -> None:
        super().__init__()
        self.spoil = spoil
        self.backend = backend

    def product(self, backend: str, rows: int, of: Weights) -> Product:
        item = super().product(backend, rows, of)
        if backend == self.backend and of.n == 96:
            right = item.multiply

            def multiply(x: Operand, w: Operand, out: torch.Tensor) -> torch.Tensor:
                return self.spoil(right(x, w, out))

            item.multiply = multiply
        return item


class Drifting(Cpu):
    """A clock that runs slower with every look at it."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = 1.0

    def timer(self, calls: Sequence[Callable[[], object]], whole: bool) -> Sample:
        def sample() -> float:
            self.slow *= 1.05
            return 1e-6 * self.slow

        return sample


def refuse(out: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("HIPBLAS_STATUS_NOT_SUPPORTED\nand a long trace")


def run_out(out: torch.Tensor) -> torch.Tensor:
    raise torch.OutOfMemoryError("out of memory")


def one_tile_zero(out: torch.Tensor) -> torch.Tensor:
    out[:, 32:48] = 0
    return out


def one_tile_from_its_neighbour(out: torch.Tensor) -> torch.Tensor:
    out[:, 32:48] = out[:, 48:64].clone()
    return out


def one_nan(out: torch.Tensor) -> torch.Tensor:
    out[1, 5] = torch.nan
    return out


def two_times(out: torch.Tensor) -> torch.Tensor:
    return out * 2


def timed_by(device: Cpu, **changed: Any) -> Timed:
    plan = {**PLAN, **changed}
    return Timed(plan, (tuple(measure(plan, device)),))


def test_a_sound_device() -> None:
    """Every cell is timed, with right values; the token too; the last line counts the others."""
    timed = timed_by(Cpu(), backends=list(BACKENDS))
    for backend in BACKENDS:
        for shape in TOKEN.shapes:
            cell = timed.cell(backend, 2, shape.name)
            assert cell.outcome == "ok", cell.reason
            assert cell.samples >= 3
            assert 0 <= cell.error_over_bound <= 1
        assert timed.token(backend, 2).outcome == "ok"
        assert timed.control(backend).outcome == "ok"
        assert timed.drift(backend, 2) is not None
    assert timed.processes[0][-1] == {"kind": "end", "lines": len(timed.processes[0]) - 1}


@pytest.mark.parametrize("spoil", [one_tile_zero, one_tile_from_its_neighbour, one_nan, two_times])
def test_wrong_values_get_no_time(spoil: Spoil) -> None:
    timed = timed_by(Faulty(spoil))
    cell = timed.cell("fp8", 2, "o_proj 96x64")
    assert cell.outcome == "wrong"
    assert not cell.seconds
    assert timed.cell("fp8", 2, "q_proj 64x64").outcome == "ok"
    assert "no_sum" in product_numbers(timed, TOKEN, Backend.FP8, 2)
    cells = {shape.name: timed.cell("fp8", 2, shape.name) for shape in TOKEN.shapes}
    assert ending(cells, 0.0, 0.03).outcome == "failed"


@pytest.mark.parametrize("backend", ["bf16", "int8"])
def test_a_kernel_that_writes_nothing(backend: str) -> None:
    """The right values of an earlier run lie in the output: it is poisoned before each check."""
    device = Cpu()
    item = device.product(backend, 2, device.weights(backend, 96, 64, 1, 0))
    check(item)
    item.multiply = lambda x, w, out: out
    with pytest.raises(WrongValues):
        check(item)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_is_checked(backend: str) -> None:
    """A neighbour's tile has plausible values in any format."""
    timed = timed_by(Faulty(one_tile_from_its_neighbour, backend), backends=[backend])
    assert timed.cell(backend, 2, "o_proj 96x64").outcome == "wrong"


def test_int8_is_exact() -> None:
    """One unit off in one value is wrong: integers have no rounding."""

    def spoil(out: torch.Tensor) -> torch.Tensor:
        out[0, 0] += 1
        return out

    timed = timed_by(Faulty(spoil, "int8"), backends=["int8"])
    assert timed.cell("int8", 2, "o_proj 96x64").outcome == "wrong"


@pytest.mark.parametrize("tile", range(6))
def test_one_wrong_tile_of_a_large_product(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    """Where only one column in 16 is checked, one wrong tile of 16 columns is seen wherever it lies."""
    monkeypatch.setattr(forms, "EVERY", 0)

    def spoil(out: torch.Tensor) -> torch.Tensor:
        out[:, 16 * tile : 16 * tile + 16] = 0
        return out

    cell = timed_by(Faulty(spoil)).cell("fp8", 2, "o_proj 96x64")
    assert cell.outcome == "wrong"


def test_a_refusal_is_a_result() -> None:
    """The first line of the message is kept, no sum is made, and the run goes on."""
    timed = timed_by(Faulty(refuse), backends=["fp8", "bf16"])
    cell = timed.cell("fp8", 2, "o_proj 96x64")
    assert (cell.outcome, cell.reason) == ("unsupported", "RuntimeError: HIPBLAS_STATUS_NOT_SUPPORTED")
    assert timed.token("fp8", 2).outcome == "not_run"
    assert timed.token("bf16", 2).outcome == "ok"


def test_out_of_memory_is_no_refusal() -> None:
    cell = timed_by(Faulty(run_out)).cell("fp8", 2, "o_proj 96x64")
    assert (cell.outcome, cell.reason) == ("not_run", "OutOfMemoryError: out of memory")


def test_a_dead_device_ends_the_run() -> None:
    """After a sticky error nothing else may be called unsupported."""

    class Dead(Faulty):
        def assert_alive(self) -> None:
            raise RuntimeError("illegal memory access")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        timed_by(Dead(refuse))


def test_a_kernel_that_refuses_every_shape() -> None:
    """int4 needs groups of 32: k = 48 has none, and the reason says what was refused."""
    shapes = [{"name": "o_proj 64x48", "n": 64, "k": 48, "count": 1}]
    timed = timed_by(Cpu(), backends=["int4"], shapes=shapes, order=["o_proj 64x48"])
    assert timed.cell("int4", 2, "o_proj 64x48").outcome == "unsupported"


def test_a_drifting_clock_fails_the_cell() -> None:
    timed = timed_by(Drifting())
    drift = timed.drift("fp8", 2)
    assert drift is not None
    assert drift > 0.03
    cells = {shape.name: timed.cell("fp8", 2, shape.name) for shape in TOKEN.shapes}
    end = ending(cells, drift, 0.03)
    assert (end.outcome, end.reason[:11]) == ("failed", "clock drift")


def test_a_missing_shape_fails_the_row() -> None:
    """Lines that never came: a process that skipped a product without saying so."""
    lines = [line for line in measure(PLAN, Cpu()) if line.get("shape") != "o_proj 96x64"]
    timed = Timed(PLAN, (tuple(lines),))
    cells = {shape.name: timed.cell("bf16", 2, shape.name) for shape in TOKEN.shapes}
    end = ending(cells, 0.0, None)
    assert (end.outcome, end.reason) == ("failed", "o_proj 96x64: no result came for this product")
    assert "no_sum" in product_numbers(timed, TOKEN, Backend.BF16, 2)


def test_over_the_time_budget() -> None:
    """The first shape shows the pace; what would take too long is not run, and no number is made of it."""
    cell = timed_by(Cpu(), budget_s=1e-9).cell("bf16", 2, "o_proj 96x64")
    assert (cell.outcome, cell.reason) == ("not_run", "over the time budget of 1e-09 s")


def test_the_shipped_file_runs_on_its_own(tmp_path: Path) -> None:
    """One file, started in a folder that knows nothing of this project, as in a container."""
    program = bundle(tmp_path / "program.pyz")
    lines = run_program(
        (sys.executable, "-I", str(program), json.dumps(PLAN)), PLAN, tmp_path / "1.jsonl", 120
    )
    assert Timed(PLAN, (tuple(lines),)).token("fp8", 2).outcome == "ok"
    assert kept_lines(tmp_path / "1.jsonl", PLAN) == lines
    assert kept_lines(tmp_path / "1.jsonl", {**PLAN, "rows": [3]}) is None


def test_a_program_that_dies_is_an_error(tmp_path: Path) -> None:
    """With its exit code and its last words; what came before is no result."""
    code = "import sys; print('{\"kind\": \"facts\"}'); sys.exit('no card')"
    with pytest.raises(TimingFailed, match=r"exit code 1 after 1 results: no card"):
        run_program((sys.executable, "-c", code), PLAN, tmp_path / "1.jsonl", 60)
    assert kept_lines(tmp_path / "1.jsonl", PLAN) is None


def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    code = "import time; time.sleep(60)"
    with pytest.raises(TimingFailed, match="exit code -15"):
        run_program((sys.executable, "-c", code), PLAN, tmp_path / "1.jsonl", 0.5)


def test_the_runner_needs_torch_alone() -> None:
    """It imports the standard library, torch, itself, and vLLM only where it is asked for its kernel."""
    folder = Path(__file__).parents[1] / "support" / "gemm" / "runner"
    code = f"import sys; sys.path.insert(0, {str(folder.parent)!r}); import runner.main; print(*sys.modules)"
    loaded = subprocess.run(
        (sys.executable, "-I", "-c", code), capture_output=True, text=True, check=True
    ).stdout
    assert not {name.partition(".")[0] for name in loaded.split()} & {"tests", "quantkit", "vllm", "pytest"}
