"""The gate in CI: the workflow file, the script that tries again, and the documents, whose every command runs here."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from quantkit.machines import machines
from tests.meta import fake_droplet, small_project

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github/workflows/gpu.yml"
# Stands in for pytest: notes its arguments, and ends with the next status of the list.
PYTHON = """#!/bin/bash
echo "$*" >> calls
read -r status < statuses; sed -i 1d statuses
echo "said by pytest" >&2
exit "$status"
"""


def workflow() -> dict[Any, Any]:
    parsed: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text())
    return parsed


def steps() -> dict[str, dict[str, Any]]:
    return {step.get("name", step.get("uses")): step for step in workflow()["jobs"]["gate"]["steps"]}


def test_every_action_is_pinned_by_commit() -> None:
    used = [step["uses"] for step in steps().values() if "uses" in step]
    assert len(used) == 2
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action) for action in used)


def test_the_runner_is_the_cards_and_a_fork_never_reaches_it() -> None:
    job = workflow()["jobs"]["gate"]
    assert job["runs-on"] == ["self-hosted", "mi300x"]
    assert job["runs-on"][1] in machines()
    assert " ".join(job["if"].split()) == (
        "github.event_name != 'pull_request' || (github.event.pull_request.head.repo.full_name == github.repository "
        "&& contains(github.event.pull_request.labels.*.name, 'gpu'))"
    )
    assert workflow()["permissions"] == {"contents": "read"}
    assert steps()["Keep the run"]["if"] == "always()"
    assert job["outputs"] == {name: f"${{{{ steps.gate.outputs.{name} }}}}" for name in ("status", "verdict")}
    assert steps()["Gate"]["id"] == "gate"


def test_it_runs_when_documented_one_run_at_a_time() -> None:
    """YAML takes the key `on` for a truth value."""
    when = workflow()[True]
    assert when.keys() == {"push", "pull_request", "schedule", "workflow_dispatch"}
    assert when["push"]["branches"] == ["main"]
    assert when["pull_request"]["types"] == ["labeled", "synchronize"]
    (nightly,) = when["schedule"]
    assert re.fullmatch(r"\d+ \d+ \* \* \*", nightly["cron"])
    assert workflow()["concurrency"] == {"group": "gpu-mi300x", "cancel-in-progress": False}


def test_the_run_is_kept_and_the_host_is_not_rebooted_under_the_runner() -> None:
    kept = steps()["Keep the run"]["with"]
    assert (kept["path"], kept["retention-days"]) == ("${{ env.RUN }}", 90)
    assert "90 days" in (ROOT / "docs/gpu-ci.md").read_text()
    assert "--no-reboot" in steps()["Host"]["run"]
    assert steps()["Packages"]["run"] == "make .venv/.installed"
    (checkout,) = (step for name, step in steps().items() if name.startswith("actions/checkout"))
    assert checkout["with"] == {"persist-credentials": False}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with the real gate script and a stand-in for pytest."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/gate", tmp_path / "scripts")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").write_text(PYTHON)
    (tmp_path / ".venv/bin/python").chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sleep").write_text('#!/bin/bash\necho "$*" >> slept\n')
    (tmp_path / "bin/sleep").chmod(0o755)
    return tmp_path


def gate(clone: Path, statuses: list[int], *args: str) -> tuple[int, list[str], str, str]:
    """Exit status, calls of pytest, job summary and job outputs of one gate run."""
    (clone / "statuses").write_text("".join(f"{status}\n" for status in statuses))
    told = {
        "GITHUB_STEP_SUMMARY": str(clone / "summary"),
        "GITHUB_OUTPUT": str(clone / "output"),
        "PATH": f"{clone}/bin:{os.environ['PATH']}",
    }
    done = subprocess.run(
        [clone / "scripts/gate", "runs/ci", *args],
        env={**os.environ, **told}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    calls = (clone / "calls").read_text().splitlines()
    return done.returncode, calls, (clone / "summary").read_text(), (clone / "output").read_text()


@pytest.mark.parametrize(
    ("statuses", "status", "tries"),
    [
        ([0], 0, 1),
        ([1, 0], 1, 1),
        ([10, 0], 10, 1),
        ([11, 0], 11, 1),
        ([12, 0], 0, 2),
        ([12, 12, 10], 10, 3),
        ([12, 12, 12, 0], 12, 3),
    ],
)
def test_only_an_infrastructure_fault_is_tried_again(
    clone: Path, statuses: list[int], status: int, tries: int
) -> None:
    got, calls, summary, output = gate(clone, statuses, "-m", "mi300x")
    assert (got, len(calls)) == (status, tries)
    assert all("-m pytest --run runs/ci" in call and call.endswith("-m mi300x") for call in calls)
    assert ["--retry-failed" in call for call in calls] == [False] + [True] * (tries - 1)
    assert [f"junit-{number}.xml" in calls[number - 1] for number in range(1, tries + 1)] == [True] * tries
    assert f"(exit status {status} at try {tries})" in summary
    assert "said by pytest" in summary  # there is no report, so the console's end says why
    assert output.splitlines()[0] == f"status={status}"
    slept = (clone / "slept").read_text().split() if tries > 1 else []
    assert slept == ["60"] * (tries - 1)


def test_a_console_that_cannot_be_kept_is_no_failure_of_the_run(clone: Path) -> None:
    (clone / "runs/ci/console-1.log").mkdir(parents=True)
    (clone / "runs/ci/report.md").touch()
    assert gate(clone, [0])[0] == 0


def test_without_a_run_it_says_how_it_is_called(clone: Path) -> None:
    done = subprocess.run([clone / "scripts/gate"], capture_output=True, text=True, check=False)
    assert (done.returncode, "scripts/gate RUN [pytest arguments]" in done.stderr) == (2, True)
    assert done.stderr.rstrip().endswith("GITHUB_OUTPUT.")


def test_the_report_is_the_jobs_summary(clone: Path) -> None:
    (clone / "runs/ci").mkdir(parents=True)
    (clone / "runs/ci/report.md").write_text("| build | ... |\n")
    _, _, summary, output = gate(clone, [10])
    assert summary == "## regression (exit status 10 at try 1)\n\n| build | ... |\n"
    assert output == "status=10\nverdict=regression\n"


@pytest.mark.parametrize(
    ("event", "compares"),
    [
        ("push", "--gate baseline --builds bf16"),
        ("schedule", "--gate ab --builds fp8 --against fp8 --builds bf16"),
    ],
)
def test_the_gate_step_calls_the_script_as_documented(clone: Path, event: str, compares: str) -> None:
    job = workflow()["jobs"]["gate"]
    (clone / "statuses").write_text("0\n")
    env = {
        **os.environ,
        **job["env"],
        "RUN": "runs/ci",
        "GITHUB_EVENT_NAME": event,
        "ARGUMENTS": "--builds bf16",
    }
    step = steps()["Gate"]
    subprocess.run(
        ["bash", "-e", "-c", step["run"]], cwd=clone, env=env, check=True, capture_output=True, timeout=60
    )
    call = (clone / "calls").read_text().strip()
    assert call.endswith(
        f"{job['env']['SUITES']} -m mi300x --checkpoints {job['env']['CHECKPOINTS']} {compares}"
    )
    assert "${{ secrets.HF_TOKEN }}" in step["env"].values()
    assert "secrets" not in step["run"]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / document).read_text(), re.DOTALL)


def commands(document: str) -> list[str]:
    lines = [line for block in blocks(document, "sh") for line in block.splitlines()]
    return [line.split(" #")[0].strip() for line in lines if line.strip()]


# Each command of the documents, and the test below that runs it, in its CPU form where it needs a card.
RUN_BY = {
    "make droplet ARGS=--check": "test_documented_droplet",
    "make droplet": "test_documented_droplet",
    ".venv/bin/python -m pytest -m mi300x --dry-run": "test_documented_runs",
    "scripts/gate runs/ci -m mi300x --gate baseline": "test_documented_runs",
    "scripts/gate runs/aa -m mi300x --gate ab --builds fp8 --against fp8": "test_documented_runs",
    ".venv/bin/python -m pytest -m mi300x --force-regen --from runs/a,runs/b,runs/c": "test_documented_runs",
    "scripts/gate runs/try tests/quant --builds q4w4a16": "test_gate_on_this_machine",
    "scripts/droplet --check --machine mi325x --machines my-machines.toml": "test_documented_record",
    ".venv/bin/python -m pytest -m mi325x --machines my-machines.toml --dry-run": "test_documented_machine",
    ".venv/bin/python -m pytest -m mi325x --machines my-machines.toml": "test_documented_machine",
}


def test_every_documented_command_is_run_here() -> None:
    assert commands("gpu-ci.md") + commands("machines.md") == list(RUN_BY)
    assert set(RUN_BY.values()) <= globals().keys()


@pytest.mark.slow
@pytest.mark.parametrize("command", [line for line, test in RUN_BY.items() if test == "test_documented_runs"])
def test_documented_runs(command: str, tmp_path: Path) -> None:
    suites = ["tests/quant", "tests/gemm", "tests/serve", "tests/sweep"]
    words = command.replace("runs/", f"{tmp_path}/").split()
    dry = [] if "--force-regen" in words else ["--dry-run"]
    desk = {**os.environ, "CI": ""}  # baselines are refreshed at a desk: in CI it is refused
    done = subprocess.run(
        [*words, *suites, *dry], cwd=ROOT, env=desk, capture_output=True, text=True, timeout=300, check=False
    )
    expected = (0, "would run on mi300x") if dry else (11, "expected a finished run")
    assert (done.returncode, expected[1] in done.stdout) == (expected[0], True), done.stdout + done.stderr


@pytest.mark.parametrize("command", ["make droplet ARGS=--check", "make droplet"])
def test_documented_droplet(command: str) -> None:
    # Below another make (make test), a make says where it is before it says what it would run.
    said = subprocess.run(
        [*command.split(), "--dry-run", "--no-print-directory"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.splitlines()[0].split() == ["scripts/droplet", *(["--check"] if "--check" in command else [])]
    assert (".venv/.installed" in said) == ("--check" not in command)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """The made-up machine of docs/machines.md, in a file."""
    [table] = blocks("machines.md", "toml")
    file = tmp_path / "my-machines.toml"
    file.write_text(table)
    return file


def test_documented_record(tables: Path, tmp_path: Path) -> None:
    record = machines(tables)["mi325x"]
    assert record.kernels == machines()["mi300x"].kernels
    droplet = fake_droplet.bare(tmp_path / "host")
    status, output = droplet.run("--check", "--machine", "mi325x", "--machines", str(tables))
    assert (status, "mi325x is gfx942" in output) == (1, True)


def test_documented_machine(tables: Path, tmp_path: Path) -> None:
    project = small_project.make(tmp_path / "project")
    here = tmp_path / "here.toml"
    here.write_text(
        re.sub(
            r"engine = .*|arch = .*",
            lambda found: {"e": 'engine = "process"', "a": 'arch = "cpu"'}[found[0][0]],
            tables.read_text(),
        )
    )
    status, output = small_project.run(project, "-m", "mi325x", "--machines", str(here), "--builds", "bf16")
    assert (status, "mi325x bills $2.49 an hour" in output) == (0, True), output
    status, output = small_project.run(project, "-m", "mi325x", "--machines", str(here), "--dry-run")
    assert (status, "would run on mi325x" in output) == (0, True), output
    status, output = small_project.run(project, "-m", "mi325x", "--machines", str(tables), "--run", "other")
    assert (status, "mi325x is not ready" in output) == (11, True), output


@pytest.mark.slow
def test_gate_on_this_machine(tmp_path: Path) -> None:
    command = next(line for line in commands("gpu-ci.md") if "runs/try" in line).replace(
        "runs/try", str(tmp_path / "run")
    )
    env = {
        **os.environ,
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
    }
    checkpoints = ["--checkpoints", str(tmp_path / "checkpoints")]
    done = subprocess.run(
        [*command.split(), *checkpoints],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert (tmp_path / "summary").read_text().startswith("## good (exit status 0 at try 1)")
    assert "q4w4a16" in (tmp_path / "summary").read_text()
    assert "<testsuite" in (tmp_path / "run/junit-1.xml").read_text()
    assert (tmp_path / "output").read_text() == "status=0\nverdict=good\n"
