"""The tensors of each Gemma 4 size, by committed lists: inventory, groups and ignore lists are held against them.

Writer and judge read one inventory, so a wrong one would pass both. The lists in `golden` were written from the
published sizes by hand; their counts are checked against the published ones by arithmetic.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quantkit.config import build_config
from quantkit.formats import FORMATS
from quantkit.model import inventory
from quantkit.plan import make_plan

HERE = Path(__file__).parent
CONFIGS = HERE.parent / "configs"
PREFIX = "model.language_model."
SIZES = ("E2B", "E4B", "12B", "31B")
PUBLISHED = {  # linears, groups of 32 in them, text tensors of the build with int4 linears
    "E2B": (276, 58_650_624, 276 * 3 + 264),
    "E4B": (343, 124_149_760, 1_351),
    "12B": (328, 340_623_360, 1_322),
    "31B": (410, 915_210_240, 1_652),
}


@dataclass(frozen=True)
class Golden:
    """One tensor of a golden list; it has the fields that a plan reads of a header."""

    role: str
    name: str
    shape: tuple[int, ...]
    dtype: str = "BF16"

    @property
    def module(self) -> str:
        """Name of the layer."""
        return self.name.removesuffix(".weight")


def layers_of(ranges: str) -> Iterator[int]:
    """``0-4,6`` -> 0, 1, 2, 3, 4, 6."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def golden(size: str) -> dict[str, Golden]:
    """Name -> tensor of one size."""
    found: dict[str, Golden] = {}
    for line in (HERE / "golden" / f"gemma-4-{size}.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        role, kind, dimensions, where = line.split()
        shape = tuple(map(int, dimensions.split("x")))
        stems = [""] if where == "model" else [f"layers.{layer}." for layer in layers_of(where)]
        for name in (f"{PREFIX}{stem}{kind}" for stem in stems):
            assert name not in found, f"{name} twice in the list of {size}"
            found[name] = Golden(role, name, shape)
    return found


def config_of(size: str) -> dict[str, Any]:
    """The real config of one size."""
    config: dict[str, Any] = json.loads((CONFIGS / f"gemma-4-{size}.json").read_text())
    return config


@pytest.mark.parametrize("size", SIZES)
def test_the_list_has_the_published_counts(size: str) -> None:
    linears = [tensor for tensor in golden(size).values() if tensor.role == "linear"]
    others = len(golden(size)) - len(linears)
    groups = sum(tensor.shape[0] * tensor.shape[1] for tensor in linears) // 32
    assert (len(linears), groups, len(linears) * 3 + others) == PUBLISHED[size]


def test_the_largest_published_figure_by_arithmetic() -> None:
    values = sum(t.shape[0] * t.shape[1] for t in golden("E2B").values() if t.role == "linear")
    assert values == 1_876_819_968


@pytest.mark.parametrize("size", SIZES)
def test_the_inventory_is_the_list(size: str) -> None:
    implied = {
        (tensor.name, tensor.role.value, tensor.shape) for tensor in inventory(config_of(size)).tensors
    }
    listed = {(tensor.name, tensor.role, tensor.shape) for tensor in golden(size).values()}
    assert implied == listed


def engine_name(name: str) -> str:
    """What the engine calls a module of the text model."""
    return name.replace(PREFIX, "model.", 1)


def covered(targets: list[str], names: set[str]) -> set[str]:
    """Modules that a list of targets matches, from the start, under either name."""
    patterns = [re.compile(target.removeprefix("re:")) for target in targets]
    by_ours = {name for name in names if any(pattern.match(name) for pattern in patterns)}
    by_engines = {name for name in names if any(pattern.match(engine_name(name)) for pattern in patterns)}
    assert by_ours == by_engines
    return by_ours


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", SIZES)
def test_groups_and_ignore_list_are_the_list(size: str, name: str) -> None:
    tensors, fmt = golden(size), FORMATS[name]
    section = build_config(make_plan(config_of(size), tensors, fmt), config_of(size)).get(
        "quantization_config"
    )
    linears = {tensor.module for tensor in tensors.values() if tensor.role == "linear"}
    tables = {tensor.module for tensor in tensors.values() if tensor.role == "table"}
    packed = {table for table in tables if table.removeprefix(PREFIX) in fmt.tables}
    head = {"lm_head"} if packed and fmt.unties_lm_head else set()
    wanted = [modules for modules in ((linears if fmt.linears else set()), packed | head) if modules]
    if fmt.linears and fmt.linears.packed and len(wanted) == 2:
        wanted = [wanted[0] | wanted[1]]  # both int4: one group
    if not wanted:
        assert section is None
        return
    assert section is not None
    everything = linears | tables | {"lm_head"}
    groups = [covered(group["targets"], everything) for group in section["config_groups"].values()]
    assert groups == wanted
    assert section["ignore"] == ([] if head else ["lm_head"])
