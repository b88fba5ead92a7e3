"""The command line: exit statuses, one sentence for bad input, and JSON that another program can read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quantkit.cli import main
from quantkit.convert import Summary
from quantkit.formats import FORMATS
from quantkit.provenance import Findings
from tests.unit.files import down_proj, spoil


def test_formats_lists_every_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(FORMATS)


def test_build_and_its_json(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "build",
        str(source),
        str(tmp_path / "out"),
        "--format",
        "q4w4a16emb4",
        "--workers",
        "1",
        "--json",
    ]
    assert main(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schema_version"] == 1
    assert said["modules"] == 276 + 3
    assert said["found"]["groups_off_grid"] == 0
    assert said["found"]["groups"] > 0
    assert (tmp_path / "out" / "config.json").exists()


def test_build_says_what_it_found(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", str(source), str(tmp_path / "out"), "--format", "q4w4a16"]) == 0
    said = capsys.readouterr().out
    assert "276 modules, 264 tensors copied" in said
    assert "0 off the grid" in said
    assert "0 of them from an earlier call" in said
    assert main(["build", str(source), str(tmp_path / "out"), "--format", "q4w4a16"]) == 0
    again = capsys.readouterr().out.splitlines()
    assert again == [*said.splitlines()[:-1], f"finished already, nothing was written: {tmp_path / 'out'}"]


def test_plan_reads_headers_alone(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(source), "--format", "fp8emb4", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["schema_version"], said["linears"], said["copied"], said["left_out"]) == (1, 276, 262, 3)
    assert said["tensor_bytes"] == sum(stored["bytes"] for d in said["decisions"] for stored in d["stored"])
    assert said["kv_tokens"] > 0
    assert "fit" in said["kv_tokens_basis"]
    assert said["not_eligible"] == []


def test_plan_for_many_ranks_names_what_does_not_fit(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", str(source), "--format", "q4w4a16", "--machine", "cpu", "--tensor-parallel", "8"]
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert " x down_proj, CPU WNA16: K of " in said.out
    assert "tensors  left out" in said.out
    assert said.err.startswith("quantkit: cpu with --tensor-parallel 8, got no kernel for ")
    assert len(said.err.splitlines()) == 1
    assert main([*arguments, "--json"]) == 2
    assert len(json.loads(capsys.readouterr().out)["not_eligible"]) > 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["build", "nowhere", "out", "--format", "fp8"], "nowhere"),
        (["build", "nowhere", "out", "--format", "fp9"], "expected one of bf16, fp8"),
        (["plan", "nowhere", "--format", "fp8"], "nowhere"),
        (["plan", "SOURCE", "--format", "fp8", "--machine", "abacus"], "abacus"),
        (["build", "SOURCE", "SOURCE", "--format", "fp8"], "the source itself"),
        (["verify", "SOURCE", "SOURCE"], "the source itself, expected another folder"),
        (["build", "SOURCE", "out", "--format", "fp8emb4", "--on", "SOURCE"], "quantkit.json"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([str(source) if argument == "SOURCE" else argument for argument in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("quantkit: ")
    assert len(said.err.splitlines()) == 1
    assert words in said.err
    assert list(tmp_path.iterdir()) == []


def test_every_option_of_a_build_reaches_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def noted(*given: object, **options: object) -> Summary:
        seen.extend([*given, options])
        return Summary("fp8", Path("b"), 7, 8, 9, Findings(10, 0, 2, 80), ("some.module",), 3, 1)

    seen: list[object] = []
    monkeypatch.setattr("quantkit.convert.build", noted)
    options = ["--on", "c", "--workers", "5", "--off-grid", "keep"]
    assert main(["build", "a", "b", "--format", "fp8", *options]) == 0
    assert seen == [
        *(Path("a"), Path("b"), FORMATS["fp8"]),
        {"on": Path("c"), "workers": 5, "off_grid": "keep"},
    ]
    assert capsys.readouterr().out.splitlines() == [
        "fp8: 7 modules, 8 tensors copied, 9 bytes",
        "int4: 10 groups, 0 off the grid, 2 with a negative step, 25.00% of values bit-identical",
        "left bf16, off the grid or fused with one that is: some.module",
        "3 blocks, 1 of them from an earlier call; in b",
    ]


def test_an_interrupt_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*given: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("quantkit.convert.build", interrupted)
    assert main(["build", "a", "b", "--format", "fp8"]) == 128 + 2
    assert capsys.readouterr().err == "quantkit: interrupted; run the same command again to go on\n"


def test_many_problems_are_counted_and_a_report_can_be_printed(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["build", str(source), str(out), "--format", "w8a8"]) == 0
    for layer in range(25):
        spoil(out, down_proj(layer), 5)
    capsys.readouterr()
    assert main(["verify", str(source), str(out), "--json", "-"]) == 1
    said = capsys.readouterr()
    problems = json.loads(said.out)["problems"]
    assert len(problems) >= 25
    assert len(said.err.splitlines()) == 20 + 1
    assert said.err.splitlines()[-1] == f"and {len(problems) - 20} more: --json FILE has them all"


def test_verify_of_a_build(source: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert main(["build", str(source), out, "--format", "w8a8"]) == 0
    assert main(["verify", str(source), out, "--json", str(tmp_path / "report.json")]) == 0
    assert json.loads((tmp_path / "report.json").read_text())["problems"] == []


@pytest.mark.parametrize(
    ("name", "linears", "tables", "copied"), [("fp8emb4", 276, 3, 262), ("bf16", 0, 0, 540)]
)
def test_verify_counts_tables_and_copied_tensors(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    linears: int,
    tables: int,
    copied: int,
) -> None:
    assert main(["build", str(source), str(tmp_path / "out"), "--format", name]) == 0
    capsys.readouterr()
    assert main(["verify", str(source), str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"good: {name}, ")
    assert f" values of {linears} linears and " in said
    assert f" values of {tables} tables compared, " in said
    assert f", {copied} copied tensors compared byte for byte, {copied} identical\n" in said


def test_verify_of_a_spoilt_build(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["build", str(source), str(out), "--format", "w8a8"]) == 0
    spoil(out, down_proj(4), 5)
    capsys.readouterr()
    assert main(["verify", str(source), str(out), "--card", str(tmp_path / "card.md")]) == 1
    said = capsys.readouterr()
    assert "layers.4.mlp.down_proj" in said.err
    assert said.out.startswith("faulty")
    assert "do not serve" in (tmp_path / "card.md").read_text()


@pytest.mark.parametrize("name", ["bf16", "fp8fnuz", "q4w4a16emb4"])
def test_a_model_card_holds_the_report_s_figures(source: Path, tmp_path: Path, name: str) -> None:
    out, report, text = tmp_path / "out", tmp_path / "report.json", tmp_path / "card.md"
    assert main(["build", str(source), str(out), "--format", name]) == 0
    assert main(["verify", str(source), str(out), "--json", str(report), "--card", str(text)]) == 0
    found, written = json.loads(report.read_text()), text.read_text()
    assert written.startswith(f"# {name}\n")
    assert "do not serve" not in written
    assert f"{found['size_bytes']:,} bytes" in written
    assert f"{found['values']:,}" in written
    assert all(kind in written for kind in found["kinds"])
    assert str(tmp_path) not in written


def test_the_module_runs_as_a_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "quantkit", "build", str(tmp_path / "none"), str(tmp_path / "out")]
    ended = subprocess.run(
        [*command, "--format", "fp8"], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
