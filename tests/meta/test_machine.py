"""The probes of the machine, with faked hosts: each card is recognised by its own answer and by no other."""

import os
from pathlib import Path

import numpy
import psutil
import pytest

from quantkit.machines import UnknownMachine, machine_named, machines, read_machines
from tests.support.host import machine as probes
from tests.support.host.machine import Gpu, Probe, detected, facts, gfx_name, gpus, present
from tests.support.plugins.options import demanded


class FakeHost(Probe):
    """A host that answers what it is told to."""

    def __init__(self, targets: list[int] | None = None, lines: list[str] | None = None) -> None:
        self.targets, self.lines = targets or [], lines or []

    def kfd_targets(self) -> list[int]:
        return self.targets

    def nvidia_lines(self) -> list[str]:
        return self.lines


@pytest.mark.parametrize(
    ("host", "name"),
    [
        (FakeHost(), "cpu"),
        (FakeHost([0]), "cpu"),
        (FakeHost([0, 90402]), "mi300x"),
        (FakeHost([0, 90010]), "cpu"),
        (FakeHost(lines=["NVIDIA H200, 9.0, 143771 MiB, 580.159.03"]), "h200"),
        (FakeHost(lines=["NVIDIA A100, 8.0, 81920 MiB, 580.1"]), "cpu"),
    ],
)
def test_a_host_is_recognised_by_its_card(host: FakeHost, name: str) -> None:
    assert detected(host).name == name


def test_the_drivers_own_words_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for node, target in (("0", 0), ("1", 90402)):
        (tmp_path / node).mkdir()
        (tmp_path / node / "properties").write_text(f"cpu_cores_count 16\ngfx_target_version {target}\n")
    monkeypatch.setattr(probes, "KFD_NODES", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [gpu.arch for gpu in gpus()] == [
        "gfx942"
    ]  # a processor's node is no card, and there is no nvidia-smi
    for script, archs in (
        ("echo NVIDIA H200, 9.0, 143771 MiB, 580.1; echo", ["sm_90"]),
        ("echo a, b; exit 9", []),
    ):
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        assert [gpu.arch for gpu in gpus()] == ["gfx942", *archs]


def test_the_records_facts_are_this_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Gpu("NVIDIA H200", "sm_90", "143771 MiB", "580.1")
    monkeypatch.setattr(probes, "gpus", lambda: [card])
    found = facts()
    assert found["gpus"] == [vars(card)]
    assert (found["cores"], found["memory_bytes"]) == (os.cpu_count(), psutil.virtual_memory().total)
    assert f"model name\t: {found['cpu']}\n" in Path("/proc/cpuinfo").read_text()
    assert found["versions"]["numpy"] == numpy.__version__


def test_a_card_keeps_its_facts() -> None:
    [card] = gpus(FakeHost(lines=["NVIDIA H200, 9.0, 143771 MiB, 580.159.03"]))
    assert (card.arch, card.memory, card.driver) == ("sm_90", "143771 MiB", "580.159.03")


@pytest.mark.parametrize(
    ("target", "name"), [(90402, "gfx942"), (90010, "gfx90a"), (110001, "gfx1101"), (91012, "gfx9ac")]
)
def test_an_amd_target_is_named_as_the_compiler_does(target: int, name: str) -> None:
    assert gfx_name(target) == name


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("", None),
        ("mi300x", "mi300x"),
        ("h200 and not slow", "h200"),
        ("not slow", None),
        ("docker or slow", None),
    ],
)
def test_a_mark_expression_demands_a_machine_or_none(expression: str, name: str | None) -> None:
    wanted = demanded(expression)
    assert (wanted.name if wanted else None) == name


