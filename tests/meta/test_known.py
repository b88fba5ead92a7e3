"""The table of known failures: entries hold where they say and nowhere else; a wrong one is an error."""

from pathlib import Path

import pytest

from tests.support.gate.known import TABLE, BadKnownFailure, known_failures

W8A8 = ("serve", "w8a8", "served weights")


@pytest.mark.parametrize(
    ("machine", "key", "flags", "holds"),
    [
        ("cpu", W8A8, {"avx2"}, True),
        ("cpu", W8A8, {"avx2", "avx512_vnni"}, False),
        ("mi300x", W8A8, {"avx2"}, False),
        ("cpu", ("serve", "fp8", "served weights"), {"avx2"}, False),
        ("cpu", ("serve", "w8a8", "logprobs"), {"avx2"}, False),
        ("cpu", ("sweep", "w8a8", "served weights"), {"avx2"}, False),
    ],
)
def test_an_entry_holds_where_it_says(
    machine: str, key: tuple[str, str, str], flags: set[str], holds: bool
) -> None:
    [entry] = known_failures()
    assert entry.holds(machine, key, frozenset(flags)) is holds


@pytest.mark.parametrize(
    ("old", "new"), [('"w8a8"', '"w8a9"'), ('machine = "cpu"', 'machine = "gpu"'), ("reason", "because")]
)
def test_an_entry_that_would_match_nothing_is_an_error(old: str, new: str, tmp_path: Path) -> None:
    spoiled = tmp_path / "known_failures.toml"
    head, entry = TABLE.read_text().split("[[failure]]")
    spoiled.write_text(f"{head}[[failure]]{entry.replace(old, new)}")
    with pytest.raises(BadKnownFailure):
        known_failures(spoiled)
