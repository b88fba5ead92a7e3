"""The docker engine for real: our own dockerd, a digest from our own registry, a miniature and vLLM inside."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from quantkit.formats import FORMATS, Format
from tests.nano import NANO
from tests.support.answers.asking import ask
from tests.support.answers.checkers import check
from tests.support.answers.probes import FOLDER, KINDS, read_probes
from tests.support.engine.base import Launch, ServerDied
from tests.support.engine.container import (
    NAMESPACE,
    OWNER,
    DeviceMissing,
    DockerEngine,
    ImageMissing,
    NotPinned,
    Recipe,
    device_options,
    require_pinned,
)
from tests.support.engine.docker_host import ROOT, DockerHost, bound_folders, docker_host, empty_image
from tests.support.engine.readiness import Patience
from tests.support.engine.reaping import SHARED_MEMORY, namespace
from tests.support.plugins.serving import ENGINE_ARGS, ENGINE_ENV, VLLM_ARGS, Server, serve
from tests.support.settings import Boot

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("docker")]
W8A8 = FORMATS["w8a8"]
MINIATURE = (sys.executable, "-m", "tests.support.miniatures.vllm_server")
MakeEngine = Callable[[str], DockerEngine]
INSIDE = {"PYTHONPATH": str(ROOT), "HOME": "/tmp"}
# A run that starts a container and is killed: the container outlives it.
OWNER_SCRIPT = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    from tests.meta.test_serve_docker import launch, recipe
    from tests.support.engine.container import DockerEngine
    running = DockerEngine(recipe({image!r}, "none"), {socket!r}).start(launch(Path({folder!r})))
    print(running.container.id, flush=True)
    time.sleep(600)
""")
SHARING = """
from multiprocessing.shared_memory import SharedMemory
import time
memory = SharedMemory(create=True, size=4096)
print(memory.name, flush=True)
time.sleep(600)
"""


def launch(folder: Path) -> Launch:
    """A launch of the miniature."""
    return Launch("w8a8", NANO, "quantkit-w8a8", folder / "boot.log")


def recipe(image: str, defect: str) -> Recipe:
    """A container that runs the miniature."""
    return Recipe(image, "a-run", (), bound_folders(), ("/tmp",), (*MINIATURE, defect), INSIDE)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerHost]:
    """Our docker engine."""
    with docker_host(tmp_path_factory.mktemp("docker")) as ours:
        yield ours


@pytest.fixture(scope="module")
def image(host: DockerHost) -> str:
    """An image pinned by digest."""
    return empty_image(host)


@pytest.fixture
def engine(host: DockerHost, image: str) -> Iterator[Callable[[str], DockerEngine]]:
    """Makes engines under test, on our docker engine, from the defect of their miniature."""
    with ExitStack() as stack:
        yield lambda defect: stack.enter_context(closing(DockerEngine(recipe(image, defect), host.base_url)))


def answer_all(server: Server) -> None:
    """Every question, asked and judged."""
    probes = read_probes(FOLDER / "nano.toml")
    with OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        for kind in KINDS:
            for probe in probes.of(kind):
                check(probe, ask(client, probe, probes, server.model))


