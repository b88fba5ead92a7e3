"""What a user does by accident: one sentence on standard error and status 2, whatever was written or named."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quantkit.cli import main

# As at a prompt: what is still buffered when the output breaks is flushed once more as the interpreter ends.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
PLAN = ("plan", "SOURCE", "--format", "fp8")
BUILD = ("build", "SOURCE", "out", "--format", "fp8")
MISSPELT: dict[tuple[str, ...], str] = {  # arguments -> words of the sentence
    (): "required: command",
    ("frob",): "invalid choice: 'frob'",
    PLAN[:2]: "required: --format",
    (*PLAN, "--frob"): "unrecognized arguments: --frob",
    (*PLAN, "--tensor-parallel", "0"): "got '0', expected a number from 1 to 256",
    (*BUILD, "--off-grid", "maybe"): "invalid choice: 'maybe'",
}
for number in ("0", "-1", "many", "257"):
    MISSPELT[*BUILD, "--workers", number] = f"got '{number}', expected a number from 1 to 256"


@pytest.mark.parametrize("arguments", MISSPELT)
def test_a_command_that_is_none(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("quantkit: ")
    assert len(said.err.splitlines()) == 1
    assert MISSPELT[arguments] in said.err


@pytest.fixture
def odd(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with names that lead nowhere, or to the source."""
    monkeypatch.chdir(tmp_path)
    Path("dangling").symlink_to("nowhere")
    Path("loop").symlink_to("loop")
    Path("same").symlink_to(source)
    os.mkfifo("pipe")
    return tmp_path


UNUSABLE = {
    "dangling": "got no folder",
    "loop": "got no folder",
    "pipe": "got no folder",
    "same": "got the source itself",
    "x" * 300: "got File name too long",
}


@pytest.mark.parametrize("out", UNUSABLE)
def test_an_output_that_is_no_folder(
    source: Path, odd: Path, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(odd.iterdir())
    assert main(["build", str(source), out, "--format", "fp8"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("quantkit: ")
    assert len(said.splitlines()) == 1
    assert f"{out}, {UNUSABLE[out]}" in said
    assert set(odd.iterdir()) == before


@pytest.mark.parametrize("option", [("build", "pipe", "out"), ("plan", "loop"), ("plan", "x" * 300)])
def test_a_source_that_is_no_folder(
    odd: Path, option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*option, "--format", "fp8"]) == 2
    assert capsys.readouterr().err.startswith(f"quantkit: {option[1]}, got ")


def test_a_finished_build_whose_record_is_a_pipe_is_not_read(source: Path, odd: Path) -> None:
    assert main(["build", str(source), "out", "--format", "bf16"]) == 0
    Path("out/quantkit.json").unlink()
    os.mkfifo("out/quantkit.json")
    assert main(["build", str(source), "out", "--format", "bf16"]) == 2


def test_a_side_file_that_leads_outside_is_refused_before_the_first_byte(source: Path, odd: Path) -> None:
    copy = Path(shutil.copytree(source, "copy"))
    (copy / "notes.txt").symlink_to("/etc/passwd")
    assert main(["build", str(copy), "out", "--format", "fp8"]) == 2
    assert not Path("out").exists()


def as_program(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    """The command line in a process of its own, its standard error piped."""
    command = [sys.executable, "-m", "quantkit", *arguments]
    options = {"env": BUFFERED, **options}
    return subprocess.Popen(command, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]


UNHEARD = pytest.mark.parametrize(
    "command", [("formats",), (*PLAN, "--json"), ("--help",), ("plan", "--help")]
)
SPACE = b"quantkit: standard output, got No space left on device\n"


@UNHEARD
def test_a_reader_that_has_gone_is_no_error(source: Path, command: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    program = as_program(*(str(source) if word == "SOURCE" else word for word in command), stdout=writing)
    os.close(writing)
    assert program.communicate(timeout=120)[1] == b""
    assert program.returncode == 128 + 13  # as a shell counts SIGPIPE


@UNHEARD
@pytest.mark.parametrize("env", [BUFFERED, BUFFERED | {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "at once"])
def test_an_output_that_is_full_is_one_sentence(
    source: Path, command: tuple[str, ...], env: dict[str, str]
) -> None:
    with Path("/dev/full").open("wb") as full:
        words = (str(source) if word == "SOURCE" else word for word in command)
        program = as_program(*words, stdout=full, env=env)
        assert (program.communicate(timeout=120)[1], program.returncode) == (SPACE, 2)


def test_names_of_any_bytes_in_a_locale_without_them(source: Path, tmp_path: Path) -> None:
    out = tmp_path / ("öut ☃ " + os.fsdecode(b"\xff"))
    program = as_program(
        *("build", str(source), str(out), "--format", "bf16"),
        stdout=subprocess.PIPE,
        env=BUFFERED | {"PYTHONIOENCODING": "ascii"},
    )
    said, errors = program.communicate(timeout=120)
    assert (program.returncode, errors) == (0, b"")
    assert said.isascii()
    assert (out / "config.json").exists()
