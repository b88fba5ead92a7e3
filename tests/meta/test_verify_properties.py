"""The judge against chance: whatever byte is spoiled it is not called good, and what is good is never called faulty.

Hypothesis draws formats, sizes, files and bytes. What may change without harm is listed, with the reason.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quantkit.convert import build
from quantkit.errors import QuantkitError
from quantkit.findings import Finding
from quantkit.formats import FORMATS
from quantkit.verify import verify
from tests.meta.toy import make_toy, read_draft

PROFILE = settings(
    deadline=None,
    derandomize=True,  # the same draws on every machine: a red test can be repeated
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
BENIGN_FILES = {
    "quantkit.json": "where the build came from: no loader reads it, and the judge trusts nothing it says",
    "README.md": "the model card: no loader reads it",
}
BENIGN_JSON = (
    "bytes between JSON's tokens, or another way to write the same text: every reader sees the same object"
)


BENIGN_DROPS = {  # (parent, field): value whose absence means the same
    ("weights", "num_bits"): (8, "the library's default"),
    ("weights", "type"): ("int", "the library's default"),
    ("weights", "symmetric"): (True, "the library's default"),
    ("weights", "dynamic"): (False, "the library's default"),
    ("input_activations", "num_bits"): (8, "the library's default"),
    ("input_activations", "type"): ("int", "the library's default"),
    ("input_activations", "symmetric"): (True, "the library's default"),
    ("group", "input_activations"): (None, "null says the same"),
    ("group", "output_activations"): (None, "null says the same"),
    ("group", "format"): (None, "the format of all groups stands beside them"),
    ("quantization_config", "kv_cache_scheme"): (None, "null says the same"),
    ("quantization_config", "ignore"): ([], "nothing is left dense"),
}


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy source and a build of each format."""
    folder = tmp_path_factory.mktemp("builds")
    make_toy(folder / "source", seed=1)
    for name, fmt in FORMATS.items():
        build(folder / "source", folder / name, fmt)
    return folder


def judged(source: Path, built: Path) -> tuple[Finding, ...] | str:
    """Problems, or the sentence with which it was refused; any other exception is a traceback, and fails."""
    try:
        return verify(source, built).problems
    except QuantkitError as error:
        return str(error)


def modules_of(folder: Path) -> list[str]:
    """Names of everything with a weight, as checkpoint and engine call it."""
    tensors = [name.rpartition(".")[0] for name in read_draft(folder).names() if ".weight" in name]
    return sorted({*tensors, *(name.replace(".language_model.", ".") for name in tensors)})


def covered(target: Any, names: list[str]) -> list[Any]:
    """What a target covers: two ways to write a list that cover the same together are no difference."""
    if target == "Linear":
        return [name for name in names if name.endswith(("_proj", "_gate", "_projection"))]
    if not isinstance(target, str) or not target.startswith("re:"):
        return [target]
    try:
        return [name for name in names if re.match(target[3:], name)]
    except re.error:
        return [target]


def meaning(config: Any, names: list[str]) -> str:
    """A config with all targets of a group replaced by what they cover, and without the names of its groups."""
    copy = json.loads(json.dumps(config))
    try:
        groups = copy["quantization_config"].pop("config_groups")
        copy["groups"] = [
            {**group, "targets": sorted({repr(each) for t in group["targets"] for each in covered(t, names)})}
            for group in groups.values()
        ]
    except (KeyError, TypeError, AttributeError):
        return repr(config)
    return repr(copy)


def same_json(path: Path, before: bytes, after: bytes) -> bool:
    """Whether a JSON file, or a safetensors header, still says the same."""

    def parsed(data: bytes) -> Any:
        if path.suffix != ".safetensors":
            return meaning(json.loads(data), modules_of(path.parent))
        end = 8 + int.from_bytes(data[:8], "little")
        return json.loads(data[8:end]), data[end:]

    if path.suffix not in (".safetensors", ".json"):
        return False
    try:
        return repr(parsed(before)) == repr(parsed(after))
    except ValueError:
        return False


def spoil_and_judge(builds: Path, name: str, path: Path, spoiled: bytes) -> tuple[Finding, ...] | str:
    """The verdict with other bytes in one file, which is put back afterwards."""
    before = path.read_bytes()
    path.write_bytes(spoiled)
    try:
        return judged(builds / "source", builds / name)
    finally:
        path.write_bytes(before)


@settings(PROFILE, max_examples=150)
@given(
    name=st.sampled_from(sorted(FORMATS)),
    which=st.integers(0, 99),
    at=st.floats(0, 1, exclude_max=True),
    flip=st.integers(1, 255),
)
def test_no_spoiled_byte_is_called_good(builds: Path, name: str, which: int, at: float, flip: int) -> None:
    files = sorted(path for path in (builds / name).iterdir() if path.name not in BENIGN_FILES)
    path = files[which % len(files)]
    before = path.read_bytes()
    spoiled = bytearray(before)
    spoiled[int(at * len(before))] ^= flip
    # Side files are compared by bytes: for them no change at all is benign.
    structural = path.suffix == ".safetensors" or path.name in ("config.json", "model.safetensors.index.json")
    if structural and same_json(path, before, bytes(spoiled)):
        return
    assert spoil_and_judge(builds, name, path, bytes(spoiled))


