"""Whether a machine is ready for a run, judged from facts alone: one list of what to fix. Pure.

`facts` collects them, `starting` asks and stops a run. A fault that may pass by itself is told from one
that a person must fix.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from quantkit.machines import Machine

GIB = 1 << 30
MEMORY_SHARE = 0.90  # vLLM's --gpu-memory-utilization: it refuses to start where less is free
BROKEN, INFRASTRUCTURE = 11, 12  # exit status: a person must fix it; a retry may find it well
NO_DOCKER = "docker is not installed"
CDI_FIX = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml, from NVIDIA's container toolkit"


@dataclass(frozen=True)
class Device:
    """One device node that goes into the container, and who may open it (gid None: it is not there)."""

    path: str
    gid: int | None = None
    group_may_use: bool = True


@dataclass(frozen=True)
class Card:
    """One card's memory in bytes, and the processes that hold some."""

    memory_bytes: int
    used_bytes: int
    holders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Space:
    """Room on a disk: what for, where, bytes free and bytes needed."""

    purpose: str
    folder: str
    free_bytes: float
    needed_bytes: float


@dataclass(frozen=True)
class Gate:
    """What the image says about itself, from inside.

    Attributes
    ----------
    error
        Why it could not be asked; empty when it answered.
    late
        Whether it was only too slow.
    transformers, vllm
        Whether each knows the model.
    archs
        Architectures its torch was built for.
    cards
        Those it sees from inside the container.
    kernels
        Those of the expected kernels that it defines.
    """

    error: str = ""
    late: bool = False
    transformers: bool = False
    vllm: bool = False
    archs: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What a host answered.

    Attributes
    ----------
    docker_error
        Why the docker engine does not answer; empty when it does.
    archs
        Architectures of the cards that the driver offers.
    firmware
        Lines of the kernel's log in which the driver misses a firmware file.
    image_here
        Whether the pinned image is on this host.
    gate
        None where there was no image to ask.
    source_error, source_may_pass
        Why a source cannot be had; whether that may pass by itself.
    """

    docker_error: str = ""
    devices: tuple[Device, ...] = ()
    archs: tuple[str, ...] = ()
    firmware: tuple[str, ...] = ()
    spaces: tuple[Space, ...] = ()
    cards: tuple[Card, ...] = ()
    image_here: bool = True
    gate: Gate | None = None
    source_errors: Mapping[str, bool] = field(default_factory=dict)  # sentence -> may pass by itself


@dataclass(frozen=True)
class Fault:
    """One thing to fix: which check found it, what is wrong, what to do, and whether a retry may help."""

    check: str
    wrong: str
    fix: str
    may_pass: bool = False


def prepare(machine: Machine) -> str:
    """The command that makes a host ready to be this machine."""
    return f"scripts/droplet --machine {machine.name}"


def check_docker(machine: Machine, image: str, facts: Facts) -> Iterator[Fault]:
    """The docker engine answers."""
    if facts.docker_error:
        installed = facts.docker_error != NO_DOCKER
        fix = prepare(machine) + (", or start the docker engine" if installed else "")
        yield Fault("docker", facts.docker_error, fix, may_pass=installed)


def check_devices(machine: Machine, image: str, facts: Facts) -> Iterator[Fault]:
    """Every device node is there, and open to a group whose number goes into the container."""
    for device in facts.devices:
        if device.gid is None:
            fix = f"{prepare(machine)} loads the card's driver" if device.path.startswith("/") else CDI_FIX
            yield Fault("devices", f"{device.path} is not there", fix)
        elif not device.group_may_use:
            yield Fault(
                "groups", f"group {device.gid} may not open {device.path}", f"chmod g+rw {device.path}"
            )


def check_card(machine: Machine, image: str, facts: Facts) -> Iterator[Fault]:
    """The driver offers the card; where it does not, missing firmware is named first."""
    if machine.arch == "cpu" or machine.arch in facts.archs:
        return
    if facts.firmware:
        yield Fault("firmware", facts.firmware[0], f"{prepare(machine)} installs it and says when to reboot")
        return
    seen = ", ".join(facts.archs) or "no card"
    fix = (
        f"{prepare(machine)}, then reboot once"
        if machine.arch.startswith("gfx")
        else "install the card's driver"
    )
    yield Fault("agent", f"the driver offers {seen}, not {machine.arch}", fix)


def check_disk(machine: Machine, image: str, facts: Facts) -> Iterator[Fault]:
    """There is room for the image and the checkpoints."""
    for space in facts.spaces:
        if not space.free_bytes >= space.needed_bytes:
            free, needed = space.free_bytes / GIB, space.needed_bytes / GIB
            wrong = f"{free:.1f} GiB free in {space.folder} for the {space.purpose}, {needed:.1f} needed"
            other = ", or name another folder with --checkpoints" if space.purpose == "checkpoints" else ""
            yield Fault("disk", wrong, f"free some{other}")


def check_memory(machine: Machine, image: str, facts: Facts) -> Iterator[Fault]:
    """The card's memory is ours, and it says how much of it."""
    if machine.arch in facts.archs and not facts.cards:
        yield Fault("memory", "no card says how much of its memory is free", "reload its driver, or reboot")
    for index, card in enumerate(facts.cards):
        free = card.memory_bytes - card.used_bytes
        if not free >= MEMORY_SHARE * card.memory_bytes:
            of = f"{free / GIB:.1f} of {card.memory_bytes / GIB:.1f} GiB"
            held = f", held by {', '.join(card.holders)}" if card.holders else ""
            yield Fault("memory", f"card {index} has {of} free{held}", "end what holds it", may_pass=True)


