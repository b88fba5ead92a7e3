"""The docker engine on a tiny docker engine: what it is asked, and what is said when it refuses, or is gone.

No docker is needed; `test_serve_docker` runs the same for real.
"""

import gc
import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quantkit.machines import machine_named
from tests.nano import NANO
from tests.support.engine import container
from tests.support.engine.base import Launch, PortInUse, ServerDied
from tests.support.engine.container import (
    NAMESPACE,
    OWNER,
    RUN,
    Container,
    DockerAbsent,
    DockerEngine,
    DockerRefused,
    ImageMissing,
    NotPinned,
    Recipe,
    device_options,
)
from tests.support.engine.process import SERVER, free_port
from tests.support.engine.reaping import namespace, owner_label
from tests.support.miniatures.docker_daemon import SAID, Daemon, daemon
from tests.support.plugins.serving import engine_for
from tests.support.settings import Settings

PINNED = "REF@sha256:" + 64 * "0"
RECIPE = Recipe(PINNED, "a-run", (), ("/opt",), ("/tmp",), ("serve",), {"HOME": "/tmp", "A": "recipe"})


@pytest.fixture
def docker() -> Iterator[Daemon]:
    """A tiny engine."""
    with daemon() as ours:
        yield ours


@pytest.fixture
def engine(docker: Daemon) -> Iterator[DockerEngine]:
    """The engine under test, on it."""
    with closing(DockerEngine(RECIPE, docker.url)) as engine:
        yield engine


@pytest.fixture
def started(engine: DockerEngine, tmp_path: Path) -> Container:
    """A container of it."""
    launch = Launch("fp8", NANO, "quantkit-fp8", tmp_path / "run" / "boot.log", ("--x",), {"A": "launch"})
    launch.log.parent.mkdir()
    launch.log.write_text("of an earlier start")
    return engine.start(launch)


def made(docker: Daemon) -> dict[str, Any]:
    """What the container was made with."""
    (body,) = (body for _, path, _, body in docker.asked if path == "/containers/create")
    return cast(dict[str, Any], body)


def test_a_container_is_made_as_asked(docker: Daemon, started: Container) -> None:
    """Read-only, on this host alone, labelled, never restarted."""
    body, host = made(docker), made(docker)["HostConfig"]
    assert (body["Image"], body["Entrypoint"]) == (PINNED, ["serve"])
    command = "--model /model --served-model-name quantkit-fp8 --host 0.0.0.0 --port 8000 --x"
    assert body["Cmd"] == command.split()
    assert {"HF_HUB_OFFLINE=1", "HOME=/tmp", "A=launch"} <= set(body["Env"])
    assert body["Labels"] == {OWNER: owner_label(), NAMESPACE: namespace(), RUN: "a-run"}
    assert host["Binds"] == [f"{NANO}:/model:ro", "/opt:/opt:ro"]
    assert host["Tmpfs"] == {"/tmp": "exec"}
    assert host["PortBindings"] == {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(started.port)}]}
    assert "RestartPolicy" not in host
    assert host["ShmSize"] == 16 << 30


def test_its_log_and_processes_are_ours_to_read(docker: Daemon, started: Container) -> None:
    started.follower.join(30)
    assert started.launch.log.read_bytes() == SAID
    assert started.pids() == (77,)
    started.alive()


def test_a_port_is_ours_where_docker_published_it_for_us(docker: Daemon, started: Container) -> None:
    assert docker.container is not None
    assert not started.owns_port()
    for address, ours in (("0.0.0.0", False), ("127.0.0.1", True)):
        published = [{"HostIp": address, "HostPort": str(started.port)}]
        docker.container["NetworkSettings"]["Ports"] = {"8000/tcp": published}
        assert started.owns_port() == ours


ENDS: dict[str, tuple[dict[str, Any] | None, str]] = {
    "exited": ({"Status": "exited", "ExitCode": 3}, "got exited, exit code 3\n"),
    "killed for memory": ({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, "137, out of memory\n"),
    "removed": (None, "got removed, exit code None\n"),
}


@pytest.mark.parametrize(("state", "words"), ENDS.values(), ids=ENDS)
def test_a_container_that_ended(
    docker: Daemon, started: Container, state: dict[str, Any] | None, words: str
) -> None:
    """Ended in whatever way it is one error, with its log; and is removed, where it is still there."""
    docker.container = state and {**cast(Any, docker.container), "State": state}
    with pytest.raises(ServerDied) as caught:
        started.alive()
    assert words in str(caught.value)
    assert SAID.decode().strip() in str(caught.value)
    started.stop()


def test_it_is_stopped_and_then_removed_with_its_volumes(docker: Daemon, started: Container) -> None:
    started.stop()
    assert started.launch.log.read_bytes() == SAID
    stop, remove = [(method, path, query) for method, path, query, _ in docker.asked][-2:]
    assert stop == ("POST", "/containers/c/stop", {"t": ["20"]})
    assert remove[:2] == ("DELETE", "/containers/c")
    assert (remove[2]["force"], remove[2]["v"]) == (["True"], ["True"])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("Bind for 127.0.0.1:1 failed: port is already allocated", PortInUse),
        ("failed to listen on TCP socket: address already in use", PortInUse),
        ("failed to create task: no such file", DockerRefused),
    ],
)
def test_a_container_that_cannot_start_is_removed(
    docker: Daemon, engine: DockerEngine, tmp_path: Path, words: str, error: type[Exception]
) -> None:
    docker.refuses = {"/start": words}
    with pytest.raises(error, match=words):
        engine.start(Launch("fp8", NANO, "quantkit-fp8", tmp_path / "a" / "b" / "boot.log"))
    assert docker.asked[-1][:2] == ("DELETE", "/containers/c")


