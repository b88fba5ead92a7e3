"""The graph timing of a GPU against a faked CUDA: what is captured, replayed, divided, and how it warms up.

No card is needed, so this shows the arithmetic and the order of calls, and nothing of a driver.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from quantkit.machines import machines
from tests.support.gemm.launch import command
from tests.support.gemm.plan import TIMINGS, plan_for
from tests.support.gemm.runner.devices import Gpu
from tests.support.gemm.runner.products import int4_kernel
from tests.support.gemm.shapes import Shape, Token

CALL_S = 100e-6


class FakeCuda:
    """A card on which a captured call takes `CALL_S`; the first replays are slower, as clocks rise."""

    def __init__(self, slow_replays: int = 0) -> None:
        self.now_s = 0.0
        self.capturing: SimpleNamespace | None = None
        self.slow_replays = slow_replays
        self.replays = 0

    def call(self) -> None:
        if self.capturing is not None:
            self.capturing.calls += 1

    def graph_object(self) -> SimpleNamespace:
        made = SimpleNamespace(calls=0)

        def replay() -> None:
            self.replays += 1
            slow = 2.0 if self.replays <= self.slow_replays else 1.0
            self.now_s += made.calls * CALL_S * slow

        made.replay = replay
        return made

    @contextmanager
    def capture(self, graph: SimpleNamespace) -> Iterator[None]:
        self.capturing = graph
        yield
        self.capturing = None

    def event(self, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        at = SimpleNamespace(s=0.0, synchronize=lambda: None)
        at.record = lambda: setattr(at, "s", self.now_s)
        at.elapsed_time = lambda end: (end.s - at.s) * 1e3
        return at


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", fake.graph_object)
    monkeypatch.setattr(torch.cuda, "graph", fake.capture)
    monkeypatch.setattr(torch.cuda, "Event", fake.event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return fake


def test_a_shape_alone_is_one_calls_share_of_its_graph(cuda: FakeCuda) -> None:
    sample = Gpu().timer([cuda.call] * 8, whole=False)
    assert sample() == pytest.approx(CALL_S)


def test_a_token_is_the_whole_graph(cuda: FakeCuda) -> None:
    sample = Gpu().timer([cuda.call] * 8, whole=True)
    assert sample() == pytest.approx(8 * CALL_S)


def test_a_sample_replays_for_at_least_its_time(cuda: FakeCuda) -> None:
    """Events resolve about a microsecond: a short graph is replayed until the sample takes 5 ms."""
    sample = Gpu().timer([cuda.call], whole=True)
    before = cuda.replays
    sample()
    assert (cuda.replays - before) * CALL_S >= 5e-3 - 1e-9


def test_it_warms_up_until_the_clock_is_steady(cuda: FakeCuda) -> None:
    device = Gpu()
    sample = device.timer([cuda.call] * 100, whole=True)
    cuda.slow_replays = cuda.replays + 7
    device.settle(sample)
    assert sample() == pytest.approx(100 * CALL_S)


def test_int4_on_a_card_without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own kernel on CUDA; on ROCm too, where vLLM cannot be imported."""
    card = torch.device("cuda", 0)
    monkeypatch.setattr(torch.version, "hip", None)
    assert int4_kernel(card) == "int4-torch"
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setitem(sys.modules, "vllm.model_executor.kernels.linear.mixed_precision.triton_w4a16", None)
    assert int4_kernel(card) == "int4-torch"


def test_the_container_sees_the_card_and_nothing_else() -> None:
    """The pinned image, its devices, no network, the program alone mounted, and the plan as argument."""
    card = machines()["mi300x"]
    plan = plan_for(card, Token("toy", (Shape("o_proj", 32, 32),)), [1], TIMINGS["gpu", "smoke"])
    argv = command(card, card.image, Path("/run/program.pyz"), plan)
    assert argv[:3] == ("docker", "run", "--rm")
    assert argv[argv.index("--network") + 1] == "none"
    assert [argv[at + 1] for at, part in enumerate(argv) if part == "--device"] == ["/dev/kfd", "/dev/dri"]
    assert argv[argv.index("--volume") + 1] == "/run/program.pyz:/quantkit-gemm.pyz:ro"
    assert argv[-3] == card.image


def test_the_weights_outgrow_the_infinity_cache() -> None:
    """Twice 256 MiB on MI300X, where the driver tells of a 4 MB cache; and weights of their own for a token."""
    plan = plan_for(
        machines()["mi300x"], Token("toy", (Shape("o_proj", 32, 32),)), [1], TIMINGS["gpu", "smoke"]
    )
    assert plan["span_bytes"] == 2 * 256 * 2**20
    assert plan["distinct"]


def test_what_every_timing_keeps() -> None:
    """Three fresh processes at least; on a card ten samples, a square of 8192 and a clock that is looked at."""
    for (kind, _), timing in TIMINGS.items():
        assert timing.processes >= 3
        assert (timing.drift_limit is None) == (kind == "cpu")
        if kind == "gpu":
            assert timing.least_samples >= 10
            assert timing.control_side == 8192
            assert timing.drift_limit == 0.03
