"""A model card: every figure is the report's, and a report with problems says so first."""

from typing import Any

import pytest

from quantkit.card import card

PART = {
    "modules": 3,
    "values": 2048,
    "groups": 64,
    "groups_off_grid": 1,
    "negative_steps": 5,
    "values_bit_identical": 1024,
    "relative_rms_error": 0.00123456789,
    "max_err_over_row_absmax": 0.0357142,
}
REPORT: dict[str, Any] = {
    **PART,
    "build": "fp8emb4",
    "problems": [],
    "foreign": False,
    "kinds": {"mlp.down_proj": PART | {"modules": 2}},
    "tables": PART | {"values": 4096},
    "copied": 12,
    "copied_identical": 11,
    "size_bytes": 1234567,
    "served_as": "as stored",
    "as_served": {"relative_rms_error": 0.25},
}


def test_every_figure_stands_in_its_place() -> None:
    written = card(REPORT)
    figures = "| 64 | 1 | 5 | 50.00% | 0.00123457 | 0.0357142 |"
    assert f"| mlp.down_proj | 2 | 2,048 {figures}" in written
    assert f"| all linears | 3 | 2,048 {figures}" in written
    assert "| packed tables | 3 | 4,096 | 64 | 1 | 5 | 25.00% |" in written
    assert "11 of 12 copied tensors" in written
    assert "Tensors take 1,234,567 bytes." in written
    assert "(as stored), the relative RMS error is 0.25." in written
    assert "the nearest code, every scale the rule's" in written


@pytest.mark.parametrize(
    ("change", "present", "absent"),
    [
        (
            {"problems": ["a is wrong", "b too"]},
            "found 2 problems; do not serve this build.** First: a is",
            "nearest",
        ),
        ({"foreign": True}, "within the bounds of its formats", "nearest code"),
        ({"tables": {"modules": 0}}, "| all linears |", "packed tables"),
        ({"as_served": {"relative_rms_error": None}}, "the relative RMS error is not finite.", "None"),
        ({"values": 0, "values_bit_identical": 0}, "| all linears | 3 | 0 | 64 | 1 | 5 | none |", "nan"),
    ],
)
def test_what_a_report_lacks_is_not_claimed(change: dict[str, Any], present: str, absent: str) -> None:
    written = card(REPORT | change)
    assert present in written
    assert absent not in written
