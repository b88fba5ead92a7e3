"""The judge of builds is judged: every fault of the catalogue, on every format it can befall.

Each cell of the table fault x format is a run with the fault named, or a reason why it cannot be; kinds of
findings and rows of the catalogue list each other.
"""

from pathlib import Path

import pytest

from quantkit.cli import main
from quantkit.convert import build
from quantkit.errors import QuantkitError
from quantkit.findings import KINDS
from quantkit.formats import FORMATS
from quantkit.verify import verify
from tests.meta.faults_checkpoint import CHECKPOINT_FAULTS, CONDITIONS, UNREADABLE, Fault
from tests.meta.toy import fresh_copy, make_toy, read_draft

KNOWN = 28
CAUSES = {  # why values are wrong: one that is not so would send its reader astray
    "step_rule", "nibble_sign", "nibble_order", "packed_transposed", "scales_permuted", "rows_permuted",
    "fp8_flavour", "other_module", "other_source",
}  # fmt: skip
CELLS = [
    pytest.param(fault, name, id=f"{fault.number}-{fault.name}-{name}")
    for fault in CHECKPOINT_FAULTS
    for name, fmt in FORMATS.items()
    if CONDITIONS[fault.applies][0](fmt)
]


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the toy source and a good build of each format."""
    folder = tmp_path_factory.mktemp("builds")
    make_toy(folder / "source")
    for name, fmt in FORMATS.items():
        build(folder / "source", folder / name, fmt)
    return folder


def spoiled(fault: Fault, builds: Path, name: str, folder: Path) -> str:
    """Make the miniature; returns where the defect is."""
    if fault.on_folder:
        return fault.spoil(fresh_copy(builds / name, folder))
    draft = read_draft(builds / name)
    place = fault.spoil(draft, read_draft(builds / "source"))
    draft.save(folder)
    return place


@pytest.mark.parametrize("name", FORMATS)
def test_a_good_build_has_no_problem(builds: Path, name: str) -> None:
    report = verify(builds / "source", builds / name)
    assert [str(problem) for problem in report.problems] == []
    assert report.found.format.name == name


@pytest.mark.parametrize("name", FORMATS)
def test_a_draft_saved_unchanged_is_still_good(builds: Path, name: str, tmp_path: Path) -> None:
    read_draft(builds / name).save(tmp_path / "copy")
    assert verify(builds / "source", tmp_path / "copy").good


@pytest.mark.parametrize(("fault", "name"), CELLS)
def test_a_fault_is_named(fault: Fault, name: str, builds: Path, tmp_path: Path) -> None:
    place = spoiled(fault, builds, name, tmp_path / "spoiled")
    if fault.kinds == (UNREADABLE,):
        with pytest.raises(QuantkitError, match=place.replace(".", r"\.")):
            verify(builds / "source", tmp_path / "spoiled")
        return
    problems = verify(builds / "source", tmp_path / "spoiled").problems
    for kind in fault.kinds:
        where = [problem.where for problem in problems if problem.kind == kind]
        assert any(place in name for name in where), (
            f"{kind} not found at {place}: {[str(p) for p in problems]}"
        )
    assert {problem.kind for problem in problems} & CAUSES <= set(fault.kinds), "a wrong cause is named"


@pytest.mark.parametrize(
    ("number", "status"), [("17", 2), ("20", 2), ("1", 1), ("5", 1), ("11", 1), ("21", 1), ("24", 1)]
)
def test_the_exit_status_tells_faulty_from_unreadable(
    number: str, status: int, builds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = next(fault for fault in CHECKPOINT_FAULTS if fault.number == number)
    spoiled(fault, builds, "q4w4a16emb4", tmp_path / "spoiled")
    assert main(["verify", str(builds / "source"), str(tmp_path / "spoiled")]) == status
    complaint = capsys.readouterr().err
    assert complaint
    assert "Traceback" not in complaint


def test_every_fault_known_from_reports_has_a_miniature() -> None:
    numbers = {fault.number.rstrip("bcd") for fault in CHECKPOINT_FAULTS if not fault.number.startswith("+")}
    assert numbers == {str(number) for number in range(1, KNOWN + 1)}
    names = [fault.name for fault in CHECKPOINT_FAULTS]
    assert len(names) == len(set(names))


def test_the_table_has_no_hole() -> None:
    for fault in CHECKPOINT_FAULTS:
        applies, reason = CONDITIONS[fault.applies]
        spared = [name for name, fmt in FORMATS.items() if not applies(fmt)]
        assert len(spared) < len(FORMATS), f"{fault.name} befalls no format"
        assert not spared or reason, f"no reason why {fault.name} spares {spared}"


def test_catalogue_and_findings_list_each_other() -> None:
    named = {kind for fault in CHECKPOINT_FAULTS for kind in fault.kinds} - {UNREADABLE}
    assert named == set(KINDS)
