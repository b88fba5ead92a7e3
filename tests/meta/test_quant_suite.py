"""The fidelity suite's own asserts, on reports of a judge that says good whatever it saw: each figure fails alone."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from quantkit.findings import Finding
from quantkit.formats import FORMATS, INT4
from quantkit.metrics import Measure
from quantkit.model import Role
from quantkit.verify import Report
from tests.quant.faulty import NAMED, FaultyBuild, refuse_faulty
from tests.quant.test_fidelity import test_bounds as bounds
from tests.quant.test_fidelity import test_copied as copied
from tests.quant.test_fidelity import test_fidelity as fidelity
from tests.quant.test_fidelity import test_grid as grid
from tests.quant.test_fidelity import test_served_view as served_view

# The largest error of a value that each format explains: over its row's absmax, of int4 over itself. As served, an
# FNUZ code below the normal range moves by 2^-10 of 240.
EXPLAINED = {
    "fp8": (16 / 448 + 2**-22, 16 / 448 + 2**-22),
    "fp8fnuz": (8 / 240 + 2**-22, 8 / 240 + 2**-10 / 240 + 2**-22),
    "w8a8": (0.5 / 127 + 2**-22, 0.5 / 127 + 2**-22),
    "q4w4a16": (3 * 2**-8, 3 * 2**-8),
}


@dataclass
class Lax:
    """A report of a judge who forgets: no problem, whatever the measure."""

    measured: Measure
    others: bool = False
    copied: int = 3
    copied_identical: int = 3
    layout: Any = field(default_factory=lambda: SimpleNamespace(missing=(), unexpected=()))

    def measure(self, role: object) -> Measure:
        return self.measured


class Infeasible(Exception):
    """The suite's test skipped; as a skip it would silence the test that looks at it."""


def run(check: Any, name: str, report: Lax) -> dict[str, Any]:
    """The row that a test of the suite makes of such a report."""
    row: dict[str, Any] = {}
    try:
        check(FORMATS[name], lambda _: cast(Report, report), row)
    except pytest.skip.Exception as skipped:
        raise Infeasible(str(skipped)) from None
    return row


def worst(stored: float, served: float, packed: bool) -> Lax:
    """One module whose largest errors are these."""
    sums = np.zeros((2, 4))
    sums[:, 3 if packed else 2] = stored, served
    return Lax(Measure(tensors=1, values=64, groups=2, sums=sums))


@pytest.mark.parametrize("name", EXPLAINED)
def test_an_error_that_the_format_explains_passes_and_no_larger_one(name: str) -> None:
    stored, served = EXPLAINED[name]
    packed = name == "q4w4a16"
    run(bounds, name, worst(stored, served, packed))
    more = 1 + 1e-6
    for one, other in ((stored * more, served), (stored, served * more), (np.nan, served), (stored, np.nan)):
        with pytest.raises(AssertionError):
            run(bounds, name, worst(one, other, packed))


def test_tables_have_the_bound_of_int4() -> None:
    """A build of fp8 with int4 tables is held to both."""
    fits = worst(0.0, 0.0, packed=True)
    fits.measured.sums[:, 3] = 3 * 2**-8
    assert run(bounds, "fp8emb4", fits)["table_as_stored"]["worst"] == 3 * 2**-8
    fits.measured.sums[:, 3] = 4 * 2**-8
    with pytest.raises(AssertionError):
        run(bounds, "fp8emb4", fits)
    run(bounds, "fp8", fits)
    assert run(bounds, "fp8emb4", Lax(Measure()))["table_as_served"]["worst"] == 0.0  # nothing of the kind


def judged(
    linears: list[Any],
    tables: dict[str, Any],
    problems: tuple[str, ...] = (),
    modules: int = 2,
    packed: int = 1,
) -> Any:
    """A report on such schemes, by module and by kind of table, that counts so many modules."""
    found = {
        Role.LINEAR: [SimpleNamespace(scheme=scheme) for scheme in linears],
        Role.TABLE: [
            SimpleNamespace(scheme=scheme, source=SimpleNamespace(kind=kind))
            for kind, scheme in tables.items()
        ],
    }
    told = {"modules": modules, "tables": {"modules": packed}, "good": True}
    return SimpleNamespace(
        problems=problems, found=SimpleNamespace(of=found.__getitem__), to_dict=lambda: told
    )


PLE, EMBED = (f"embed_tokens{end}" for end in ("_per_layer", ""))


