"""scripts/remote against a real sshd on loopback: detached, followed through a cut connection, and brought home."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.meta import loopback_ssh

ROOT = Path(__file__).parents[2]
TOKEN = "hf_madeUpToken"
DROPLET = """#!/bin/sh
echo "$*" >.git/told
[ ! -e .git/unready ] || exit 1
[ -e .git/rebooted ] || { touch .git/rebooted; exit 3; }
echo "ready     yes"
"""
PYTHON = f"""#!/bin/sh
PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 exec {sys.executable} "$@"
"""
MAKEFILE = """.venv/.installed:
\tmkdir -p .venv/bin && cp python .venv/bin/python && touch .venv/.installed
"""
CONFTEST = """
import os, pathlib, pytest, time
def pytest_addoption(parser):
    parser.addoption("--run")
    parser.addoption("--note")
    parser.addoption("--machines")
    parser.addoption("--checkpoints")
def pytest_sessionfinish(session):
    run = pathlib.Path(session.config.getoption("--run"))
    note, alone = session.config.getoption("--note"), os.getsid(0) == os.getppid()
    (run / "record.jsonl").write_text(f"{alone} {os.environ.get('HF_TOKEN', '') != ''} {note}")
    if note == "hub is down":
        session.exitstatus = 12
    if note == "whole" and not (child := os.fork()):
        time.sleep(100)
        os._exit(0)
    elif note == "whole":
        (run / "child").write_text(str(child))
"""
TEST = """
import time
def test_slow(capfd):
    with capfd.disabled():
        for number in range(12):
            print(f"[line {number}]", flush=True)
            time.sleep(0.5)
"""
BREAKS = """#!/bin/bash
case "$*" in *"tar -C"*)
  echo >>{tries}
  case $(wc -l <{tries}) in
  1) {ssh} "$@" | head -c 700; exit 255 ;;
  2) {ssh} "$@"; exit 255 ;;
  3) ls {home} >>{tries} ;;
  esac ;;
