"""What the command line says of itself: words for every argument, its version, and misspelt options by name."""

import json
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from quantkit.cli import main

NAMED = {
    "formats": [],
    "plan": ["source", "--format", "--json", "--machine", "--machines", "--tensor-parallel", "--out"],
    "build": ["source", "out", "--format", "--on", "--workers", "--off-grid", "--json"],
    "verify": ["source", "built", "--json", "--card", "--foreign"],
}
WITHOUT_DEFAULT = {"source", "out", "built", "--format"}


@pytest.mark.parametrize("command", NAMED)
def test_every_argument_has_words_and_its_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # an argument a line
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    out = capsys.readouterr().out.replace("-h, --help", "--help")
    said = dict(re.findall(r"^  (\S+)(?: [A-Z]+| {\S+})?\s+(.*)$", out, re.MULTILINE))
    assert said.pop("--help")
    assert list(said) == sorted(NAMED[command], key=lambda name: name.startswith("--"))
    for name, words in said.items():
        assert len(words.split()) >= 3, name
        assert (name in WITHOUT_DEFAULT) is ("default: " not in words), name


def test_its_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"quantkit {version('quantkit')}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["build", "a", "b", "--fromat", "fp8"], "unrecognized arguments: --fromat, expected --format ("),
        (["plan", "a", "--fromat=fp8"], "unrecognized arguments: --fromat, expected --format ("),
        (["plan", "a", "-f", "fp8"], "unrecognized arguments: -f ("),
        (["verify", "a", "b", "--xyz"], "unrecognized arguments: --xyz ("),
        (["build", "a", "--", "b", "--fromat"], "required: --format"),  # a folder of that name
        (["build", "a", "b", "--form", "fp9"], "got 'fp9'"),  # short for --format
    ],
)
def test_a_misspelt_option_is_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        sys.exit(main(arguments))
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1


def test_a_plan_is_made_for_a_machine_of_a_further_file(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = tmp_path / "more.toml"
    shipped = (Path(__file__).parents[2] / "src" / "quantkit" / "machines.toml").read_text()
    records.write_text(shipped.replace("mi300x", "abacus"))
    arguments = ["plan", str(source), "--format", "fp8", "--machine", "abacus", "--json"]
    assert main(arguments) == 2
    assert main([*arguments, "--machines", str(records)]) == 0
    assert json.loads(capsys.readouterr().out)["machine"]["name"] == "abacus"
