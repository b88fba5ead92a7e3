"""The preflight, in both directions: a ready host passes every check, each planted fault is named by its own."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quantkit.machines import machine_named
from tests.meta import small_project
from tests.support.host.facts import FREE_FOR_RUNS_BYTES, Host, Wanted, facts_of, gate_of
from tests.support.host.preflight import GIB, Card, Device, Facts, Gate, Space, exit_status, faults, listed
from tests.support.sources.source import HubSource, HubUnreachable, SourceRefused

MACHINE = machine_named("mi300x")
GATE = Gate("", False, True, True, ("gfx90a", "gfx942"), ("gfx942",), tuple(MACHINE.kernels.values()))
READY = Facts(
    devices=(Device("/dev/kfd", 991), Device("/dev/dri/card1", 44), Device("/dev/dri/renderD128", 991)),
    archs=("gfx942",),
    spaces=(Space("checkpoints", "/data", 200 * GIB, 120 * GIB),),
    cards=(Card(192 * GIB, GIB),),
    gate=GATE,
)
# Facts that differ from a ready host's, the check that must name them, a word it must use, the exit status.
PLANTED: dict[str, tuple[dict[str, Any], str, str, int]] = {
    "docker is down": ({"docker_error": "Cannot connect to a daemon", "gate": None}, "docker", "connect", 12),
    "no docker": ({"docker_error": "docker is not installed", "gate": None}, "docker", "not installed", 11),
    "no kfd": ({"devices": (Device("/dev/kfd"), *READY.devices[1:])}, "devices", "/dev/kfd", 11),
    "closed to its group": ({"devices": (Device("/dev/kfd", 991, False),)}, "groups", "991", 11),
    "no agent": ({"archs": ()}, "agent", "no card", 11),
    "another card": ({"archs": ("gfx90a",)}, "agent", "gfx90a", 11),
    "no firmware": ({"archs": (), "firmware": ("amdgpu: load failed",)}, "firmware", "failed", 11),
    "disk full": (
        {"spaces": (Space("checkpoints", "/data", 20 * GIB, 120 * GIB),)},
        "disk",
        "20.0 GiB free",
        11,
    ),
    "disk unknown": ({"spaces": (Space("x", "/data", float("nan"), 1),)}, "disk", "nan", 11),
    "memory held": ({"cards": (Card(192 * GIB, 60 * GIB, ("pid 7",)),)}, "memory", "pid 7", 12),
    "memory unknown": ({"cards": ()}, "memory", "no card says", 11),
    "image absent": ({"image_here": False, "gate": None}, "image", "not on this host", 11),
    "image mute": ({"gate": Gate("status 127: no python3")}, "gate", "127", 11),
    "image late": ({"gate": Gate("no answer", late=True)}, "gate", "no answer", 12),
    "old transformers": ({"gate": replace(GATE, transformers=False)}, "gate", "transformers", 11),
    "old vllm": ({"gate": replace(GATE, vllm=False)}, "gate", "vllm", 11),
    "torch for others": ({"gate": replace(GATE, archs=("gfx90a",))}, "gate", "gfx90a", 11),
    "card not inside": ({"gate": replace(GATE, cards=())}, "gate", "inside", 11),
    "kernel gone": ({"gate": replace(GATE, kernels=GATE.kernels[1:])}, "gate", MACHINE.kernels["int4"], 11),
    "licence": ({"source_errors": {"licence of g/m, got not accepted": False}}, "source", "licence", 11),
    "hub is down": ({"source_errors": {"download of g/m, got ConnectError": True}}, "source", "download", 12),
}


def test_a_ready_host_has_nothing_to_fix() -> None:
    assert faults(MACHINE, MACHINE.image, READY) == ()
    assert faults(MACHINE, MACHINE.image, replace(READY, spaces=(Space("x", "/d", 2, 2),))) == ()
    assert exit_status(()) == 0


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named_alone(name: str) -> None:
    changed, check, word, status = PLANTED[name]
    found = faults(MACHINE, MACHINE.image, replace(READY, **changed))
    assert [fault.check for fault in found] == [check]
    assert word in found[0].wrong
    assert exit_status(found) == status


@pytest.mark.parametrize("image", ["", "vllm/vllm-openai-rocm:latest"])
def test_an_image_without_digest_is_refused(image: str) -> None:
    [fault] = faults(MACHINE, image, replace(READY, image_here=False, gate=None))
    assert (fault.check, exit_status([fault])) == ("image", 11)
    assert "@sha256" in fault.fix


def test_all_faults_stand_in_one_list_and_one_that_stays_decides() -> None:
    facts = replace(READY, archs=(), cards=(Card(192 * GIB, 60 * GIB),), spaces=(Space("x", "/d", 1, 2),))
    found = faults(MACHINE, MACHINE.image, facts)
    assert found[2].wrong == "card 0 has 132.0 of 192.0 GiB free"
    assert [fault.check for fault in found] == ["agent", "disk", "memory"]
    assert exit_status(found) == 11
    assert listed(MACHINE, found).startswith(
        "mi300x is not ready; 3 to fix:\n  agent: the driver offers no card"
    )


def test_the_list_says_what_to_do_where_something_can_be_done() -> None:
    errors = {"licence of g/m (accept it)": False, "download of g/m (run it again)": True}
    spaces = tuple(Space(name, "/d", 0, GIB) for name in ("checkpoints", "image"))
    facts = replace(READY, archs=(), source_errors=errors, spaces=spaces)
    found = faults(MACHINE, MACHINE.image, facts)
    assert listed(MACHINE, found).splitlines()[1:] == [
        "  agent: the driver offers no card, not gfx942 -> scripts/droplet --machine mi300x, then reboot once",
        "  disk: 0.0 GiB free in /d for the checkpoints, 1.0 needed -> free some, or name another folder "
        "with --checkpoints",
        "  disk: 0.0 GiB free in /d for the image, 1.0 needed -> free some",
        "  source: licence of g/m (accept it)",
        "  source: download of g/m (run it again)",
    ]


def test_an_nvidia_card_is_not_sent_to_amds_remedies() -> None:
    h200 = machine_named("h200")
    gate = replace(GATE, archs=("sm_90",), cards=("sm_90",))
    bare = replace(READY, archs=(), devices=(Device("nvidia.com/gpu=all"),), gate=gate)
    assert [(fault.check, fault.fix.split()[0]) for fault in faults(h200, MACHINE.image, bare)] == [
        ("devices", "nvidia-ctk"),
        ("agent", "install"),
    ]


def test_a_cpu_machine_needs_no_card() -> None:
    gate = replace(GATE, archs=("cpu",), cards=())
    cpu = replace(MACHINE, arch="cpu")
    assert faults(cpu, MACHINE.image, replace(READY, archs=(), cards=(), devices=(), gate=gate)) == ()
    assert [fault.check for fault in faults(cpu, MACHINE.image, replace(READY, archs=()))] == ["gate"]


class FakeHost(Host):
    """A host whose every answer is told to it."""

    def __init__(self, facts: Facts = READY, hub: int | Exception = 10 * GIB, free: int = 500 * GIB) -> None:
        super().__init__(MACHINE, MACHINE.image)
        self.facts, self.hub, self.free = facts, hub, free

    def docker_error(self) -> str:
        return self.facts.docker_error

    def devices(self) -> list[Device]:
        return list(self.facts.devices)

    def archs(self) -> list[str]:
        return list(self.facts.archs)

    def firmware(self) -> list[str]:
        return list(self.facts.firmware)

    def cards(self) -> list[Card]:
        return list(self.facts.cards)

    def free_bytes(self, folder: Path) -> int:
        return self.free

    def image_here(self) -> bool:
        return self.facts.image_here

    def store(self) -> Path:
        return Path("/store")

    def gate(self) -> Gate:
        assert self.facts.gate is not None, "asked an image that is not there"
        return self.facts.gate

    def source_bytes(self, source: HubSource) -> int:
        if isinstance(self.hub, Exception):
            raise self.hub
        return self.hub


HUB = HubSource("google/x", "main", Path("/nowhere"))


@pytest.mark.parametrize(
    ("fake", "downloads", "checks"),
    [
        (FakeHost(), (), []),
        (FakeHost(), (HUB,), []),
        (
            FakeHost(free=111 * GIB),
            (HUB,),
            ["disk"],
        ),  # 10 to download, ten builds of at most 10, and room for runs
        (FakeHost(free=111 * GIB), (), []),
        (FakeHost(hub=SourceRefused("licence of google/x")), (HUB,), ["source"]),
        (FakeHost(hub=HubUnreachable("download of google/x")), (HUB,), ["source"]),
        (FakeHost(replace(READY, docker_error="no daemon", gate=None), free=59 * GIB), (), ["docker"]),
        (FakeHost(replace(READY, archs=(), firmware=("failed",))), (), ["firmware"]),
        (FakeHost(replace(READY, image_here=False, gate=None)), (), ["image"]),
        (FakeHost(replace(READY, image_here=False, gate=None), free=59 * GIB), (), ["disk", "image"]),
        (FakeHost(free=59 * GIB), (), []),  # the image is there, and needs no room
    ],
)
def test_the_facts_of_a_host_reach_the_checks(
    fake: FakeHost, downloads: tuple[HubSource, ...], checks: Iterable[str]
) -> None:
    facts = facts_of(fake, Wanted(Path("/data"), 10, 0, downloads))
    assert [fault.check for fault in faults(MACHINE, MACHINE.image, facts)] == checks


def test_an_image_without_digest_is_not_looked_for() -> None:
    fake = FakeHost(replace(READY, gate=None))
    fake.image = "vllm/vllm-openai-rocm:latest"
    facts = facts_of(fake, Wanted(Path("/data"), 0, 0))
    assert [space.purpose for space in facts.spaces] == ["checkpoints"]


def test_a_source_that_is_here_says_how_large_a_build_may_be() -> None:
    wanted = Wanted(Path("/data"), 3, 10 * GIB)
    assert facts_of(FakeHost(), wanted).spaces[0].needed_bytes == 3 * 10 * GIB + FREE_FOR_RUNS_BYTES


def test_only_a_hub_that_is_down_may_come_back() -> None:
    for error in (SourceRefused("licence of google/x"), HubUnreachable("download of google/x")):
        facts = facts_of(FakeHost(hub=error), Wanted(Path("/data"), 10, 0, (HUB,)))
        assert facts.source_errors == {str(error): isinstance(error, HubUnreachable)}


@pytest.mark.parametrize(
    ("status", "out", "err", "error"),
    [
        (
            0,
            'noise\n{"transformers": true, "vllm": true, "archs": ["cpu"], "cards": [], "kernels": []}\n',
            "",
            "",
        ),
        (0, "", "", "status 0: nothing"),
        (127, "", "exec: python3: not found\n", "status 127: exec: python3: not found"),
        (
            127,
            "",
            "docker: no such file\n\nRun 'docker run --help' for more information\n",
            "docker: no such file",
        ),
        (0, '{"transformers": true}\n', "half\n", "status 0: half"),
        (0, "no JSON\n", "", "status 0: nothing"),
        (0, "3\n", "", "status 0: nothing"),
    ],
)
def test_the_images_answer_is_read_or_refused(status: int, out: str, err: str, error: str) -> None:
    gate = gate_of(status, out, err)
    assert error in gate.error
    assert bool(gate.error) == bool(error)


FAKE = """
from dataclasses import replace
from tests.support.plugins import starting
from tests.support.host.facts import Host
from tests.support.host.preflight import Gate

