"""A finished build met again: whether it is the one asked for, so that a second call has nothing to do.

Reads headers, config and provenance, never a weight. `convert` uses it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quantkit.checkpoint import CONFIG
from quantkit.errors import OutputNotUsable
from quantkit.header import read_json_object
from quantkit.provenance import PROVENANCE, check_recorded
from quantkit.writer import Shard

HINT = "choose a new folder, or delete this one"


def _intact(folder: Path, shard: Shard) -> bool:
    path = folder / shard.name
    if not path.is_file() or path.stat().st_size != shard.size_bytes:
        return False
    with path.open("rb") as file:
        return file.read(len(shard.header)) == shard.header


def read_finished(
    folder: Path, shards: Sequence[Shard], config: bytes, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The provenance of a finished build that has this config, these files and these facts.

    Raises
    ------
    OutputNotUsable
        Where it is another build, or was changed since.
    """
    recorded = read_json_object(folder / PROVENANCE)
    check_recorded(recorded, f"{PROVENANCE} of {folder}")
    source = {key: value for key, value in recorded["source"].items() if key != "hash"}
    if {**{key: recorded.get(key) for key in facts}, "source": source} != dict(facts):
        raise OutputNotUsable(f"output {folder}", got="a finished build of another kind", hint=HINT)
    if (folder / CONFIG).read_bytes() != config or not all(_intact(folder, shard) for shard in shards):
        raise OutputNotUsable(f"output {folder}", got="a build that was changed since", hint=HINT)
    return recorded


def check_hash(folder: Path, recorded: Mapping[str, Any], found: str) -> None:
    """Raise OutputNotUsable where the build was made from other weights."""
    if recorded["source"].get("hash") != found:
        raise OutputNotUsable(f"output {folder}", got="a finished build of another source", hint=HINT)
