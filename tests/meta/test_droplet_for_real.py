"""scripts/droplet for real, as far as docker goes: in a container of our own it installs docker and pulls an image.

The registry is on loopback; packages come from the host's own mirror. The record is that of a machine without a card.
"""

import re
import subprocess

import pytest

from tests.meta.fake_droplet import ROOT
from tests.support.engine.docker_host import docker_host, empty_image

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.xdist_group("docker")]
BOX = ("unshare", "--mount", "--pid", "--fork", "--kill-child", str(ROOT / "tests/meta/box.sh"))
CALLS = ("--check", "", "", "--check")
SCRIPT = """
cd {root}
for args in {calls}; do
  scripts/droplet $args --machine boxed --machines {machines} --checkpoints /large
  echo "== $?"
done
"""


def test_a_host_without_docker_is_made_ready_and_then_left_alone(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tmp_path = tmp_path_factory.mktemp("droplet")  # short: the path of a socket has at most 107 characters
    for name in ("docker", "box"):
        (tmp_path / name).mkdir()
    machines = tmp_path / "more.toml"
    with docker_host(tmp_path / "docker") as host:
        image = empty_image(host)
        machines.write_text(f'[boxed]\narch = "cpu"\nimage = "{image}"\ndevices = []\n')
        calls = " ".join(f"'{args}'" for args in CALLS)
        script = SCRIPT.format(root=ROOT, calls=calls, machines=machines)
        done = subprocess.run(
            [*BOX, str(tmp_path / "box"), "bash", "-c", script],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1200, check=False,
        )  # fmt: skip
    said = re.split(r"^== (\d+)\n", done.stdout, flags=re.MULTILINE)
    outputs, statuses = said[:-1:2], said[1::2]
    assert statuses == ["1", "0", "0", "0"], done.stdout
    looked, made, again, ready = outputs
    assert "docker    NOT READY: would install docker.io iptables" in looked
    assert f"image     NOT READY: would pull {image}" in looked
    assert "docker    install docker.io iptables" in made
    assert f"image     found {image} once it was pulled" in made
    assert re.search(r"^docker +found docker \d", made, re.MULTILINE)
    assert "ready     yes" in ready
    assert again == ready  # nothing was left to do, and nothing was done
