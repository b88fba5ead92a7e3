"""The control: what was not trained on the 4-bit grid must be called off it, and must not be packed.

A grid search that finds a lattice in noise would make every fidelity figure of int4 worthless.
"""

import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from quantkit.checkpoint import Checkpoint
from quantkit.convert import build as write_build
from quantkit.errors import OffGrid
from quantkit.formats import format_named
from quantkit.left_dense import groups_off_lattice
from quantkit.model import Role, inventory
from tests.support.settings import Settings

GAUSSIAN_GROUPS = 20_000
SAMPLE_ROWS = 256


def _bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)


def test_noise_is_off_the_grid(row: dict[str, Any]) -> None:
    """Every one of 20,000 groups of Gaussian noise."""
    noise = _bits(np.random.default_rng(0).normal(size=(GAUSSIAN_GROUPS, 32)) * 0.02)
    row.update(groups=GAUSSIAN_GROUPS, groups_off_grid=groups_off_lattice(noise))
    assert row["groups_off_grid"] == GAUSSIAN_GROUPS


def test_source_is_on_the_grid(settings: Settings, row: dict[str, Any]) -> None:
    """The first rows of every linear and table of the source."""
    row.update(groups=0, groups_off_grid=0)
    with Checkpoint.open(settings.source) as source:
        implied = inventory(source.config)
        for tensor in (*implied.of(Role.LINEAR), *implied.of(Role.TABLE)):
            block = source.rows(tensor.name, 0, min(SAMPLE_ROWS, tensor.shape[0]))
            row["groups"] += block.size // 32
            row["groups_off_grid"] += groups_off_lattice(block)
    assert row["groups"] > 0
    assert row["groups_off_grid"] == 0


def test_other_group_size_does_not_fit(settings: Settings, row: dict[str, Any]) -> None:
    """Groups of 32 begin where the lattice changes: shifted by half a group, hardly any fits."""
    with Checkpoint.open(settings.source) as source:
        tensor = max(inventory(source.config).of(Role.LINEAR), key=lambda tensor: tensor.shape[1])
        block = source.rows(tensor.name, 0, min(SAMPLE_ROWS, tensor.shape[0]))
    shifted = np.ascontiguousarray(block[:, 16:-16])
    row.update(groups=shifted.size // 32, groups_off_grid=groups_off_lattice(shifted))
    assert row["groups_off_grid"] >= 0.9 * row["groups"]


def test_noise_is_not_packed(settings: Settings, tmp_path: Path, row: dict[str, Any]) -> None:
    """A source with one linear of noise is refused as int4, by the linear's name."""
    folder = tmp_path / "noisy"
    shutil.copytree(settings.source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    with Checkpoint.open(settings.source) as source:
        if len(source.metadata) > 1 or sum(e.size_bytes for e in source.entries.values()) > 1 << 26:
            pytest.skip("the source is too large to copy for a control; the nano's run has it")
        entry = source.entries[inventory(source.config).of(Role.LINEAR)[0].name]
    data = bytearray(entry.file.read_bytes())
    noise = _bits(np.random.default_rng(1).normal(size=entry.shape) * 0.02)
    data[entry.begin : entry.end] = noise.tobytes()
    (folder / entry.file.name).write_bytes(data)
    with pytest.raises(OffGrid, match=entry.name.removesuffix(".weight")) as refused:
        write_build(folder, tmp_path / "out", format_named("q4w4a16"))
    row["refused"] = str(refused.value)
    assert not (tmp_path / "out" / "config.json").exists()
