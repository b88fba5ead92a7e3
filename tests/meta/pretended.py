"""A machine that pretends to be an MI300X: one record of that name, whose engine is our docker and whose card a CPU.

Its device nodes are real ones in a folder, its hub is on loopback. For tests that run `pytest -m mi300x` itself.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantkit.machines import machines
from tests.meta.fake_hub import REPO, Hub, serving
from tests.nano import NANO
from tests.support.engine.docker_host import ROOT, DockerHost, bound_folders, docker_host, empty_image

PRICE = machines()["mi300x"].usd_per_hour
# Owners of /dev/kfd and of the nodes of /dev/dri on the published droplet: numbers, which the image need not know.
RENDER, VIDEO = 991, 44
NODES = {"kfd": RENDER, "dri/card0": VIDEO, "dri/renderD128": RENDER}
RECORD = """
[mi300x]
arch = "{arch}"
memory_gib = 0
fp8 = "e4m3fn"
engine = "docker"
image = "{image}"
devices = {devices}
last_level_cache_mib = 64
usd_per_hour = {price}
source = "{source}"
grid = "smoke"

[mi300x.kernels]
{kernels}

[mi300x.container]
python = "{python}"
binds = {binds}
tmpfs = ["/tmp"]
env = {{HOME = "/tmp"}}
"""


@dataclass(frozen=True)
class Pretended:
    """A host that is ready for a run.

    Attributes
    ----------
    folder
        Its device nodes, record, checkpoints and run.
    facts
        What the record says; a test changes some to plant a fault.
    """

    folder: Path
    host: DockerHost
    hub: Hub
    facts: Mapping[str, Any] = field(default_factory=dict)

    def node(self, name: str) -> Path:
        """A device node."""
        return self.folder / "dev" / name

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.folder / "run"

    def arguments(self, **facts: Any) -> list[str]:
        """Arguments of pytest for this machine, its record written with some facts changed."""
        said = {**self.facts, **facts}
        kernels = "\n".join(f'{scheme} = "{kernel}"' for scheme, kernel in said["kernels"].items())
        record = self.folder / "machines.toml"
        record.write_text(RECORD.format(**{**said, "kernels": kernels}))
        checkpoints = self.folder / "checkpoints"
        return ["-m", "mi300x", "--machines", str(record), "--checkpoints", str(checkpoints)]

    def call(self, command: list[str], env: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Status and output of a command in this repository, with this host's docker and hub."""
        own = {"DOCKER_HOST": self.host.base_url, "HF_ENDPOINT": self.hub.url, "HF_TOKEN": "hf_madeUpToken"}
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **own, "HF_HOME": str(self.folder / "home"), **(env or {})},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1500, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def pytest(self, *args: str, env: Mapping[str, str] | None = None, **facts: Any) -> tuple[int, str]:
        """Status and output of ``pytest -m mi300x``."""
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--run", str(self.run)]
        return self.call([*command, *self.arguments(**facts), *args], env)


def _make_nodes(folder: Path) -> None:
    (folder / "dri").mkdir(parents=True)
    null = Path("/dev/null").stat().st_rdev
    for name, group in NODES.items():
        os.mknod(folder / name, 0o020660, null)
        os.chown(folder / name, 0, group)
        (folder / name).chmod(0o660)


@contextmanager
def pretended(folder: Path) -> Iterator[Pretended]:
    """The machine, for as long as the context lasts."""
    _make_nodes(folder / "dev")
    files = {path.name: path.read_bytes() for path in NANO.iterdir() if path.is_file()}
    (folder / "docker").mkdir()
    with docker_host(folder / "docker") as host, serving(Hub(files)) as hub:
        facts = {
            "arch": "cpu",
            "image": empty_image(host),
            "devices": json.dumps([str(folder / "dev/kfd"), str(folder / "dev/dri")]),
            "price": PRICE,
            "source": REPO,
            "kernels": machines()["cpu"].kernels,
            "python": sys.executable,
            "binds": json.dumps(bound_folders()),
        }
        yield Pretended(folder, host, hub, facts)