def test_a_record_with_a_wrong_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "machines.toml").write_text('[x]\narch = "y"\ncolour = "red"\n')
    with pytest.raises(UnknownMachine, match="key of machine x, got 'colour', expected one of name, arch, "):
        read_machines(tmp_path / "machines.toml")
    with pytest.raises(UnknownMachine, match="one of cpu, mi300x, h200"):
        machine_named("mi400")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('memory_gib = "lots"', "memory_gib of machine x, got 'lots', expected a number"),
        ("last_level_cache_mib = 1.5", "last_level_cache_mib of machine x, got 1.5, expected a whole number"),
        ("arch = 9", "arch of machine x, got 9, expected a text"),
        ('engine = "podman"', "engine of machine x, got 'podman', expected one of process, docker"),
        ("", "machine x, got .*missing 1 required positional argument: 'fp8'"),
    ],
)
def test_a_record_with_a_wrong_value_is_refused(tmp_path: Path, line: str, words: str) -> None:
    own = {
        "arch": '"y"',
        "memory_gib": "1",
        "fp8": '"e4m3fn"',
        "engine": '"process"',
        "image": '""',
        "last_level_cache_mib": "1",
        "usd_per_hour": "0",
    }
    name, _, value = line.partition(" = ")
    lines = {**own, name: value} if name else {key: own[key] for key in own if key != "fp8"}
    text = "".join(f"{key} = {value}\n" for key, value in lines.items())
    (tmp_path / "machines.toml").write_text(f"[x]\n{text}")
    with pytest.raises(UnknownMachine, match=words):
        read_machines(tmp_path / "machines.toml")


def test_only_a_cpus_speed_is_judged_as_advice() -> None:
    assert [name for name, machine in machines().items() if machine.advisory_speed] == ["cpu"]


def test_an_image_is_pinned_by_digest() -> None:
    assert all("@sha256:" in machine.image for machine in machines().values() if machine.image)


EXTRA = """
[mi325x]
arch = "gfx942"
memory_gib = 255.7
fp8 = "e4m3fnuz"
engine = "docker"
image = ""
devices = ["/dev/kfd"]
last_level_cache_mib = 256
usd_per_hour = 2.5
"""


def test_a_further_record_stands_beside_those_shipped(tmp_path: Path) -> None:
    file = tmp_path / "more.toml"
    file.write_text(EXTRA)
    known = machines(file)
    assert set(known) - set(machines()) == {"mi325x"}
    assert known["mi325x"].devices == ("/dev/kfd",)
    wanted = demanded("mi325x", known)
    assert wanted is not None
    assert present(wanted, FakeHost([0, 90402]))
    assert not present(wanted, FakeHost([0]))
    assert present(known["cpu"], FakeHost([0, 90402]))
    assert detected(FakeHost([0, 90402]), {name: known[name] for name in ("cpu", "mi325x")}) is wanted
    assert (
        detected(FakeHost([0, 90402]), known).name == "mi300x"
    )  # the first of its architecture; -m names another


def test_a_name_that_can_be_no_mark_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "more.toml"
    file.write_text(EXTRA.replace("[mi325x]", '["mi 325x"]'))
    with pytest.raises(UnknownMachine, match="expected letters, digits and underscores"):
        machines(file)


@pytest.mark.parametrize("text", ["[mi400\n", None])
def test_a_file_that_holds_no_records_is_refused(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "more.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UnknownMachine, match="expected"):
        machines(file)


def test_a_record_may_say_what_its_containers_are_given(tmp_path: Path) -> None:
    file = tmp_path / "more.toml"
    file.write_text(
        EXTRA + '[mi325x.container]\npython = "/opt/python"\nbinds = ["/opt"]\nenv = {HOME = "/tmp"}\n'
    )
    inside = machines(file)["mi325x"].container
    assert (inside.python, inside.binds, inside.tmpfs, inside.env) == (
        "/opt/python",
        ("/opt",),
        (),
        {"HOME": "/tmp"},
    )
    file.write_text(EXTRA + "[mi325x.container]\nports = [1]\n")
    with pytest.raises(UnknownMachine, match="ports"):
        read_machines(file)
