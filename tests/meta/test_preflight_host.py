"""What a host is asked before a run: commands that answer, refuse, or say nothing for ever, and sysfs as AMD has it.

The commands are fakes on a PATH of their own; the questions are the real ones.
"""

import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from quantkit.machines import Container, Machine, machine_named
from tests.meta.fake_hub import REPO, Hub, serving
from tests.support.host import facts as host
from tests.support.host.facts import Host, Wanted, container_arguments, facts_of, nodes
from tests.support.host.preflight import GIB, Card, Device, Space, faults
from tests.support.sources import hub
from tests.support.sources.hub import look_up
from tests.support.sources.source import HubSource, HubUnreachable

ROOT = Path(__file__).parents[2]
MACHINE = replace(machine_named("mi300x"), devices=(), arch="cpu", kernels={"int8": "Kernel"})
SILENT = "exec /bin/sleep 600"
GATE = {"transformers": True, "vllm": True, "archs": ["cpu"], "cards": [], "kernels": ["Kernel"]}
DOCKER = f"""
echo "$*" >>"${{0%/*}}/calls"
case "$1 $2" in
"version "*) echo 28.2.2 ;;
"image inspect") [ "$5" = "{MACHINE.image}" ] && echo sha256:1 ;;
"run "*) echo noise; echo '{json.dumps(GATE)}' ;;
esac
"""
Commands = Callable[..., Path]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Makes commands, the only ones there are, from their shell scripts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(**scripts: str) -> Path:
        for name, script in scripts.items():
            (folder / name.replace("_", "-")).write_text(f"#!/bin/bash\n{script}\n")
            (folder / name.replace("_", "-")).chmod(0o755)
        return folder

    return make


HOST = Host(MACHINE, MACHINE.image)


def told(machine: Machine = MACHINE) -> list[tuple[str, str, bool]]:
    """The preflight's list for what this host answers."""
    found = faults(machine, machine.image, facts_of(Host(machine, machine.image), Wanted(Path("/"), 0, 0)))
    return [(fault.check, fault.wrong, fault.may_pass) for fault in found if fault.check != "disk"]


def test_a_host_whose_commands_answer_is_ready(commands: Commands) -> None:
    folder = commands(docker=DOCKER)
    assert told() == []
    calls = (folder / "calls").read_text()
    assert f"run --rm --name quantkit-gate-{os.getpid()} --network none" in calls
    assert calls.endswith(" gemma4 Gemma4ForCausalLM Kernel\n")


def test_an_image_that_is_not_here_is_not_asked(commands: Commands) -> None:
    folder = commands(docker=DOCKER)
    image = MACHINE.image[:-4] + "0000"
    assert told(replace(MACHINE, image=image)) == [("image", f"{image} is not on this host", False)]
    assert "run" not in (folder / "calls").read_text()


def test_an_image_that_is_not_here_needs_room_where_docker_keeps_images(
    commands: Commands,
) -> None:
    commands(
        docker=DOCKER.replace('"image inspect") ', '"info "*) echo /proc ;;\n"image inspect") false && ')
    )
    checkpoints, image = facts_of(HOST, Wanted(Path("/"), 0, 0)).spaces
    assert checkpoints.purpose == "checkpoints"
    assert image == Space("image", "/proc", 0, host.IMAGE_BYTES)
    commands(docker="exit 1")
    assert HOST.store() == Path("/var/lib/docker")
    assert f"image_gib={host.IMAGE_BYTES // GIB} " in (ROOT / "scripts/droplet").read_text()


def test_an_image_is_not_asked_where_a_device_is_known_to_lack(commands: Commands, tmp_path: Path) -> None:
    """Docker would refuse it for the device's absence, which the list names already."""
    folder = commands(docker=DOCKER)
    assert told(replace(MACHINE, devices=(f"{tmp_path}/kfd",))) == [
        ("devices", f"{tmp_path}/kfd is not there", False)
    ]
    assert "run" not in (folder / "calls").read_text()


@pytest.mark.parametrize(
    ("scripts", "says", "may_pass"),
    [
        ({}, "docker is not installed", False),
        ({"docker": "echo warning >&2; echo Cannot connect >&2; exit 1"}, "Cannot connect", True),
        ({"docker": "exit 1"}, "nothing", True),
    ],
)
def test_a_docker_that_is_not_there_says_why(
    commands: Commands, scripts: dict[str, str], says: str, may_pass: bool
) -> None:
    commands(**scripts)
    assert told() == [("docker", says, may_pass)]


def test_whoever_is_silent_is_waited_for_no_longer_than_agreed(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a deadline each of these waits for ten minutes."""
    monkeypatch.setattr(host, "ASKED_S", 0.2)
    commands(docker=SILENT, dmesg=SILENT, nvidia_smi=SILENT)
    assert told() == [("docker", "the docker engine did not answer within 0 s", True)]
    assert (HOST.firmware(), HOST.cards()) == ([], [])


def test_an_image_that_is_silent_is_removed_and_may_be_asked_again(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "GATE_S", 0.5)
    folder = commands(docker=DOCKER.replace("echo noise", SILENT))
    assert told() == [("gate", "the image did not answer within 0 s", True)]
    calls = (folder / "calls").read_text().splitlines()
    assert calls[-1] == f"rm --force quantkit-gate-{os.getpid()}"


def test_a_hub_that_is_silent_is_unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """huggingface_hub alone would wait for ever."""
    monkeypatch.setattr(hub, "ANSWER_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(hub, "HfApi", lambda token: hub_at(endpoint))
        with pytest.raises(HubUnreachable, match="Timeout"):
            look_up(HubSource("made/up", "main", tmp_path))


def test_a_hub_that_falls_silent_is_unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each of its two answers has its own deadline."""
    monkeypatch.setattr(hub, "ANSWER_S", 0.3)
    with serving(Hub({}, mute_s=2.0)) as mute:
        monkeypatch.setattr(hub, "HfApi", lambda token: hub_at(mute.url))
        with pytest.raises(HubUnreachable, match="Timeout"):
            look_up(HubSource(REPO, "main", tmp_path))


def hub_at(endpoint: str) -> object:
    from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint, token=False)