@settings(PROFILE, max_examples=150)
@given(
    name=st.sampled_from(sorted(FORMATS)),
    which=st.integers(0, 10_000),
    at=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_no_flipped_bit_of_a_tensor_is_called_good(
    builds: Path, name: str, which: int, at: float, bit: int
) -> None:
    """Tensors drawn with equal chance, so that small ones and scales are hit as often as large ones."""
    spans = []
    for path in sorted((builds / name).glob("*.safetensors")):
        data = path.read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:begin])
        offsets = (r["data_offsets"] for tensor, r in header.items() if tensor != "__metadata__")
        spans += [(path, begin + start, begin + stop) for start, stop in offsets]
    path, start, stop = spans[which % len(spans)]
    spoiled = bytearray(path.read_bytes())
    spoiled[start + int(at * (stop - start))] ^= 1 << bit
    assert spoil_and_judge(builds, name, path, bytes(spoiled))


def leaves(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to every value of a JSON object that holds no other."""
    if isinstance(value, dict) and value:
        return [path for key, each in value.items() for path in leaves(each, (*at, key))]
    if isinstance(value, list) and value:
        return [path for index, each in enumerate(value) for path in leaves(each, (*at, index))]
    return [at]


def is_benign_drop(config: dict[str, Any], path: tuple[Any, ...]) -> bool:
    """Whether a field may be absent, since its absence means what it says."""
    section = config["quantization_config"] if path[0] == "quantization_config" else config
    parent = "group" if len(path) == 4 else path[-2] if len(path) > 1 else ""
    if (parent, path[-1]) == ("group", "format"):
        return bool(section["format"] != "mixed-precision")
    value = config
    for key in path:
        value = value[key]
    listed = BENIGN_DROPS.get((parent, path[-1]))
    return listed is not None and repr(value) == repr(listed[0])


JSON_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=8),
) | st.sampled_from([[], {}, "re:.*", "Linear", "re:(", 10**30, [[[]]], {"a": {}}])


@settings(PROFILE, max_examples=150)
@given(
    name=st.sampled_from(sorted(FORMATS)),
    which=st.integers(0, 10_000),
    value=JSON_VALUES,
    how=st.sampled_from(["replace", "drop", "add"]),
)
def test_no_changed_field_of_the_config_is_called_good(
    builds: Path, name: str, which: int, value: Any, how: str
) -> None:
    path = builds / name / "config.json"
    config = json.loads(path.read_text())
    names = modules_of(builds / name)
    before = meaning(config, names)
    paths = leaves(config)
    path_in_config = paths[which % len(paths)]
    if how == "drop" and is_benign_drop(config, path_in_config):
        return
    *parents, last = path_in_config
    holder = config
    for key in parents:
        holder = holder[key]
    if how == "replace":
        holder[last] = value
    elif how == "drop":
        del holder[last]
    elif isinstance(holder, dict):
        holder["added"] = value
    else:
        holder.append(value)
    if meaning(config, names) == before:
        return
    assert spoil_and_judge(builds, name, path, json.dumps(config).encode())


SIZES = st.fixed_dictionaries(
    {
        "hidden_size": st.sampled_from([32, 64, 96, 160]),
        "intermediate_size": st.sampled_from([32, 64, 224]),
        "hidden_size_per_layer_input": st.sampled_from([0, 32, 64]),
        "vocab_size": st.sampled_from([8, 33, 96]),
        "vocab_size_per_layer_input": st.sampled_from([8, 40]),
        "num_attention_heads": st.sampled_from([1, 2, 3]),
        "num_key_value_heads": st.sampled_from([1, 2]),
        "num_global_key_value_heads": st.sampled_from([1, 2]),
        "num_kv_shared_layers": st.integers(0, 3),
        "attention_k_eq_v": st.booleans(),
        "use_double_wide_mlp": st.booleans(),
    }
)


@settings(PROFILE, max_examples=60)
@given(name=st.sampled_from(sorted(FORMATS)), sizes=SIZES, seed=st.integers(0, 2**32 - 1))
def test_a_good_build_is_never_called_faulty(
    tmp_path_factory: pytest.TempPathFactory, name: str, sizes: dict[str, Any], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("good")
    source = make_toy(folder / "source", seed, **sizes)
    build(source, folder / "built", FORMATS[name])
    problems = judged(source, folder / "built")
    assert [str(problem) for problem in problems] == []
    shutil.rmtree(folder)