def test_good(host: DockerHost, engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container is made as asked, answers, leaves its log, and is gone."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serve(engine("none"), launch(tmp_path), Boot(W8A8), Patience(boot_s=60)) as server:
        answer_all(server)
        (made,) = host.client.containers.list(filters={"label": OWNER})
        facts: dict[str, Any] = made.attrs
        assert facts["HostConfig"]["RestartPolicy"]["Name"] in ("", "no")
        assert {ports[0]["HostIp"] for ports in facts["NetworkSettings"]["Ports"].values()} == {"127.0.0.1"}
        assert not [mount for mount in facts["Mounts"] if mount["RW"]]
        assert "hf_secret" not in str(facts)
        assert server.pids
    assert "LLM engine (v0.32.0)" in (tmp_path / "boot.log").read_text()
    assert host.client.containers.list(all=True) == []


def test_container_that_dies(host: DockerHost, engine: MakeEngine, tmp_path: Path) -> None:
    """A container that ends during boot is known at once, with its log, and removed."""
    with (
        pytest.raises(ServerDied, match=r"lm_head\.weight_packed"),
        serve(engine("dies during boot"), launch(tmp_path), Boot(W8A8), Patience(boot_s=60)),
    ):
        pass
    assert host.client.containers.list(all=True) == []


def test_tag_is_refused(host: DockerHost, image: str) -> None:
    """A tag is no pin; the sentence says which digest it is today."""
    tag = image.partition("@")[0] + ":test"
    with pytest.raises(NotPinned, match=image.partition("@")[2]):
        require_pinned(host.client, tag)


def test_absent_image(host: DockerHost, image: str) -> None:
    """A digest that is not here is not pulled in the middle of a run."""
    with pytest.raises(ImageMissing, match="docker pull"):
        require_pinned(host.client, image[:-4] + "0000")


def test_absent_device() -> None:
    """A missing card is one sentence, and a device's groups are this host's numbers."""
    with pytest.raises(DeviceMissing, match="/dev/kfd-of-another-host"):
        device_options(("/dev/kfd-of-another-host",))
    options = device_options(("/dev/null", "nvidia.com/gpu=all"))
    assert options["devices"] == ["/dev/null:/dev/null:rwm"]
    assert options["group_add"] == [Path("/dev/null").stat().st_gid]
    assert [request["DeviceIDs"] for request in options["device_requests"]] == [["nvidia.com/gpu=all"]]


def test_killed_run_is_reaped(host: DockerHost, image: str, engine: MakeEngine, tmp_path: Path) -> None:
    """The container of a run that was killed is removed by the next; that of a living run stays."""
    script = OWNER_SCRIPT.format(image=image, socket=host.base_url, folder=str(tmp_path))
    owner = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        container = owner.stdout.readline().strip()
        next_run = engine("none")
        assert next_run.reap_orphans() == []
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    assert [found.id for found in host.client.containers.list()] == [container]
    assert len(next_run.reap_orphans()) == 1
    assert host.client.containers.list(all=True) == []


def test_host_memory_of_a_dead_run_is_removed(host: DockerHost, image: str, engine: MakeEngine) -> None:
    """A container in this host's namespace of shared memory, as a card of AMD has, leaves none when killed."""
    made = host.client.containers.create(
        image, entrypoint=[sys.executable, "-c", SHARING], environment=INSIDE, ipc_mode="host",
        labels={OWNER: f"{os.getpid()}-0", NAMESPACE: namespace()}, tmpfs={"/tmp": ""},
        volumes={path: {"bind": path, "mode": "ro"} for path in bound_folders()},
    )  # fmt: skip
    made.start()
    with closing(made.logs(stream=True, follow=True)) as said:
        segment = SHARED_MEMORY / next(said).decode().strip()
    assert segment.exists()
    assert engine("none").reap_orphans() == [f"container {made.name}"]
    assert not segment.exists()


@pytest.mark.slow
def test_vllm_inside(host: DockerHost, image: str, built: Callable[[Format], Path], tmp_path: Path) -> None:
    """vLLM in a container serves the nano's w8a8, and every answer is right."""
    inside = Recipe(
        image,
        "a-run",
        (),
        bound_folders(),
        ("/tmp",),
        (sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        INSIDE,
    )
    args, env = (*VLLM_ARGS, *ENGINE_ARGS["process"]), ENGINE_ENV["process"]
    real = Launch("w8a8", built(W8A8), "quantkit-w8a8", tmp_path / "boot.log", args, env)
    with closing(DockerEngine(inside, host.base_url)) as engine, serve(engine, real, Boot(W8A8)) as server:
        assert server.boot_facts.kernels == (("CPUInt8ScaledMMLinearKernel", "CompressedTensorsW8A8Int8"),)
        answer_all(server)
    assert host.client.containers.list(all=True) == []
