"""Every field of a build's config.json, one by one: another value, none at all, or one more, and the judge says so.

The judge's part for configs is pure, so that the table can be whole. What may be absent is listed with its reason.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quantkit.as_found import AsFound, as_found
from quantkit.checkpoint import Checkpoint
from quantkit.convert import build
from quantkit.findings import Finding
from quantkit.formats import FORMATS
from quantkit.model import inventory
from quantkit.verify_config import judge_quantization
from quantkit.verify_fields import judge_fields, judge_tie
from tests.meta.test_verify_properties import is_benign_drop
from tests.meta.toy import make_toy

WRONG: tuple[Any, ...] = (None, True, False, 1, 1.0, "other", [], {}, ["re:.*up_proj$"])
NAMES = ("bf16", "fp8emb4", "w8a8", "q4w4a16ple4", "q4w4a16emb4")
Judged = tuple[dict[str, Any], dict[str, Any], AsFound]


@pytest.fixture(scope="module", params=NAMES)
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Config of a build, config of its source, and what lies in the build."""
    folder: Path = tmp_path_factory.mktemp("fields")
    make_toy(folder / "source", seed=4)
    build(folder / "source", folder / "built", FORMATS[request.param])
    with Checkpoint.open(folder / "source") as source, Checkpoint.open(folder / "built") as built:
        return built.config, source.config, as_found(inventory(source.config), built.entries, False)


def findings(config: dict[str, Any], judged: Judged) -> list[Finding]:
    """What is wrong with a config."""
    _, source, found = judged
    return [
        *judge_quantization(config, found, False),
        *judge_tie(config, found, False),
        *judge_fields(config, source),
    ]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to every value inside a JSON object, objects and lists too."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield (*at, key)
        yield from places(each, (*at, key))


def holder_of(config: dict[str, Any], path: tuple[Any, ...]) -> Any:
    """The object or list that holds a place."""
    holder: Any = config
    for key in path[:-1]:
        holder = holder[key]
    return holder


def test_the_config_itself_is_right(judged: Judged) -> None:
    assert findings(judged[0], judged) == []


def test_another_value_anywhere_is_found(judged: Judged) -> None:
    for path in places(judged[0]):
        for wrong in WRONG:
            config = copy.deepcopy(judged[0])
            holder = holder_of(config, path)
            if repr(holder[path[-1]]) != repr(wrong):
                holder[path[-1]] = wrong
                assert findings(config, judged), f"{path} may be {wrong!r}"


def test_a_field_that_is_absent_is_found(judged: Judged) -> None:
    for path in places(judged[0]):
        if not is_benign_drop(judged[0], path):
            config = copy.deepcopy(judged[0])
            del holder_of(config, path)[path[-1]]
            assert findings(config, judged), f"{path} may be absent"


def test_one_field_more_is_found(judged: Judged) -> None:
    for path in [(), *places(judged[0])]:
        config = copy.deepcopy(judged[0])
        place = holder_of(config, (*path, None))
        if isinstance(place, dict):
            place["added"] = 1
            assert findings(config, judged), f"{path} may hold more"
        elif isinstance(place, list):
            place.append("added")
            assert findings(config, judged), f"{path} may hold more"


NEUTRAL = [
    ("observer", ["minmax", None]),
    ("actorder", ["weight", "static", None, False]),
    *((key, [None, {}, False]) for key in ("block_structure", "observer_kwargs", "scale_dtype", "zp_dtype")),
]


@pytest.mark.parametrize(("key", "neutral"), NEUTRAL, ids=[key for key, _ in NEUTRAL])
def test_a_neutral_argument_says_nothing_and_any_other_value_does(
    judged: Judged, key: str, neutral: list[Any]
) -> None:
    for path in places(judged[0]):
        if path[-1] in ("weights", "input_activations") and holder_of(judged[0], path)[path[-1]]:
            for value in [*neutral, "group", [128, 128]]:
                config = copy.deepcopy(judged[0])
                holder_of(config, path)[path[-1]][key] = value
                assert (findings(config, judged) == []) is (value in neutral or key == "observer"), value


def test_very_many_groups_are_not_tried(judged: Judged) -> None:
    if "quantization_config" in judged[0]:
        config = copy.deepcopy(judged[0])
        groups = config["quantization_config"]["config_groups"]
        groups |= {f"more_{n}": {"targets": ["Linear"]} for n in range(50_000)}
        (found,) = (f for f in findings(config, judged) if f.where == "quantization_config")
        assert "config_groups" in found.expected
