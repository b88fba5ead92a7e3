"""Asks a host what the preflight judges: docker, device nodes, firmware, memory, disk, the image, the hub.

Every answer is a plain value and every question a method of `Host`, so that tests stand a fake in its place.
Judges nothing; imported by `starting`.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from quantkit.errors import QuantkitError
from quantkit.machines import Machine
from tests.support.host.machine import Probe, gpus
from tests.support.host.preflight import GIB, NO_DOCKER, Card, Device, Facts, Gate, Space
from tests.support.sources.source import HubSource, HubUnreachable

DRM = Path("/sys/class/drm")
KFD_HOLDERS = Path("/sys/class/kfd/kfd/proc")
CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
SCRIPT = Path(__file__).with_name("inside") / "image_facts.py"
FAMILY, ARCHITECTURE = "gemma4", "Gemma4ForCausalLM"
# Torch loads what it has compiled into a folder of temporary files, which docker alone forbids.
TMPFS = "exec"
ADVICE = ("Run 'docker ", "See 'docker ")
# Every question has its deadline, and those that wait for each other (is docker there, is the image, what does it
# hold, away with it) have less than a minute together.
ASKED_S, GATE_S = 8.0, 35.0
NVIDIA_MEMORY = ("nvidia-smi", "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits")
FREE_FOR_RUNS_BYTES = 2 * GIB  # logs, records and containers' own layers
IMAGE_BYTES = 60 * GIB  # assumed of an image that is not here yet, as scripts/droplet does


def said(command: Iterable[str]) -> list[str]:
    """The lines a command prints; none where it is absent or fails."""
    try:
        done = subprocess.run(tuple(command), capture_output=True, text=True, timeout=ASKED_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()


def last_line(text: str) -> str:
    """The last line of what a command said, but for docker's advice after an error, or ``nothing``."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(ADVICE)]
    return (lines or ["nothing"])[-1].strip()


def nodes(path: Path) -> list[Path]:
    """The device nodes that a path of a machine's record stands for: itself, or the cards in a folder."""
    if not path.is_dir():
        return [path]
    return sorted(node for node in path.iterdir() if node.name.startswith(("card", "renderD")))


def nearest(folder: Path) -> Path:
    """The folder itself, or the closest one above it that exists."""
    return folder if folder.exists() else nearest(folder.parent)


def container_arguments(machine: Machine) -> list[str]:
    """What ``docker run`` is told of a machine: devices, the groups that own them here, and what its record adds."""
    paths = [path for path in map(Path, machine.devices) if path.exists()]
    groups = {node.stat().st_gid for path in paths for node in nodes(path)}
    inside = machine.container
    options = {
        "--device": machine.devices,
        "--group-add": map(str, groups),
        "--volume": (f"{path}:{path}:ro" for path in inside.binds),
        "--tmpfs": (f"{path}:{TMPFS}" for path in inside.tmpfs),
        "--env": (f"{name}={value}" for name, value in inside.env.items()),
        "--entrypoint": (inside.python,),
    }
    return [
        argument for option, values in options.items() for value in values for argument in (option, value)
    ]


