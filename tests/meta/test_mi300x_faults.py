"""`pytest -m mi300x` on a machine that pretends, with faults of its host planted: one list, and a status.

Docker, device nodes, disk, image and hub are real; only what a card alone can say comes from commands of our own.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.meta.pretended import Pretended, pretended
from tests.support.host.facts import IMAGE_BYTES

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.xdist_group("docker")]
NO_FIRMWARE = (
    "[    4.2] amdgpu 0000:83:00.0: Direct firmware load for amdgpu/gc_9_4_3_rlc.bin failed with error -2"
)
HELD = 'case "$1" in *memory.used*) echo "196608, 120000" ;; esac'
Changes = dict[str, Any]  # of the record, and what pytest is told: args, env
Plant = Callable[[Pretended, Path], AbstractContextManager[Changes]]


def command(name: str, script: str, **changes: Any) -> Plant:
    """A command of our own, before all others."""

    @contextmanager
    def plant(machine: Pretended, folder: Path) -> Iterator[Changes]:
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
        yield {"before_path": str(folder), **changes}

    return plant


def told(**changes: Any) -> Plant:
    """Something else in the record or in the environment."""

    @contextmanager
    def plant(machine: Pretended, folder: Path) -> Iterator[Changes]:
        yield changes

    return plant


@contextmanager
def node_gone(machine: Pretended, folder: Path) -> Iterator[Changes]:
    kfd = machine.node("kfd")
    kfd.rename(kfd.with_name("away"))
    yield {}
    kfd.with_name("away").rename(kfd)


@contextmanager
def node_closed(machine: Pretended, folder: Path) -> Iterator[Changes]:
    machine.node("dri/renderD128").chmod(0o600)
    yield {}
    machine.node("dri/renderD128").chmod(0o660)


@contextmanager
def small_disk(machine: Pretended, folder: Path) -> Iterator[Changes]:
    disk = folder.with_name("small")
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk], check=True)
    yield {"args": ("--checkpoints", str(disk))}
    subprocess.run(["umount", disk], check=True)


def hub_says(mood: str) -> Plant:
    """A hub that refuses everything."""

    @contextmanager
    def plant(machine: Pretended, folder: Path) -> Iterator[Changes]:
        machine.hub.refuse = mood
        yield {}
        machine.hub.refuse = ""

    return plant


NO_AGENT = told(arch="gfx942")
# An image that is not here needs room, which this host may really lack where docker keeps its own in the tests.
NO_ROOM = ["disk"] if shutil.disk_usage(tempfile.gettempdir()).free < IMAGE_BYTES else []
# What is planted -> the checks of the list, a word of it, the exit status. Where the record asks for gfx942, the
# image, whose torch is a CPU's, is at fault too.
FAULTS: dict[str, tuple[Plant, list[str], str, int]] = {
    "docker is down": (told(env={"DOCKER_HOST": "unix:///nowhere.sock"}), ["docker"], "/nowhere.sock", 12),
    "no kfd": (node_gone, ["devices"], "dev/kfd is not there", 11),
    "closed to its group": (node_closed, ["groups"], "group 991 may not open", 11),
    "no agent": (NO_AGENT, ["agent", "gate"], "the driver offers no card, not gfx942", 11),
    "no firmware": (
        command("dmesg", f"echo '{NO_FIRMWARE}'", arch="gfx942"),
        ["firmware", "gate"],
        "gc_9_4_3_rlc.bin failed",
        11,
    ),
    "a short disk": (small_disk, ["disk"], "0.1 GiB free", 11),
    "memory held": (command("nvidia-smi", HELD), ["memory"], "card 0 has 74.8 of 192.0 GiB free", 12),
    "no such image": (told(image="made/up@sha256:" + "0" * 64), [*NO_ROOM, "image"], "is not on this host", 11),
    "a kernel that is gone": (told(kernels={"int8": "GoneKernel"}), ["gate"], "the image lacks GoneKernel", 11),
    "licence not accepted": (hub_says("gated"), ["source"], "open https://huggingface.co/made/up", 11),
    "the hub is down": (hub_says("down"), ["source"], "download of made/up", 12),
}  # fmt: skip


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pretended]:
    """A host that is ready but for what is planted."""
    with pretended(tmp_path_factory.mktemp("mi300x")) as made:
        yield made


def run(machine: Pretended, folder: Path, *plants: Plant) -> tuple[int, list[str], str]:
    """Exit status, the checks of the list, and the whole output."""
    with ExitStack() as stack:
        changes: Changes = {}
        for plant in plants:
            changes |= stack.enter_context(plant(machine, folder / "bin"))
        env = dict(changes.pop("env", {}))
        if before := changes.pop("before_path", ""):
            env["PATH"] = f"{before}:{os.environ['PATH']}"
        args = changes.pop("args", ())
        status, output = machine.pytest("tests/quant", "--builds", "bf16", *args, env=env, **changes)
    text = output.partition("mi300x is not ready")[2]
    return status, re.findall(r"^  (\w+): .", text, re.MULTILINE), output


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_before_anything_runs(machine: Pretended, tmp_path: Path, name: str) -> None:
    plant, checks, word, status = FAULTS[name]
    got, named, output = run(machine, tmp_path, plant)
    assert (got, named) == (status, checks), output
    assert f"{len(checks)} to fix:" in output
    assert word in output
    assert " passed" not in output
    assert not machine.run.exists()
    assert output.rstrip().endswith("mi300x bills $1.99 an hour until it is destroyed")
    assert machine.host.client.containers.list(all=True) == []


def test_all_that_is_wrong_stands_in_one_list(machine: Pretended, tmp_path: Path) -> None:
    plants = (node_gone, NO_AGENT, small_disk, command("nvidia-smi", HELD), hub_says("gated"))
    status, named, output = run(machine, tmp_path, *plants)
    assert (status, named) == (11, ["devices", "agent", "disk", "memory", "source"]), output