esac
exec {ssh} "$@"
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not loopback_ssh.SSHD.exists(), reason="openssh-server is not installed"),
    pytest.mark.skipif(not shutil.which("flock"), reason="flock is not installed"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[loopback_ssh.Server]:
    made = loopback_ssh.make(tmp_path / "ssh")
    made.start()
    yield made
    if made.process is not None:
        made.cut()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A small clone with the real script and stand-ins for what it calls."""
    folder = tmp_path / "clone"
    (folder / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts/remote", folder / "scripts")
    (folder / "scripts/droplet").write_text(DROPLET)
    (folder / "scripts/droplet").chmod(0o755)
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    for name, text in (
        ("Makefile", MAKEFILE),
        ("conftest.py", CONFTEST),
        ("test_slow.py", TEST),
        (".gitignore", "runs/\n.venv/\n"),
    ):
        (folder / name).write_text(text)
    git = ("git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b")
    for command in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "A clone")):
        subprocess.run([*git, *command], check=True)
    return folder


def commit(clone: Path, name: str, text: str) -> None:
    """Commit a file of the clone."""
    (clone / name).write_text(text)
    git = ("git", "-C", clone, "-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run([*git, "commit", "-q", "-m", "Change it", name], check=True)


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(clone: Path, server: loopback_ssh.Server) -> Iterator[Start]:
    """Starts the script in the clone, and ends what a failed test left running."""
    started = []

    def launch(*args: str, ssh: str = server.command, **more: str) -> "subprocess.Popen[str]":
        env = {
            **os.environ,
            "QUANTKIT_SSH": ssh,
            "QUANTKIT_REMOTE": str(clone.parent / "there"),
            "QUANTKIT_WAIT_S": "0.3",
            "HF_TOKEN": TOKEN,
            "RUN": "made-up",
            **more,
        }
        process = subprocess.Popen(
            [str(clone / "scripts/remote"), "127.0.0.1", *args],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield launch
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def until(text: str, process: "subprocess.Popen[str]") -> str:
    """What the script prints up to a text."""
    assert process.stdout is not None
    said = ""
    while text not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    return said


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def numbers(output: str) -> list[int]:
    return [int(part.split("]")[0]) for part in output.split("[line ")[1:]]


def files_with(text: str, *folders: Path) -> list[Path]:
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if text.encode() in path.read_bytes()]


def test_a_run_survives_a_cut_connection_and_its_record_comes_home(
    clone: Path, server: loopback_ssh.Server, start: Start
) -> None:
    machine = ("-m", "made_up or not made_up", "--machines", "more.toml", "--checkpoints=/a b")
    process = start("-p", "no:cacheprovider", "--note", "two words", *machine)
    said = until("[line 3]", process)
    server.cut()
    time.sleep(1.5)
    server.start()
    status, output = ended(process)
    said += output
    assert status == 0, said
    assert numbers(said) == list(range(12))
    assert "lost; what runs there goes on" in said
    assert said.rstrip().endswith("127.0.0.1 still bills until it is destroyed")
    assert (clone / "runs/made-up/record.jsonl").read_text() == "True True two words"
    told = (clone.parent / "there/.git/told").read_text()
    assert told == "--machine made_up --machines more.toml --checkpoints /a b\n"
    assert files_with(TOKEN, clone, clone.parent / "there") == []


def test_a_host_that_stays_away_is_given_up_and_what_to_do_is_said(
    server: loopback_ssh.Server, start: Start
) -> None:
    process = start(QUANTKIT_PATIENCE="2")
    until("[line 1]", process)
    server.cut()
    status, output = ended(process)
    assert status == 12, output
    assert "no connection to 127.0.0.1 in 2 tries; what runs there goes on: start this again" in output


def test_started_again_it_takes_up_the_run_that_is_under_way(clone: Path, start: Start) -> None:
    first = start("-m", "not made_up")
    until("[line 2]", first)
    os.killpg(first.pid, 9)
    first.communicate()
    status, output = ended(start())
    assert status == 0, output
    assert "== the run made-up is under way" in output
    assert (clone.parent / "there/.git/told").read_text() == "\n"  # no machine was asked for
    assert numbers(output) == list(range(12))


def test_a_run_that_ended_meanwhile_is_brought_home_and_then_resumed(clone: Path, start: Start) -> None:
    first = start("--note", "hub is down")
    until("[line 2]", first)
    os.killpg(first.pid, 9)
    first.communicate()
    there = clone.parent / "there/runs/made-up"
    deadline = time.monotonic() + 60
    while not (there / "status").exists():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    status, output = ended(start())
    assert status == 12, output
    assert "== the run made-up has ended" in output
    commit(clone, ".gitignore", "runs/\n.venv/\nmore/\n")
    again = start("--note", "again")
    output = until("[line 2]", again)
    assert not (clone / "runs/made-up/status").exists()
    status, rest = ended(again)
    output += rest
    assert status == 0, output
    assert (clone.parent / "there/.gitignore").read_text() == (clone / ".gitignore").read_text()
    assert "== starting the run made-up" in output
    assert (clone / "runs/made-up/record.jsonl").read_text() == "True True again"
    assert len(list((clone / "runs/made-up").glob("console*.log"))) == 2


def test_a_record_whose_copy_breaks_off_is_brought_home_whole(
    clone: Path, server: loopback_ssh.Server, start: Start, tmp_path: Path
) -> None:
    """The first copy ends in the middle, as with a connection that is lost; what the run left holds nobody up."""
    breaks = tmp_path / "ssh-that-breaks"
    home, tries = clone / "runs/made-up", tmp_path / "tries"
    breaks.write_text(BREAKS.format(ssh=server.command, tries=tries, home=home))
    breaks.chmod(0o755)
    status, output = ended(start("--note", "whole", ssh=str(breaks)))
    assert status == 0, output
    os.kill(int((clone / "runs/made-up/child").read_text()), signal.SIGKILL)  # it lives still
    assert output.count("== the copy broke off, trying again") == 2
    assert "record.jsonl" in tries.read_text()
    assert "status" not in tries.read_text(), "with a status here nobody would bring the rest"
    assert (clone / "runs/made-up/record.jsonl").read_text() == "True True whole"
    assert numbers((clone / "runs/made-up/console.log").read_text()) == list(range(12))


def test_a_run_that_dies_without_a_status_is_not_waited_for(clone: Path, start: Start) -> None:
    for folder in (clone, clone.parent / "there"):  # of an earlier run, which ended well
        (folder / "runs/made-up").mkdir(parents=True)
        (folder / "runs/made-up/status").write_text("0\n")
    commit(clone, "test_slow.py", TEST.replace("time.sleep(0.5)", "import os; os.killpg(0, 9)"))
    status, output = ended(start())
    assert status == 12, output
    assert "ended without a status" in output


def test_without_a_host_it_says_how_it_is_called() -> None:
    done = subprocess.run([ROOT / "scripts/remote"], capture_output=True, text=True, check=False)
    assert (done.returncode, "scripts/remote HOST [pytest arguments" in done.stderr) == (2, True)
    assert "RUN the run's name" in done.stderr


def test_what_cannot_run_is_said_before_anything_is_started(
    clone: Path, server: loopback_ssh.Server, start: Start
) -> None:
    (clone / "Makefile").write_text(MAKEFILE + "# changed\n")
    status, output = ended(start())
    assert (status, "changes that are not committed" in output) == (11, True)
    subprocess.run(["git", "-C", clone, "checkout", "-q", "Makefile"], check=True)
    (clone.parent / "there/.git").mkdir(parents=True)
    (clone.parent / "there/.git/unready").touch()
    status, output = ended(start())
    assert (status, "is not ready" in output) == (11, True)
    (clone.parent / "there/.git/unready").unlink()
    commit(clone, "Makefile", ".venv/.installed:\n\tfalse\n")
    status, output = ended(start())
    assert (status, "the Python packages could not be installed" in output) == (12, True), output
    server.cut()
    status, output = ended(start())
    assert (status, "ssh to 127.0.0.1 fails" in output) == (12, True)