class Host:
    """The host of one run.

    Parameters
    ----------
    machine, image
        What it should be, and the image it should have.
    """

    def __init__(self, machine: Machine, image: str) -> None:
        self.machine = machine
        self.image = image

    def docker_error(self) -> str:
        """Why the docker engine does not answer; empty when it does."""
        command = ["docker", "version", "--format", "{{.Server.Version}}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=ASKED_S, check=False)
        except FileNotFoundError:
            return NO_DOCKER
        except subprocess.TimeoutExpired:
            return f"the docker engine did not answer within {ASKED_S:.0f} s"
        return last_line(done.stderr) if done.returncode else ""

    def devices(self) -> list[Device]:
        """The device nodes of the machine's record; a name such as nvidia.com/gpu=all is looked up in CDI."""
        found = []
        for name in self.machine.devices:
            if not name.startswith("/"):
                found.append(Device(name, 0 if self._in_cdi(name.partition("=")[0]) else None))
                continue
            there = [node for node in nodes(Path(name)) if node.exists()]
            found += [self._device(node) for node in there] or [Device(name)]
        return found

    @staticmethod
    def _in_cdi(kind: str) -> bool:
        specs = [spec for folder in CDI_FOLDERS if folder.is_dir() for spec in folder.iterdir()]
        return any(kind in spec.read_text(errors="replace") for spec in specs if spec.is_file())

    @staticmethod
    def _device(node: Path) -> Device:
        status = node.stat()
        return Device(str(node), status.st_gid, status.st_mode & 0o060 == 0o060)

    def archs(self) -> list[str]:
        """Architectures of the cards that the drivers offer."""
        return [gpu.arch for gpu in gpus(Probe())]

    def firmware(self) -> list[str]:
        """What the kernel's log says of firmware that the card's driver did not find."""
        return [
            line.strip()
            for line in said(["dmesg"])
            if "amdgpu" in line and "irmware" in line and "fail" in line
        ]

    def cards(self) -> list[Card]:
        """Memory of each card, AMD's from sysfs, NVIDIA's from nvidia-smi."""
        holders = tuple(f"pid {path.name}" for path in KFD_HOLDERS.glob("[0-9]*"))
        found = []
        for total in sorted(DRM.glob("card*/device/mem_info_vram_total")):
            used = total.with_name("mem_info_vram_used")
            found.append(Card(int(total.read_text()), int(used.read_text()), holders))
        for line in said(NVIDIA_MEMORY):
            total_mib, used_mib = (int(field) for field in line.split(","))
            found.append(Card(total_mib << 20, used_mib << 20))
        return found

    def free_bytes(self, folder: Path) -> int:
        """Room on the disk that a folder is on, or will be."""
        return shutil.disk_usage(nearest(folder)).free

    def image_here(self) -> bool:
        """Whether the image is on this host, under its digest."""
        return bool(said(["docker", "image", "inspect", "--format", "{{.Id}}", self.image]))

    def store(self) -> Path:
        """The folder that docker keeps its images in."""
        return Path((said(["docker", "info", "--format", "{{.DockerRootDir}}"]) or ["/var/lib/docker"])[0])

    def gate(self) -> Gate:
        """Run the script of `inside` in the image, with the card's devices, and read what it says."""
        name = f"quantkit-gate-{os.getpid()}"
        options = ["--rm", "--name", name, "--network", "none", *container_arguments(self.machine)]
        wanted = (FAMILY, ARCHITECTURE, *self.machine.kernels.values())
        command = ["docker", "run", *options, self.image, "-W", "ignore", "-c", SCRIPT.read_text(), *wanted]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=GATE_S, check=False)
        except subprocess.TimeoutExpired:
            said(["docker", "rm", "--force", name])
            return Gate(error=f"the image did not answer within {GATE_S:.0f} s", late=True)
        return gate_of(done.returncode, done.stdout, done.stderr)

    def source_bytes(self, source: HubSource) -> int:
        """Size of a repository's files.

        Raises
        ------
        SourceRefused, HubUnreachable
            Where it cannot be had, for good or for now.
        """
        from tests.support.sources.hub import look_up  # needs huggingface_hub, which local sources do not

        return look_up(source).size_bytes


def gate_of(status: int, out: str, err: str) -> Gate:
    """The answer of the script in the image; what else it printed before is passed over."""
    try:
        said = json.loads(out.strip().splitlines()[-1])
        lists = (tuple(said[name]) for name in ("archs", "cards", "kernels"))
        return Gate("", False, said["transformers"], said["vllm"], *lists)
    except (IndexError, ValueError, KeyError, TypeError):
        return Gate(error=f"the image answered status {status}: {last_line(err)}")


@dataclass(frozen=True)
class Wanted:
    """What a run will put on the disk: sources to download, and builds that are not there yet.

    Attributes
    ----------
    source_bytes
        Size of the source that is here already; no build is larger than its source.
    """

    checkpoints: Path
    builds: int
    source_bytes: int
    downloads: tuple[HubSource, ...] = ()


def _space(host: Host, wanted: Wanted, sizes: Sequence[int]) -> Space:
    largest = max(wanted.source_bytes, *sizes, 0)
    needed = sum(sizes) + wanted.builds * largest + FREE_FOR_RUNS_BYTES
    return Space("checkpoints", str(wanted.checkpoints), host.free_bytes(wanted.checkpoints), needed)


def _size(host: Host, source: HubSource) -> int | QuantkitError:
    try:
        return host.source_bytes(source)
    except QuantkitError as why:
        return why


def _docker(host: Host, devices: Iterable[Device]) -> dict[str, Any]:
    """What needs docker; an image is asked where it is here, and not where a device that it needs is known to lack."""
    error = host.docker_error()
    wanted = not error and "@sha256:" in host.image
    image_here = wanted and host.image_here()
    whole = all(device.gid is not None for device in devices)
    gate = host.gate() if image_here and whole else None
    spaces = [_image_space(host)] if wanted and not image_here else []
    return {"docker_error": error, "image_here": image_here, "gate": gate, "spaces": spaces}


def _image_space(host: Host) -> Space:
    store = host.store()
    return Space("image", str(store), host.free_bytes(store), IMAGE_BYTES)


def facts_of(host: Host, wanted: Wanted) -> Facts:
    """All facts of a host; docker, the hub and the driver are asked at once, for each may keep us waiting."""
    devices = tuple(host.devices())
    with ThreadPoolExecutor() as pool:
        docker = pool.submit(_docker, host, devices)
        firmware, cards = pool.submit(host.firmware), pool.submit(host.cards)
        sizes = list(pool.map(partial(_size, host), wanted.downloads))
    errors = [size for size in sizes if isinstance(size, QuantkitError)]
    checkpoints = _space(host, wanted, [size for size in sizes if isinstance(size, int)])
    asked = docker.result()
    return Facts(
        devices=devices,
        archs=tuple(host.archs()),
        firmware=tuple(firmware.result()),
        spaces=(checkpoints, *asked.pop("spaces")),
        cards=tuple(cards.result()),
        source_errors={str(why): isinstance(why, HubUnreachable) for why in errors},
        **asked,
    )
