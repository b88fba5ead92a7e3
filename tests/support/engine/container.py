"""vLLM in a docker container, through the docker SDK, from an image pinned by digest. The engine of GPU machines.

Knows containers; knows no test and no format. Imported by `serving` and the tests that run real containers.
"""

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker import DockerClient
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.models.containers import Container as SdkContainer
from docker.types import CancellableStream, DeviceRequest

from tests.support.engine.base import Engine, EngineError, Launch, PortInUse, Running, ServerDied
from tests.support.engine.process import ENVIRONMENT, HOST, free_port
from tests.support.engine.reaping import namespace, owner_label, owner_lives, shared_memory
from tests.support.host.facts import TMPFS, nodes

PINNED = re.compile(r"^[^@\s]+@sha256:[0-9a-f]{64}$")
TAKEN = re.compile("port is already allocated|address already in use")  # by a container, or by what is none
OWNER, NAMESPACE, RUN = "quantkit.owner", "quantkit.owner.namespace", "quantkit.run"
PORT = 8000
MODEL = "/model"
# What AMD's driver needs: shared memory between processes, and system calls that the default profile refuses.
ROCM_DEVICE = "/dev/kfd"
ROCM_OPTIONS: dict[str, Any] = {"ipc_mode": "host", "security_opt": ["seccomp=unconfined"]}
SHM_SIZE = "16g"
STOP_S = 20


class NotPinned(EngineError):
    """The image is named by a tag, which may be another image tomorrow."""


class ImageMissing(EngineError):
    """The image is not on this host."""


class DeviceMissing(EngineError):
    """A device that the container needs is not on this host."""


class DockerAbsent(EngineError):
    """No docker engine answers, or none does any more."""


class DockerRefused(EngineError):
    """The docker engine answers, and does not do what it is asked."""


@contextmanager
def docker_errors() -> Iterator[None]:
    """Where docker's SDK is spoken to: its errors, and those of the connection beneath it, become ours.

    Raises
    ------
    DockerAbsent
    DockerRefused
        With what the engine says.
    """
    try:
        yield
    except APIError as refused:
        raise DockerRefused("docker engine", got=refused.explanation or refused) from None
    except (DockerException, OSError) as gone:
        raise DockerAbsent(
            "docker engine", got=gone, hint="is dockerd running, and may you use it?"
        ) from None


@dataclass(frozen=True)
class Recipe:
    """How a run's containers are made, the same for every build.

    Attributes
    ----------
    image
        ``REF@sha256:...``.
    devices
        Device paths, or names of the container device interface such as ``nvidia.com/gpu=all``.
    binds, tmpfs
        Host paths that are bound read-only at the same place inside; paths inside that are memory.
    entrypoint
        What runs inside, before vLLM's own arguments.
    """

    image: str
    run: str
    devices: tuple[str, ...]
    binds: tuple[str, ...]
    tmpfs: tuple[str, ...]
    entrypoint: tuple[str, ...]
    env: Mapping[str, str]


def require_pinned(client: DockerClient, image: str) -> None:
    """Refuse an image that is not named by digest, or not here.

    Raises
    ------
    NotPinned
        With the digest that a tag stands for now as the hint.
    ImageMissing
    """
    try:
        found = client.images.get(image)
    except ImageNotFound:
        found = None
    if not PINNED.match(image):
        digests = found.attrs.get("RepoDigests", []) if found else []
        hint = f"{image} is {digests[0]} today" if digests else "a pushed or pulled image has a digest"
        raise NotPinned("image", got=repr(image), expected="REF@sha256:DIGEST", hint=hint)
    if found is None:
        raise ImageMissing("image", got=f"no {image}", hint=f"docker pull {image}")


def device_options(devices: tuple[str, ...]) -> dict[str, Any]:
    """Options for devices: paths with the groups that own them on this host, and CDI names.

    Raises
    ------
    DeviceMissing
        For a path that is not here.
    """
    paths = [Path(name) for name in devices if name.startswith("/")]
    for path in paths:
        if not path.exists():
            raise DeviceMissing("device for the container", got=f"no {path}", hint="is the driver loaded?")
    groups = sorted({node.stat().st_gid for path in paths for node in nodes(path)})
    cdi = [name for name in devices if not name.startswith("/")]
    return {
        "devices": [f"{path}:{path}:rwm" for path in paths],
        "group_add": groups,
        "device_requests": [DeviceRequest(driver="cdi", device_ids=cdi)] if cdi else [],
        "shm_size": SHM_SIZE,  # of docker's 64 MB the engine's message queue alone asks more
        **(ROCM_OPTIONS if ROCM_DEVICE in devices else {}),
    }