@pytest.mark.parametrize(
    ("name", "report", "good"),
    [
        ("q4w4a16ple4", judged([INT4, INT4], {PLE: INT4, EMBED: None}), True),
        ("q4w4a16ple4", judged([INT4, INT4], {PLE: INT4, EMBED: None}, ("wrong",)), False),
        ("q4w4a16ple4", judged([INT4, None], {PLE: INT4, EMBED: None}), False),
        ("q4w4a16ple4", judged([INT4, INT4], {PLE: None, EMBED: None}), False),
        ("q4w4a16ple4", judged([INT4, INT4], {PLE: INT4, EMBED: INT4}), False),
        ("q4w4a16ple4", judged([INT4, INT4], {PLE: INT4, EMBED: None}, modules=1), False),
        ("q4w4a16ple4", judged([INT4, INT4], {PLE: INT4, EMBED: None}, packed=2), False),
        ("q4w4a16emb4", judged([INT4, INT4], {PLE: INT4, EMBED: INT4}, packed=3), True),
        ("q4w4a16emb4", judged([INT4, INT4], {PLE: INT4, EMBED: INT4}, packed=2), False),
        ("bf16", judged([None, None], {PLE: None, EMBED: None}, modules=0, packed=0), True),
        ("bf16", judged([None, None], {PLE: None, EMBED: None}, packed=0), False),
    ],
)
def test_what_is_quantized_is_what_the_format_says(name: str, report: Any, good: bool) -> None:
    """Each linear, the tables of the format and a head that is untied; and no finding of the judge is passed over."""
    if good:
        row = run(fidelity, name, report)
        assert row.keys() == {"modules", "tables"}
        return
    with pytest.raises((AssertionError, FaultyBuild)):
        run(fidelity, name, report)


@pytest.mark.parametrize(
    ("count", "head", "more"), [(1, "1 problem:", ""), (5, "5 problems:", "; and 2 more")]
)
def test_a_faulty_build_names_its_first_problems_as_verify_does(count: int, head: str, more: str) -> None:
    problems = [Finding("off_grid", f"layer{n}.q_proj", count=4) for n in range(count)]
    with pytest.raises(FaultyBuild) as refused:
        refuse_faulty("q4w4a16", problems)
    said = "; ".join(str(each) for each in problems[:NAMED])
    assert str(refused.value).startswith(f"build q4w4a16, got {head} {said}{more}, expected none (")
    assert len(str(refused.value).splitlines()) == 1
    refuse_faulty("q4w4a16", [])


@pytest.mark.parametrize(
    "wrong", [{"groups_off_grid": 1}, {"values": 65}, {"groups": 0, "values": 0}], ids=str
)
def test_every_group_is_on_the_grid(wrong: dict[str, int]) -> None:
    right: dict[str, Any] = {"tensors": 1, "values": 64, "groups": 2}
    assert run(grid, "q4w4a16", Lax(Measure(**right)))["linear_groups"] == 2
    with pytest.raises(AssertionError):
        run(grid, "q4w4a16", Lax(Measure(**{**right, **wrong})))


@pytest.mark.parametrize(
    "wrong",
    [
        {"copied_identical": 2},
        {"copied": 0, "copied_identical": 0},
        {"layout": SimpleNamespace(missing=("a",), unexpected=())},
        {"layout": SimpleNamespace(missing=(), unexpected=("a",))},
    ],
    ids=["one differs", "none", "one missing", "one more"],
)
def test_what_is_copied_is_whole(wrong: dict[str, Any]) -> None:
    run(copied, "fp8", Lax(Measure()))
    with pytest.raises(AssertionError):
        run(copied, "fp8", Lax(Measure(), **wrong))


@pytest.mark.parametrize(
    ("name", "served", "good"),
    [
        *(("fp8", 1.0, True), ("fp8", 1.0001, False), ("w8a8", 0.9999, False)),
        *(
            ("fp8fnuz", 1.0, True),
            ("fp8fnuz", 1.007, True),
            ("fp8fnuz", 1.008, False),
            ("fp8fnuz", 0.999, False),
        ),
    ],
)
def test_the_loader_changes_fnuz_alone_and_a_little(name: str, served: float, good: bool) -> None:
    sums = np.zeros((2, 4))
    sums[0, :2] = 0.01**2, 1.0
    sums[1, :2] = (0.01 * served) ** 2, 1.0
    report = Lax(Measure(tensors=1, values=64, sums=sums))
    if good:
        run(served_view, name, report)
        return
    with pytest.raises(AssertionError):
        run(served_view, name, report)


@pytest.mark.parametrize(("check", "name"), [(bounds, "bf16"), (grid, "fp8"), (served_view, "bf16")])
def test_what_cannot_exist_is_said_to_be_so(check: Any, name: str) -> None:
    with pytest.raises(Infeasible):
        run(check, name, Lax(Measure()))
    if check is not served_view:
        with pytest.raises(Infeasible, match="others made"):
            run(check, "q4w4a16", Lax(Measure(), others=True))