def test_questions_that_wait_for_each_other_take_less_than_a_minute() -> None:
    """Is docker there, is the image, what does it hold, away with it; or two sources of two requests each."""
    assert 3 * host.ASKED_S + host.GATE_S < 60
    assert 2 * hub.ANSWER_S < 60


def test_the_kernels_log_tells_of_firmware(commands: Commands) -> None:
    line = (
        "[    4.2] amdgpu 0000:83:00.0: Direct firmware load for amdgpu/gc_9_4_3_rlc.bin failed with error -2"
    )
    others = ("amdgpu: Firmware is fine", "amdgpu: ring failed", "iwlwifi: firmware failed")
    commands(dmesg="".join(f"echo '{said}'\n" for said in (line, *others)))
    assert HOST.firmware() == [line]


def test_memory_of_an_nvidia_card_is_in_mib(commands: Commands) -> None:
    commands(nvidia_smi="echo '143771, 70000'; echo '143771, 4'")
    assert HOST.cards() == [Card(143771 << 20, 70000 << 20), Card(143771 << 20, 4 << 20)]


def test_what_a_command_says_that_fails_is_not_an_answer(commands: Commands) -> None:
    commands(nvidia_smi="echo 'NVIDIA-SMI has failed'; exit 9")
    assert HOST.cards() == []


def test_memory_of_an_amd_card_is_in_sysfs_with_those_that_hold_it(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands()
    for name, used in (("card0", GIB), ("card1", 60 * GIB)):
        device = tmp_path / "drm" / name / "device"
        device.mkdir(parents=True)
        (device / "mem_info_vram_total").write_text(f"{192 * GIB}\n")
        (device / "mem_info_vram_used").write_text(f"{used}\n")
    (tmp_path / "kfd/4711").mkdir(parents=True)
    monkeypatch.setattr(host, "DRM", tmp_path / "drm")
    monkeypatch.setattr(host, "KFD_HOLDERS", tmp_path / "kfd")
    holders = ("pid 4711",)
    assert HOST.cards() == [Card(192 * GIB, GIB, holders), Card(192 * GIB, 60 * GIB, holders)]
    assert [wrong for _, wrong, _ in told()[1:]] == ["card 1 has 132.0 of 192.0 GiB free, held by pid 4711"]


def test_a_disk_is_the_one_that_a_folder_will_be_on(tmp_path: Path) -> None:
    assert HOST.free_bytes(tmp_path / "not/there/yet") == HOST.free_bytes(tmp_path)


def test_device_nodes_are_found_with_their_groups(tmp_path: Path) -> None:
    (tmp_path / "dri/by-path").mkdir(parents=True)
    for name, mode in (("dri/card0", 0o060), ("dri/renderD128", 0o640), ("kfd", 0o600)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    assert [node.name for node in nodes(tmp_path / "dri")] == ["card0", "renderD128"]
    machine = replace(
        MACHINE, devices=(f"{tmp_path}/dri", f"{tmp_path}/kfd", f"{tmp_path}/absent", "no.such/gpu=all")
    )
    found = Host(machine, "").devices()
    gid = (tmp_path / "kfd").stat().st_gid
    assert [(device.gid, device.group_may_use) for device in found] == [
        (gid, True), (gid, False), (gid, False), (None, True), (None, True)
    ]  # fmt: skip


def test_a_name_of_the_container_device_interface_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "CDI_FOLDERS", (tmp_path / "absent", tmp_path))
    (tmp_path / "nvidia.yaml").write_text("cdiVersion: 0.6.0\nkind: nvidia.com/gpu\n")
    machine = replace(MACHINE, devices=("nvidia.com/gpu=all", "amd.com/gpu=all"))
    assert Host(machine, "").devices() == [Device("nvidia.com/gpu=all", 0), Device("amd.com/gpu=all")]


def test_a_container_gets_devices_groups_by_number_and_what_the_record_adds(tmp_path: Path) -> None:
    (tmp_path / "kfd").touch()
    inside = Container("/opt/python", ("/usr", "/lib"), ("/tmp",), {"HOME": "/tmp"})
    devices = (f"{tmp_path}/kfd", f"{tmp_path}/absent", "no.such/gpu=all")
    machine = replace(MACHINE, devices=devices, container=inside)
    gid = (tmp_path / "kfd").stat().st_gid
    assert " ".join(container_arguments(machine)) == (
        f"--device {tmp_path}/kfd --device {tmp_path}/absent --device no.such/gpu=all --group-add {gid} "
        "--volume /usr:/usr:ro --volume /lib:/lib:ro "
        "--tmpfs /tmp:exec --env HOME=/tmp --entrypoint /opt/python"
    )