class Container(Running):
    """A server in a container; its log is followed into the run while it lives."""

    def __init__(self, launch: Launch, port: int, container: SdkContainer) -> None:
        super().__init__(launch, f"http://{HOST}:{port}")
        self.port = port
        self.container = container
        stream = container.logs(stream=True, follow=True)
        self.follower = threading.Thread(target=self._follow, args=(stream,), daemon=True)
        self.follower.start()

    def _follow(self, stream: CancellableStream) -> None:
        with self.launch.log.open("wb", buffering=0) as log, closing(stream):
            for piece in stream:  # ends with the container, or with the engine
                log.write(piece)

    @docker_errors()
    def alive(self) -> None:
        try:
            self.container.reload()
            state: dict[str, Any] = self.container.attrs["State"]
        except NotFound:
            state = {"Status": "removed", "ExitCode": None}
        if state["Status"] != "running":
            self.follower.join(5)
            out_of_memory = ", out of memory" if state.get("OOMKilled") else ""
            got = f"{state['Status']}, exit code {state['ExitCode']}{out_of_memory}"
            raise ServerDied(f"container of {self.launch.name} ended", got=got, log=self.launch.log)

    @docker_errors()
    def owns_port(self) -> bool:
        self.container.reload()
        published = self.container.attrs["NetworkSettings"]["Ports"].get(f"{PORT}/tcp") or []
        return {"HostIp": HOST, "HostPort": str(self.port)} in published

    @docker_errors()
    def pids(self) -> tuple[int, ...]:
        return host_pids(self.container)

    @docker_errors()
    def stop(self) -> None:
        remove(self.container)
        self.follower.join(5)


def host_pids(container: SdkContainer) -> tuple[int, ...]:
    """Pids on this host of what runs in a container; none where it has ended."""
    try:
        table = container.top()
    except APIError:
        return ()
    column = table["Titles"].index("PID")
    return tuple(int(line[column]) for line in table["Processes"])


def remove(container: SdkContainer, grace_s: int = STOP_S) -> None:
    """Stop a container, kill it after the grace, and remove it with what it leaves in this host's shared memory.

    It may be gone already.
    """
    memory = shared_memory(host_pids(container))
    try:
        container.stop(timeout=grace_s)
        container.remove(force=True, v=True)
    except NotFound:
        return
    finally:
        for segment in memory:
            segment.remove()


class DockerEngine(Engine):
    """Starts containers of one recipe.

    Raises
    ------
    DockerAbsent
        Where no docker engine answers.
    """

    def __init__(self, recipe: Recipe, base_url: str | None = None) -> None:
        self.recipe = recipe
        self.client = connect(base_url)

    def start(self, launch: Launch) -> Container:
        port = free_port()
        launch.log.parent.mkdir(parents=True, exist_ok=True)
        return self._started(launch, port)

    @docker_errors()
    def _started(self, launch: Launch, port: int) -> Container:
        require_pinned(self.client, self.recipe.image)
        container = self.client.containers.create(**self.options(launch, port))
        try:
            container.start()
            return Container(launch, port, container)
        except APIError as refused:
            remove(container, grace_s=0)
            if TAKEN.search(str(refused)):
                raise PortInUse("port of a container", got=refused.explanation) from None
            raise

    def options(self, launch: Launch, port: int) -> dict[str, Any]:
        """Everything that a container is made with."""
        recipe = self.recipe
        where = ("--model", MODEL, "--served-model-name", launch.model)
        binds = {str(launch.checkpoint): {"bind": MODEL, "mode": "ro"}}
        binds |= {path: {"bind": path, "mode": "ro"} for path in recipe.binds}
        return {
            "image": recipe.image,
            "entrypoint": list(recipe.entrypoint),
            "command": [*where, "--host", "0.0.0.0", "--port", str(PORT), *launch.args],
            "environment": {**ENVIRONMENT, **recipe.env, **launch.env},
            "labels": {OWNER: owner_label(), NAMESPACE: namespace(), RUN: recipe.run},
            "volumes": binds,
            "tmpfs": dict.fromkeys(recipe.tmpfs, TMPFS),
            "ports": {f"{PORT}/tcp": (HOST, port)},
            **device_options(recipe.devices),
        }

    def close(self) -> None:
        self.client.close()

    @docker_errors()
    def reap_orphans(self) -> list[str]:
        here = {"label": [OWNER, f"{NAMESPACE}={namespace()}"]}
        ours = self.client.containers.list(all=True, filters=here, ignore_removed=True)
        dead = [container for container in ours if not owner_lives(container.labels[OWNER])]
        for container in dead:
            remove(container, grace_s=0)
        return [f"container {container.name}" for container in dead]


@docker_errors()
def connect(base_url: str | None = None) -> DockerClient:
    """A client of the docker engine that answers on a socket, or where the environment says."""
    return DockerClient(base_url=base_url) if base_url else DockerClient.from_env()
