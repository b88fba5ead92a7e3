"""A docker engine and a registry of our own for tests: started, and gone when the test ends. Needs root.

Images cannot be pulled here, so the image is an empty one, and the host's folders are bound into its containers.
Knows no vllm. Imported by the tests that run real containers.
"""

import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker import DockerClient

from tests.support.engine.container import DockerAbsent, connect
from tests.support.engine.process import HOST, free_port
from tests.support.engine.reaping import new_scratch

ROOT = Path(__file__).parents[3]
START_S = 60.0
STOP_S = "20"
REPOSITORY = "quantkit/host-root"
HOST_FOLDERS = ("/usr", "/lib", "/lib64", "/bin", "/etc")  # not /sbin, where docker puts the init of --init
REGISTRY = """
version: 0.1
storage:
  filesystem: {{rootdirectory: {folder}}}
http: {{addr: "{address}"}}
"""


@dataclass(frozen=True)
class DockerHost:
    """Our docker engine: its socket, a client, and the address of our registry."""

    base_url: str
    client: DockerClient
    registry: str


def bound_folders() -> tuple[str, ...]:
    """Host folders that make this interpreter, with all it imports from, run inside an empty image."""
    imported = [sys.prefix, sys.base_prefix, str(ROOT), *(path for path in sys.path if path)]
    wanted = {Path(path).resolve() for path in (*HOST_FOLDERS, *imported)}
    system = [path for path in HOST_FOLDERS if Path(path).exists()]
    inside = [path for path in wanted if path.is_dir() and not wanted & set(path.parents)]
    return (*system, *sorted({str(path) for path in inside} - set(system)))


def _guarded(command: list[str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.engine.guardian", str(new_scratch()), STOP_S, *command],
            stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True,
        )  # fmt: skip


def _stop(guardian: "subprocess.Popen[bytes]") -> None:
    assert guardian.stdin is not None
    guardian.stdin.close()
    guardian.wait()


def _answers(path: str) -> bool:
    """Whether an engine serves the socket: it is there, and accepts, a moment before."""
    with closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.settimeout(5)
        try:
            probe.connect(path)
            probe.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in probe.recv(64)
        except OSError:
            return False


def _connect(base_url: str, guardian: "subprocess.Popen[bytes]", log: Path) -> DockerClient:
    deadline = time.monotonic() + START_S
    while guardian.poll() is None and time.monotonic() < deadline:
        if _answers(base_url.removeprefix("unix://")):
            return connect(base_url)
        time.sleep(0.1)
    raise DockerAbsent("our docker engine", got=log.read_text()[-500:])


@contextmanager
def docker_host(folder: Path) -> Iterator[DockerHost]:
    """A docker engine and a registry whose files lie in a folder, for as long as the context lasts."""
    had_bridge = Path("/sys/class/net/docker0").exists()
    base_url, address = f"unix://{folder}/docker.sock", f"{HOST}:{free_port()}"
    config = folder / "registry.yml"
    config.write_text(REGISTRY.format(folder=folder / "registry", address=address))
    data = ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"]
    engine = _guarded(["dockerd", "-H", base_url, *data, "--iptables=false"], folder / "dockerd.log")
    registry = _guarded(["docker-registry", "serve", str(config)], folder / "registry.log")
    try:
        client = _connect(base_url, engine, folder / "dockerd.log")
        yield DockerHost(base_url, client, address)
        client.close()
    finally:
        _stop(registry)
        _stop(engine)
        if not had_bridge:
            subprocess.run(["ip", "link", "delete", "docker0"], check=False, capture_output=True)
        # An engine that is ended before it is up leaves the mount it makes of its own folder.
        subprocess.run(["umount", str(folder / "data")], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def empty_image(host: DockerHost, tag: str = "test") -> str:
    """An image with only the mount points of the bound folders, pushed to our registry: ``REF@sha256:...``."""
    name = f"{host.registry}/{REPOSITORY}"
    host.client.api.import_image_from_data(_mount_points(), repository=name, tag=tag)
    for step in host.client.images.push(name, tag=tag, stream=True, decode=True):
        if "error" in step:
            raise DockerAbsent("push to our registry", got=step["error"])
    digests: list[Any] = host.client.images.get(f"{name}:{tag}").attrs["RepoDigests"]
    return str(digests[0])


def _mount_points() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in (*bound_folders(), "/tmp"):
            entry = tarfile.TarInfo(path.lstrip(os.sep))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
    return packed.getvalue()
