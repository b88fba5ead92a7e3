"""Checkpoints made to hurt: each is refused by a typed error, in time and memory that do not grow with its claims.

The child process measures its own peak; nothing of a checkpoint is executed. Links have a file of their own.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from quantkit.checkpoint import Checkpoint
from quantkit.errors import BadHeader, NotACheckpoint, UnknownModel, UnsafePath
from quantkit.header import MAX_JSON_BYTES, parse_json_object
from quantkit.patterns import Budget, CostlyPattern, parse_patterns
from quantkit.verify import verify
from tests.meta.hostile import WEIGHTS, one_tensor, raw_file, tensor
from tests.meta.toy import make_toy, read_draft

INDEX = "model.safetensors.index.json"
LIMIT_S = 1.0  # of the processor, so that a busy machine does not matter
LIMIT_BYTES = 300 << 20
CHILD = """
import re, sys, time
from pathlib import Path
from quantkit.checkpoint import Checkpoint
from quantkit.errors import QuantkitError
for folder in sys.argv[1:]:
    began = time.process_time()
    try:
        Checkpoint.open(folder)
        kind = "opened"
    except QuantkitError as error:
        kind = type(error).__name__
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
    print(kind, time.process_time() - began, peak[1])
"""


BAD_FILES: dict[str, bytes] = {
    "empty": b"",
    "seven bytes": b"\0" * 7,
    "header of 10 GB": raw_file(b"{}", length=10_000_000_000),
    "header of 2^64 - 1": raw_file(b"{}", length=2**64 - 1),
    "no JSON": raw_file(b"\xff\xfe{}"),
    "a list": raw_file(b"[]"),
    "duplicate tensor": raw_file(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{}}', b"\0"),
    "duplicate field": raw_file(b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}', b"\0"),
    "deep JSON": raw_file(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "million tensors": raw_file(
        b"{"
        + b",".join(b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % n for n in range(400_000))
        + b"}"
    ),
    "many small items": raw_file(b'{"a":[' + b"0," * 8_000_000 + b"0]}"),
    "strings without end": raw_file(b'"' * 900_000),
    "backslashes": raw_file(b'"' + b"\\" * 20_000_000),
    "as many tensors as are parsed": raw_file(
        b"{"
        + b",".join(b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % n for n in range(60_000))
        + b"}"
    ),
    "negative offset": raw_file(tensor(data_offsets=[-4, 0]), b"\0" * 4),
    "offsets reversed": raw_file(tensor(data_offsets=[4, 0]), b"\0" * 4),
    "offsets of floats": raw_file(tensor(data_offsets=[0.0, 4.0]), b"\0" * 4),
    "offsets of booleans": raw_file(tensor(shape=[], dtype="U8", data_offsets=[False, True]), b"\0"),
    "three offsets": raw_file(tensor(data_offsets=[0, 4, 8]), b"\0" * 4),
    "huge shape": raw_file(tensor(shape=[2**62, 2**62], data_offsets=[0, 4]), b"\0" * 4),
    "shape that overflows to fit": raw_file(tensor(shape=[2**63 + 1, 2], data_offsets=[0, 4]), b"\0" * 4),
    "negative shape": raw_file(tensor(shape=[-2], data_offsets=[0, 4]), b"\0" * 4),
    "many dimensions": raw_file(tensor(shape=[1] * 100 + [2]), b"\0" * 4),
    "unknown dtype": raw_file(tensor(dtype="F4"), b"\0" * 4),
    "dtype of a list": raw_file(tensor(dtype=["BF16"]), b"\0" * 4),
    "further field": raw_file(tensor(code="import os"), b"\0" * 4),
    "record is a text": raw_file(b'{"a":"b"}'),
    "metadata is a list": raw_file(b'{"__metadata__":[]}'),
    "NaN in JSON": raw_file(tensor().replace(b"[2]", b"[NaN]"), b"\0" * 4),
    "number of 10,000 digits": raw_file(tensor().replace(b"[2]", b"[" + b"9" * 10_000 + b"]"), b"\0" * 4),
    "bytes behind the data": raw_file(tensor(), b"\0" * 5),
    "hole in the data": raw_file(tensor(data_offsets=[4, 8]), b"\0" * 8),
    "name with a newline": raw_file(tensor().replace(b'"a"', b'"a\\nb"'), b"\0" * 4),
    "lone surrogate as name": raw_file(tensor().replace(b'"a"', b'"\\ud800"'), b"\0" * 4),
    "name of a megabyte": raw_file(tensor().replace(b'"a"', b'"' + b"a" * (1 << 20) + b'"'), b"\0" * 4),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of one tensor."""
    return one_tensor(tmp_path / "checkpoint")


