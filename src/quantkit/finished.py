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

LONGEST = 300  # characters of what differs: names of kept modules may be many
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
    there = {key: recorded.get(key) for key in facts} | source
    asked = {**facts, **facts["source"]}
    differing = [key for key in there | asked if key != "source" and there.get(key) != asked.get(key)]
    if differing:
        got, expected = (
            ", ".join(f"{key} {about.get(key)!r}" for key in differing)[:LONGEST] for about in (there, asked)
        )
        got = f"a finished build of another kind: {got}"
        raise OutputNotUsable(f"output {folder}", got=got, expected=expected, hint=HINT)
    if (folder / CONFIG).read_bytes() != config or not all(_intact(folder, shard) for shard in shards):
        raise OutputNotUsable(f"output {folder}", got="a build that was changed since", hint=HINT)
    return recorded


def check_hash(folder: Path, recorded: Mapping[str, Any], found: str) -> None:
    """Raise OutputNotUsable where the build was made from other weights."""
    if recorded["source"].get("hash") != found:
        raise OutputNotUsable(f"output {folder}", got="a finished build of another source", hint=HINT)