def check_image(machine: Machine, image: str, facts: Facts) -> Iterator[Fault]:
    """The image is pinned by digest, and here."""
    if "@sha256:" not in image:
        got = repr(image) if image else "none"
        yield Fault("image", f"no pinned image, got {got}", "name one with --image REF@sha256:DIGEST")
    elif not facts.image_here and not facts.docker_error:
        yield Fault("image", f"{image} is not on this host", f"{prepare(machine)}, or docker pull {image}")


def check_gate(machine: Machine, image: str, facts: Facts) -> Iterator[Fault]:
    """The image knows the model, the card and the kernels, before anything is served from it."""
    gate = facts.gate
    if gate is None:
        return
    fix = "pin an image that does, with --image"
    if gate.error:
        yield Fault("gate", gate.error, "run it again" if gate.late else fix, may_pass=gate.late)
        return
    if not gate.transformers:
        yield Fault("gate", "the image's transformers does not know Gemma 4", fix)
    if not gate.vllm:
        yield Fault("gate", "the image's vllm does not know Gemma4ForCausalLM", fix)
    if machine.arch not in gate.archs:
        yield Fault(
            "gate", f"the image's torch is built for {', '.join(gate.archs)}, not {machine.arch}", fix
        )
    elif machine.arch != "cpu" and machine.arch not in gate.cards:
        yield Fault(
            "gate", f"no {machine.arch} is seen from inside the container", "check devices and groups"
        )
    absent = sorted(set(machine.kernels.values()) - set(gate.kernels))
    if absent:
        yield Fault("gate", f"the image lacks {', '.join(absent)}", f"{fix}, or correct the machine's record")


def check_sources(machine: Machine, image: str, facts: Facts) -> Iterator[Fault]:
    """Every source to download may be had."""
    for sentence, may_pass in facts.source_errors.items():
        yield Fault("source", sentence, "", may_pass)  # which says itself what to do


CHECKS = (
    check_docker,
    check_devices,
    check_card,
    check_disk,
    check_memory,
    check_image,
    check_gate,
    check_sources,
)


def faults(machine: Machine, image: str, facts: Facts) -> tuple[Fault, ...]:
    """Everything that stands between this host and a run; empty when it is ready."""
    return tuple(fault for check in CHECKS for fault in check(machine, image, facts))


def exit_status(found: Iterable[Fault]) -> int:
    """0 for a ready host, 12 where every fault may pass by itself, else 11."""
    found = tuple(found)
    if not found:
        return 0
    return INFRASTRUCTURE if all(fault.may_pass for fault in found) else BROKEN


def listed(machine: Machine, found: Iterable[Fault]) -> str:
    """The one list of what to fix, a line a fault."""
    lines = [f"  {fault.check}: {fault.wrong}" + (f" -> {fault.fix}" if fault.fix else "") for fault in found]
    return "\n".join([f"{machine.name} is not ready; {len(lines)} to fix:", *lines])