def test_the_folder_itself_is_sound(folder: Path) -> None:
    with Checkpoint.open(folder) as checkpoint:
        assert list(checkpoint.entries) == ["a"]
        assert checkpoint.rows("a", 0, 2).tolist() == [0, 0]


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, float, int]]:
    """Error, seconds and peak bytes so far of each bad file, all opened one after another by one process."""
    root = tmp_path_factory.mktemp("bad")
    folders = []
    for number, content in enumerate(BAD_FILES.values()):
        folders.append(root / str(number))
        folders[-1].mkdir()
        (folders[-1] / "config.json").write_text("{}")
        (folders[-1] / WEIGHTS).write_bytes(content)
    command = [sys.executable, "-c", CHILD, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return {
        name: (kind, float(seconds), int(kib) << 10)
        for name, (kind, seconds, kib) in zip(BAD_FILES, lines, strict=True)
    }


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_within_bounds(refusals: dict[str, tuple[str, float, int]], name: str) -> None:
    kind, seconds, peak_bytes = refusals[name]
    assert kind == "BadHeader"
    assert seconds <= LIMIT_S
    assert peak_bytes <= LIMIT_BYTES


def test_a_file_that_claims_terabytes_costs_nothing(folder: Path) -> None:
    with (folder / WEIGHTS).open("r+b") as file:
        file.truncate(1 << 40)  # sparse
        file.write((1 << 39).to_bytes(8, "little"))
    with pytest.raises(BadHeader, match="larger than the file or the limit"):
        Checkpoint.open(folder)


BAD_SHARDS = (
    "../outside.safetensors",
    "/etc/passwd.safetensors",
    "sub/inside.safetensors",
    "..\\outside.safetensors",
    "a\0b.safetensors",
    "a\nb.safetensors",
)


@pytest.mark.parametrize("shard", BAD_SHARDS)
def test_an_index_cannot_point_outside_the_folder(folder: Path, shard: str) -> None:
    (folder.parent / "outside.safetensors").write_bytes((folder / WEIGHTS).read_bytes())
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(UnsafePath, match="plain name"):
        Checkpoint.open(folder)


@pytest.mark.parametrize("weight_map", [None, [], {}, {"a": 3}, {"a": "model.bin"}, {"a\nb": WEIGHTS}])
def test_an_index_of_another_form_is_refused(folder: Path, weight_map: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(BadHeader):
        Checkpoint.open(folder)


def test_an_index_of_too_many_shards_is_refused(folder: Path) -> None:
    (folder / INDEX).write_text(
        json.dumps({"weight_map": {f"t{n}": f"{n}.safetensors" for n in range(5000)}})
    )
    with pytest.raises(NotACheckpoint, match="5000"):
        Checkpoint.open(folder)


def test_the_same_tensor_in_two_files_is_refused(folder: Path) -> None:
    (folder / "other.safetensors").write_bytes((folder / WEIGHTS).read_bytes())
    with pytest.raises(BadHeader, match="tensor a"):
        Checkpoint.open(folder)


def test_a_file_that_shrinks_while_it_is_read_is_noticed(folder: Path) -> None:
    with Checkpoint.open(folder) as checkpoint:
        (folder / WEIGHTS).write_bytes(b"")
        with pytest.raises(BadHeader, match="truncated"):
            checkpoint.rows("a", 0, 2)


@pytest.mark.parametrize("span", [(-1, 1), (0, 3), (2, 1)])
def test_rows_outside_a_tensor_are_refused(folder: Path, span: tuple[int, int]) -> None:
    with Checkpoint.open(folder) as checkpoint, pytest.raises(BadHeader):
        checkpoint.rows("a", *span)


@pytest.mark.parametrize("offset", [-1, 1, 5])
def test_bytes_outside_a_tensor_are_refused(folder: Path, offset: int) -> None:
    with Checkpoint.open(folder) as checkpoint, pytest.raises(BadHeader, match="outside the tensor"):
        checkpoint.pread_into("a", offset, bytearray(4))


@pytest.mark.parametrize(
    "text", ["", "[", "[]", "{" * 5000, '{"a":1,"a":2}', '{"a":Infinity}', '{"a":' + "9" * 5000 + "}", "\xe9"]
)
def test_json_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(BadHeader):
        parse_json_object(text.encode("latin-1"), "it")


def test_a_config_larger_than_the_limit_is_refused(folder: Path) -> None:
    with (folder / "config.json").open("wb") as file:
        file.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(BadHeader, match="at most"):
        Checkpoint.open(folder)


PATTERNS = (
    "(a+)+$",
    "(a|a)*b",
    ".*.*.*.*.*b",
    "(?=a)",
    r"(.)\1",
    "a{1,9999}",
    "(",
    "(?P<a>b)",
    "(a|b)" * 30,
    "a?" * 30,
    "a" * 513,
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_without_bound_is_refused(pattern: str) -> None:
    with pytest.raises(CostlyPattern):
        parse_patterns([f"re:{pattern}"], "ignore", Budget(500))


def test_a_list_of_very_many_patterns_is_refused() -> None:
    with pytest.raises(CostlyPattern, match="too many"):
        parse_patterns((f"re:layers{n}$" for n in range(100_000)), "ignore", Budget(1))


def test_patterns_that_many_names_would_make_costly_are_refused() -> None:
    few = parse_patterns(["re:.*.*.*z$"], "ignore", Budget(1000))
    assert few.expressions
    with pytest.raises(CostlyPattern, match="too many"):
        parse_patterns(["re:.*.*.*z$"], "ignore", Budget(2000))


@pytest.mark.parametrize(
    "pattern",
    [r".*layers\..*\.(q|k|v|o|gate|up|down)_proj$", ".*(vision|audio)_tower.*", r"model\.layers\.\d+\.mlp"],
)
def test_a_pattern_of_real_builds_is_cheap_enough_for_the_largest_model(pattern: str) -> None:
    parse_patterns([f"re:{pattern}", f"re:{pattern}$"], "ignore", Budget(2 * 411))


def test_a_pattern_is_matched_from_the_start() -> None:
    patterns = parse_patterns(["re:layers", "lm_head"], "ignore", Budget(1))
    assert patterns.matching(["layers.0"]) == {"re:layers"}
    assert patterns.matching(["model.layers.0", "model.lm_head"]) == frozenset()


def test_patterns_at_the_limit_are_matched_in_time() -> None:
    patterns = parse_patterns(["re:.*.*.*z$"], "ignore", Budget(1000))
    began = time.process_time()
    for layer in range(1000):
        patterns.matching([f"model.language_model.layers.{layer}.self_attn.q_proj"])
    assert time.process_time() - began <= 10 * LIMIT_S


@pytest.mark.parametrize(
    "change",
    [{"num_hidden_layers": 10**9}, {"hidden_size": 10**30}, {"vocab_size": True}, {"layer_types": "x"}],
)
def test_a_config_of_absurd_sizes_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    source = make_toy(tmp_path / "source")
    draft = read_draft(source)
    draft.config |= change
    draft.save(tmp_path / "absurd")
    with pytest.raises(UnknownModel):
        verify(tmp_path / "absurd", source)
