"""scripts/droplet on fake hosts: a bare one is made ready, a ready one is left alone, every fault is named."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from quantkit.machines import machine_named
from tests.meta.fake_droplet import ROOT, Droplet, bare, ready

IMAGE = machine_named("mi300x").image


def test_a_bare_ubuntu_host_is_made_ready_and_then_left_alone(tmp_path: Path) -> None:
    droplet = bare(tmp_path)
    status, output = droplet.run()
    assert status == 0, output
    updates = [line for line in (droplet.root / "state/calls").read_text().splitlines() if "update" in line]
    calls = droplet.calls()
    assert f"docker pull --quiet {IMAGE}" in calls
    assert "modprobe amdgpu" in calls
    assert "systemctl enable --now docker" in calls
    assert all("DPkg::Lock::Timeout=600" in call for call in [*calls, *updates] if "apt-get" in call)
    assert updates
    assert any("linux-firmware" in call for call in calls)
    assert output.rstrip().endswith("ready     yes")
    status, output = droplet.run()
    assert (status, droplet.calls()) == (0, []), output
    assert droplet.is_so("not-root").run("--check")[0] == 0
    assert "found 1 x gfx942" in output
    assert "found video 44 render 990 docker 990" in output


def test_firmware_that_is_there_is_not_installed_again(tmp_path: Path) -> None:
    droplet = bare(tmp_path).put("lib/firmware/amdgpu/gc_9_4_3_rlc.bin", "")
    assert "found amdgpu/gc_9_4_3_*" in droplet.run()[1]
    assert not any("linux-firmware" in call for call in droplet.calls())


def test_debian_gets_its_firmware_from_its_own_archive(tmp_path: Path) -> None:
    droplet = bare(tmp_path, "debian")
    assert droplet.run()[0] == 0
    source = (droplet.root / "etc/apt/sources.list.d/quantkit-firmware.list").read_text()
    assert source == "deb http://deb.debian.org/debian bookworm non-free-firmware\n"
    assert any("firmware-amd-graphics" in call for call in droplet.calls())


def test_check_changes_nothing_and_names_all_that_is_missing(tmp_path: Path) -> None:
    droplet = bare(tmp_path)
    before = sorted(path for path in droplet.root.rglob("*") if path.name != "calls")
    status, output = droplet.run("--check")
    assert (status, droplet.calls()) == (1, [])
    assert sorted(path for path in droplet.root.rglob("*") if path.name != "calls") == before
    for would in (
        "install git make python3-venv",
        "install linux-firmware",
        "install pciutils",
        "install docker.io",
    ):
        assert f"would {would}" in output


def test_one_thing_that_is_missing_is_enough_not_to_be_ready(tmp_path: Path) -> None:
    droplet = ready(tmp_path)
    (droplet.root / "state/image").unlink()
    status, output = droplet.run("--check")
    assert (status, droplet.calls()) == (1, [])
    assert f"1 to fix:\n  image: would pull {IMAGE}" in output


def test_a_card_that_is_up_needs_nothing_and_an_image_that_is_there_no_room(tmp_path: Path) -> None:
    droplet = ready(tmp_path).put("state/docker-gib", "1\n")
    shutil.rmtree(droplet.root / "lib/firmware")
    status, output = droplet.run()
    assert (status, droplet.calls()) == (0, []), output
    (droplet.root / "dev/kfd").unlink()
    status, output = droplet.run()
    assert status == 1
    assert "NOT READY: no /dev/kfd" in output


def test_one_reboot_is_asked_for_where_the_driver_needs_it(tmp_path: Path) -> None:
    droplet = bare(tmp_path).is_so("needs-reboot")
    status, output = droplet.run("--no-reboot")
    assert (status, "systemctl reboot" in droplet.calls()) == (3, False)
    assert "reboot, then run this again" in output
    assert droplet.run()[0] == 3
    assert "systemctl reboot" in droplet.calls()
    status, output = droplet.run()
    assert status == 0, output
    assert "systemctl reboot" not in droplet.calls()


def test_a_reboot_that_has_not_happened_yet_is_asked_for_again(tmp_path: Path) -> None:
    droplet = bare(tmp_path).is_so("needs-reboot", "stays-down")
    assert droplet.run()[0] == 3
    droplet.put("proc/sys/kernel/random/boot_id", "first-boot\n")
    assert droplet.run()[0] == 3


def test_a_reboot_that_does_not_help_is_not_repeated(tmp_path: Path) -> None:
    droplet = bare(tmp_path).is_so("needs-reboot", "stays-down")
    assert droplet.run()[0] == 3
    droplet.calls()
    status, output = droplet.run()
    assert status == 1
    assert "no gfx942 even after a reboot: kernel 6.8.0-60-generic, [    4.2] amdgpu" in output
    assert "systemctl reboot" not in droplet.calls()


def test_a_cloud_kernel_without_the_driver_gets_it(tmp_path: Path) -> None:
    droplet = bare(tmp_path)
    (droplet.root / "state/module").unlink()
    assert droplet.run()[0] == 0
    assert any("linux-modules-extra-6.8.0-60-generic" in call for call in droplet.calls())


def without(name: str) -> Callable[[Droplet], object]:
    return lambda droplet: (droplet.root / name).unlink()


FAULTS: dict[str, tuple[Callable[[Droplet], object], str]] = {
    "another system": (lambda d: d.put("etc/os-release", "ID=fedora\n"), "found fedora, expected Debian or Ubuntu"),
    "not root": (lambda d: d.is_so("not-root"), "not root"),
    "old python": (lambda d: d.put("state/python", "3.10\n"), "found Python 3.10, expected 3.11"),
    "apt broken": (lambda d: d.is_so("apt-broken"), "could not install git make python3-venv: E: Unable to locate"),
    "no card": (without("state/card-plugged"), "no AMD card on the PCI bus"),
    "old firmware package": (lambda d: d.is_so("old-packages"), "the package holds no amdgpu/gc_9_4_3_*"),
    "docker broken": (lambda d: d.is_so("docker-broken"), "docker does not answer"),
    "registry down": (lambda d: d.is_so("registry-down"), "could not pull vllm/vllm-openai-rocm@sha256:"),
    "no room for the image": (lambda d: d.put("state/docker-gib", "59\n"), "59 GiB free for the image"),
    "no room for builds": (lambda d: d.put("state/checkpoints-gib", "129\n"), "129 GiB free for the checkpoints"),
    "no room for both": (lambda d: d.put("state/checkpoints-gib", "189\n").is_so("one-disk"), "189 GiB free"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(tmp_path: Path, name: str) -> None:
    plant, says = FAULTS[name]
    droplet = bare(tmp_path)
    plant(droplet)
    status, output = droplet.run()
    assert status == 1, output
    assert f"NOT READY: {says}" in output
    assert "ready     yes" not in output


@pytest.mark.parametrize("name", ["another system", "not root"])
def test_a_host_that_is_not_ours_is_left_alone(tmp_path: Path, name: str) -> None:
    droplet = bare(tmp_path)
    FAULTS[name][0](droplet)
    assert droplet.run()[0] == 1
    assert droplet.calls() == []


def test_a_host_without_systemd_is_rebooted_all_the_same(tmp_path: Path) -> None:
    droplet = bare(tmp_path).is_so("needs-reboot", "no-systemd")
    assert droplet.run()[0] == 3
    assert "shutdown -r now" in droplet.calls()


def test_a_client_without_an_engine_is_no_docker(tmp_path: Path) -> None:
    droplet = ready(tmp_path)
    (droplet.bin / "dockerd").unlink()
    assert "1 to fix:\n  docker: would install docker.io iptables" in droplet.run("--check")[1]


def test_a_host_without_systemd_starts_docker_all_the_same(tmp_path: Path) -> None:
    droplet = bare(tmp_path).is_so("no-systemd")
    assert droplet.run()[0] == 0
    assert "service docker start" in droplet.calls()


def test_a_host_without_an_init_gets_the_daemon_itself(tmp_path: Path) -> None:
    droplet = bare(tmp_path).is_so("no-systemd", "no-init")
    status, output = droplet.run()
    assert status == 0, output
    calls = droplet.calls()
    assert calls.index("service docker start") < calls.index("dockerd ")


def test_a_user_is_put_into_the_cards_groups(tmp_path: Path) -> None:
    droplet = ready(tmp_path).put("state/groups-of-user", "users video\n")
    text = (droplet.bin / "env").resolve()
    done = subprocess.run(
        [text, f"PATH={droplet.bin}", f"QUANTKIT_ROOT={droplet.root}", "SUDO_USER=ann", ROOT / "scripts/droplet"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert [call for call in droplet.calls() if call.startswith("usermod")] == [
        f"usermod -aG {group} ann" for group in ("render", "docker")
    ]


def test_another_machine_is_a_record(tmp_path: Path) -> None:
    droplet = bare(tmp_path)
    records = tmp_path / "more.toml"
    records.write_text(
        "[boxed]\narch='cpu'# none\nimage=\t\"made/up@sha256:12\"\ndevices = []\n"
    )  # TOML all the same
    status, output = droplet.run("--machine", "boxed", "--machines", str(records))
    assert status == 0, output
    assert "boxed is cpu\n" in output
    assert "docker pull --quiet made/up@sha256:12" in droplet.calls()
    status, output = droplet.run("--machine", "mi999")
    assert (status, "no record of mi999, expected one of cpu mi300x h200" in output) == (1, True)
    assert "system" not in output
    records.write_text(
        records.read_text().replace("boxed", "mi300x")
    )  # a name that both files have is this one's
    output = droplet.run("--machines", str(records))[1]
    assert "found made/up@sha256:12" in output
    assert "none needed: the record of mi300x names none" in output  # nothing is taken from the shipped one
    records.write_text('[boxed]\narch = "cpu"\nimage = "made/up:latest"\ndevices = []\n')
    assert "not pinned by digest" in droplet.run("--machine", "boxed", "--machines", str(records))[1]
    records.write_text('[boxed]\narch = "cpu"\nimage = ""\n')
    assert (
        "pins no image: docs/machines.md" in droplet.run("--machine", "boxed", "--machines", str(records))[1]
    )


def test_an_nvidia_card_is_looked_for_and_its_driver_left_to_its_vendor(tmp_path: Path) -> None:
    droplet = ready(tmp_path)
    records = tmp_path / "more.toml"
    records.write_text(f'[h100]\narch = "sm_90"\nimage = "{IMAGE}"\ndevices = ["nvidia.com/gpu=all"]\n')
    given = ("--machine", "h100", "--machines", str(records))
    status, output = droplet.run(*given)
    assert (status, droplet.calls()) == (1, [])
    assert "2 to fix:\n  card: nvidia-smi lists no sm_90" in output
    assert "groups: no nvidia.com/gpu=all: NVIDIA's container toolkit makes it: nvidia-ctk" in output
    droplet.put("etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n").put(
        "bin/nvidia-smi", "#!/bin/bash\necho 9.0\necho 9.0\n"
    )
    (droplet.bin / "nvidia-smi").chmod(0o755)
    status, output = droplet.run(*given)
    assert (status, "found 2 x sm_90" in output) == (0, True), output
    assert "firmware  none needed" in output


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--chek",), "got --chek, expected what scripts/droplet --help lists"),
        (("--machine",), "got --machine alone, expected a value"),
        (("--machines", "absent.toml"), "got --machines absent.toml, expected a file of records"),
    ],
)
def test_a_wrong_argument_is_refused(tmp_path: Path, args: tuple[str, ...], says: str) -> None:
    status, output = bare(tmp_path).run(*args)
    assert (status, says in output) == (2, True), output


def test_help_is_the_scripts_own_head(tmp_path: Path) -> None:
    status, output = bare(tmp_path).run("--help")
    assert status == 0
    assert "scripts/droplet [--check] [--no-reboot]" in output
    assert output.rstrip().endswith("3 a reboot is under way: run it again afterwards.")


def test_the_digest_stands_in_one_place() -> None:
    digest = re.compile(r"sha256:[0-9a-f]{16}")
    scripts = [path for path in (ROOT / "scripts").iterdir() if path.is_file()]
    assert [path.name for path in scripts if digest.search(path.read_text())] == []


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_scripts_are_clean_shell() -> None:
    scripts = [
        path for path in (ROOT / "scripts").iterdir() if path.read_bytes().startswith(b"#!/usr/bin/env bash")
    ]
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