Ask = Callable[[DockerEngine, Container], object]
ASKED: dict[str, Ask] = {
    "start": lambda engine, server: engine.start(server.launch),
    "alive": lambda _, server: server.alive(),
    "port": lambda _, server: server.owns_port(),
    "stop": lambda _, server: server.stop(),
    "reap": lambda engine, _: engine.reap_orphans(),
}
PIDS: Ask = lambda _, server: server.pids()  # noqa: E731


@pytest.mark.parametrize("ask", [*ASKED.values(), PIDS], ids=[*ASKED, "pids"])
def test_an_engine_that_dies_in_the_middle_is_one_sentence(
    docker: Daemon, engine: DockerEngine, started: Container, ask: Ask
) -> None:
    docker.leave()
    with pytest.raises(DockerAbsent, match=r"docker engine, got .*refused.*\(is dockerd running"):
        ask(engine, started)


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_an_engine_that_answers_errors_is_one_sentence(
    docker: Daemon, engine: DockerEngine, started: Container, ask: Ask
) -> None:
    docker.refuses = {"": "no space left on device"}
    with pytest.raises(DockerRefused, match=r"docker engine, got no space left on device$"):
        ask(engine, started)


def test_no_engine(docker: Daemon) -> None:
    with pytest.raises(DockerAbsent, match="is dockerd running"):
        DockerEngine(RECIPE, f"tcp://127.0.0.1:{free_port()}")
    docker.refuses = {"": "starting"}
    with pytest.raises(DockerAbsent, match="starting"):
        DockerEngine(RECIPE, docker.url)


@pytest.mark.parametrize(
    ("image", "here", "error", "words"),
    [
        ("REF:latest", True, NotPinned, f"REF:latest is {PINNED} today"),
        ("REF:latest", False, NotPinned, "a pushed or pulled image has a digest"),
        (f"{PINNED}0", True, NotPinned, "expected REF@sha256:DIGEST"),
        (PINNED, False, ImageMissing, f"docker pull {PINNED}"),
    ],
)
def test_only_a_pinned_image_that_is_here_is_served(
    docker: Daemon, tmp_path: Path, image: str, here: bool, error: type[Exception], words: str
) -> None:
    docker.image = docker.image if here else None
    recipe = Recipe(image, "a-run", (), (), (), (), {})
    with closing(DockerEngine(recipe, docker.url)) as engine, pytest.raises(error) as caught:
        engine.start(Launch("fp8", NANO, "quantkit-fp8", tmp_path / "boot.log"))
    assert words in str(caught.value)
    assert not [path for _, path, _, _ in docker.asked if "/containers/" in path]


@pytest.mark.parametrize(
    ("owner", "reaped"), [(f"{os.getpid()}-0", True), (owner_label(), False)], ids=["dead", "alive"]
)
def test_only_a_dead_runs_container_is_reaped(
    docker: Daemon, engine: DockerEngine, owner: str, reaped: bool
) -> None:
    """One that has stopped is asked for too; one whose owner is a pid of another namespace is not."""
    assert docker.container is not None
    docker.container["Config"]["Labels"] = {OWNER: owner}
    assert engine.reap_orphans() == (["container a-container"] if reaped else [])
    (listed,) = (query for _, path, query, _ in docker.asked if path == "/containers/json")
    assert listed["all"] == ["1"]
    assert json.loads(listed["filters"][0]) == {"label": [OWNER, f"{NAMESPACE}={namespace()}"]}
    stopped = [query["t"] for _, path, query, _ in docker.asked if path.endswith("/stop")]
    assert stopped == ([["0"]] if reaped else [])
    assert ("DELETE" in {method for method, *_ in docker.asked}) == reaped


def test_no_socket(tmp_path: Path) -> None:
    """Docker's SDK leaves the socket open on which it found nobody: that alone fails no test."""
    with pytest.raises(DockerAbsent, match="is dockerd running"):
        DockerEngine(RECIPE, f"unix://{tmp_path}/docker.sock")
    gc.collect()


def test_its_connection_is_let_go(docker: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[object] = []
    monkeypatch.setattr("docker.DockerClient.close", lambda client: closed.append(client))
    engine = DockerEngine(RECIPE, docker.url)
    engine.close()
    assert closed == [engine.client]


def test_cards_of_amd_need_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ipc_mode" not in device_options(("/dev/null",))
    monkeypatch.setattr(container, "ROCM_DEVICE", "/dev/null")
    options = device_options(("/dev/null",))
    assert (options["ipc_mode"], options["security_opt"]) == ("host", ["seccomp=unconfined"])


def test_a_machines_record_says_how_its_containers_are_made(
    docker: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker.url)
    mi300x = machine_named("mi300x")
    machine = replace(mi300x, container=replace(mi300x.container, python="/opt/python"))
    settings = SimpleNamespace(machine=machine, image=PINNED, run=Path("/runs/mine"))
    with closing(cast(DockerEngine, engine_for(cast(Settings, settings)))) as engine:
        inside = machine.container
        entrypoint = (inside.python, *SERVER)
        assert engine.recipe == Recipe(
            PINNED, "mine", machine.devices, inside.binds, inside.tmpfs, entrypoint, inside.env
        )
