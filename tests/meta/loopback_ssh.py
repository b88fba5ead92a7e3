"""An ssh server on 127.0.0.1 with keys of its own, whose connections a test can cut.

For the judge's test of scripts/remote; needs Debian's openssh-server and changes nothing outside its folder.
"""

import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.engine.process import free_port

SSHD = Path("/usr/sbin/sshd")
CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile {folder}/pid
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
"""


@dataclass
class Server:
    """One sshd, started and stopped by hand.

    Attributes
    ----------
    folder
        Its keys, configuration and log.
    """

    folder: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def command(self) -> str:
        """The ssh command that reaches it, for QUANTKIT_SSH."""
        known = (
            "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o BatchMode=yes"
        )
        return f"ssh -F none -i {self.folder}/key -p {self.port} {known}"

    def start(self) -> None:
        """Listen; returns once connections are taken."""
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd confines itself; Debian's service makes it too
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", self.folder / "config"], stderr=log)
        ready = [*self.command.split(), "127.0.0.1", "true"]
        until = time.monotonic() + 20
        while subprocess.run(ready, capture_output=True, check=False).returncode:
            assert time.monotonic() < until, (self.folder / "log").read_text()
            time.sleep(0.1)

    def cut(self) -> None:
        """End the server and every connection to it, but nothing that was started through one."""
        assert self.process is not None
        ours = psutil.Process(self.process.pid)
        connections = [child for child in ours.children(recursive=True) if child.name() == "sshd"]
        for process in (ours, *connections):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        self.process = None


def make(folder: Path) -> Server:
    """A server with fresh keys, not started yet."""
    folder.mkdir()
    for name in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    server = Server(folder, free_port())
    (folder / "config").write_text(CONFIG.format(port=server.port, folder=folder))
    return server