class Fake(Host):
    def docker_error(self): return {docker!r}
    def image_here(self): return True
    def gate(self): return Gate("", False, {transformers}, True, ("cpu",))

def pytest_configure(config):
    config.stash[starting.HOST] = Fake
"""


def project(folder: Path, docker: str = "", transformers: bool = True) -> Path:
    made = small_project.make(folder, plugin=FAKE.format(docker=docker, transformers=transformers))
    small_project.describe(made, "boxed", engine="docker", image="made/up@sha256:00")
    return made


@pytest.mark.parametrize(
    ("faulty", "status", "says"),
    [
        ({}, 0, "preflight: boxed is ready"),
        ({"transformers": False}, 11, "1 to fix:\n  gate: the image's transformers does not know Gemma 4"),
        ({"docker": "no daemon"}, 12, "1 to fix:\n  docker: no daemon"),
    ],
)
def test_a_run_starts_only_on_a_ready_host(
    tmp_path: Path, faulty: dict[str, object], status: int, says: str
) -> None:
    made = project(tmp_path, **faulty)  # type: ignore[arg-type]
    got, output = small_project.run(made, "--machines", "more.toml", "-m", "boxed", "--builds", "bf16")
    assert got == status, output
    assert says in output.replace("\r", "")
    assert ("6 passed" in output) == (status == 0)
    assert output.rstrip().endswith("boxed bills $1.00 an hour until it is destroyed")


def test_workers_wait_for_the_preflight(tmp_path: Path) -> None:
    made = project(tmp_path, docker="no daemon")
    got, output = small_project.run(
        made, "--machines", "more.toml", "-m", "boxed", "--builds", "bf16", "-n", "2"
    )
    assert got == 12
    assert "passed" not in output


def test_a_process_engine_needs_no_preflight(tmp_path: Path) -> None:
    made = project(tmp_path, docker="no daemon")
    got, output = small_project.run(made, "--builds", "bf16")
    assert got == 0, output
    assert "preflight" not in output
