"""A droplet made of files and fake commands, for scripts/droplet: what each command answers changes with what was done.

The commands lie in ``fake_commands``, those that a package brings in ``later``.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMANDS = Path(__file__).with_name("fake_commands")
REAL = (
    "bash",
    "awk",
    "sed",
    "grep",
    "cat",
    "tail",
    "tr",
    "cut",
    "dirname",
    "mkdir",
    "touch",
    "env",
    "setsid",
)
SYSTEMS = {
    "debian": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_CODENAME=bookworm\nID=debian\n',
    "ubuntu": 'PRETTY_NAME="Ubuntu 24.04.2 LTS"\nID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n',
}


@dataclass
class Droplet:
    """A fake host in a folder.

    Attributes
    ----------
    root
        Its file system, with the state of the fake commands in ``state``.
    """

    root: Path

    @property
    def bin(self) -> Path:
        """The only folder on its PATH."""
        return self.root / "bin"

    def is_so(self, *names: str) -> "Droplet":
        """Make things so: a file each in the state."""
        for name in names:
            (self.root / "state" / name).touch()
        return self

    def put(self, name: str, text: str) -> "Droplet":
        """Write a file below the root."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return self

    def calls(self) -> list[str]:
        """Commands that changed something, since the last call of this."""
        path = self.root / "state/calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [line for line in lines if not line.endswith("update -q")]

    def run(self, *args: str) -> tuple[int, str]:
        """Status and output of the script on this host."""
        env = {"PATH": str(self.bin), "QUANTKIT_ROOT": str(self.root), "LC_ALL": "C"}
        done = subprocess.run(
            [ROOT / "scripts/droplet", *args],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


def bare(folder: Path, system: str = "ubuntu") -> Droplet:
    """A fresh host with a card plugged in, a kernel that has its driver, and nothing else."""
    droplet = Droplet(folder / "root")
    shutil.copytree(COMMANDS, droplet.bin)
    (droplet.root / "state").mkdir()
    for name in REAL:
        where = next(path for path in ("/usr/bin", "/bin") if os.access(f"{path}/{name}", os.X_OK))
        (droplet.bin / name).symlink_to(f"{where}/{name}")
    droplet.put("etc/os-release", SYSTEMS[system]).put("etc/group", "root:x:0:\nvideo:x:44:\n")
    droplet.put("etc/apt/sources.list.d/empty", "").put("proc/sys/kernel/random/boot_id", "first-boot\n")
    droplet.put("state/docker-gib", "60\n").put("state/checkpoints-gib", "130\n").put(
        "state/groups-of-user", "users\n"
    )
    return droplet.is_so("module", "card-plugged")


def ready(folder: Path) -> Droplet:
    """A host on which everything is done."""
    droplet = bare(folder)
    status, output = droplet.run()
    assert status == 0, output
    droplet.calls()
    return droplet
