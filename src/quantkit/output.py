"""The folder a build appears in: what may be there before, files under way, and the order of publishing.

Knows shards, journal and small files, and nothing of models or formats. Everything that is not whole carries
`.part` or is the journal; index and config come last, so that a folder with a config.json is a whole build.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from quantkit.checkpoint import CONFIG, INDEX
from quantkit.errors import OutputNotUsable
from quantkit.journal import AGAIN, JOURNAL, JUST_ENDED, Journal
from quantkit.provenance import PROVENANCE
from quantkit.writer import PART, Shard, ShardFile, Stored, index_bytes, named_write_errors, write_atomic


def prepare_folder(source: Path, out: Path, needed_bytes: int) -> bool:
    """Make the output folder; True where it holds a whole build that may be this one.

    Raises
    ------
    OutputNotUsable
        Where it is the source, no folder, cannot be written, holds other files, or its disk is too small.
    """
    with named_write_errors(out):
        if out.exists() and out.samefile(source):
            raise OutputNotUsable(f"output {out}", got="the source itself", expected="another folder")
        if os.path.lexists(out) and not out.is_dir():
            raise OutputNotUsable(f"output {out}", got="no folder", expected="a new or empty folder")
        names = {path.name for path in out.iterdir()} if out.exists() else set()
        if JOURNAL not in names and all((out / name).is_file() for name in (CONFIG, PROVENANCE)):
            return True
        if names and JOURNAL not in names:
            hint = "choose a new folder; nothing was touched"
            raise OutputNotUsable(
                f"output {out}", got=f"{len(names)} other files", expected="an empty folder", hint=hint
            )
        _check_space(out, needed_bytes)
        out.mkdir(parents=True, exist_ok=True)
    return False


def free_bytes(folder: Path) -> int:
    """Free space on the disk of a folder, or of the nearest one above it that exists."""
    return shutil.disk_usage(
        next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    ).free


def _check_space(out: Path, needed_bytes: int) -> None:
    """Refuse before the first byte what cannot fit; what an earlier call wrote counts."""
    free = free_bytes(out)
    begun = sum(path.stat().st_blocks * 512 for path in out.glob("model-*"))
    if free + begun < needed_bytes:
        raise OutputNotUsable(f"disk of {out}", got=f"{free:,} bytes free", expected=f"{needed_bytes:,}")


class Output:
    """The files of a build under way; use it as a context manager.

    Parameters
    ----------
    key
        Stands for source, options and version; an unfinished build of another key is refused.
    """

    def __init__(self, folder: Path, shards: Sequence[Shard], key: str) -> None:
        self.folder = folder
        self.shards = tuple(shards)
        self.journal = Journal(folder, key)
        self._files: list[ShardFile] = []
        self._of: dict[str, ShardFile] = {}

    def __enter__(self) -> "Output":
        try:
            if not self.journal.begun and (self.folder / CONFIG).exists():
                self.journal.remove()  # finished by another process since it was looked at
                raise OutputNotUsable(f"folder {self.folder}", got=JUST_ENDED, hint=AGAIN)
            for shard in self.shards:
                file = ShardFile(self.folder, shard)
                self._files.append(file)
                self._of.update({tensor.name: file for tensor in shard.tensors})
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            file.__exit__(kind, error, trace)
        self.journal.__exit__(kind, error, trace)

    def prepare(self, twins: Mapping[str, Path]) -> None:
        """Give every file its length and header; share the bytes of twins (shard name -> another build's file)."""
        for file in self._files:
            twin = twins.get(file.shard.name)
            if twin is None or not file.link(twin):
                file.prepare()

    def file_of(self, tensor: Stored) -> ShardFile:
        """The file that holds a tensor."""
        return self._of[tensor.name]

    def publish(self, side_files: Sequence[Path], provenance: bytes, config: bytes) -> None:
        """Give everything its final name: weights, side files, provenance, index, and the config last."""
        for file in self._files:
            file.publish()
        for path in side_files:
            write_atomic(self.folder / path.name, path)
        write_atomic(self.folder / PROVENANCE, provenance)
        write_atomic(self.folder / INDEX, index_bytes(self.shards))
        write_atomic(self.folder / CONFIG, config)
        self.journal.remove()

    def discard(self) -> None:
        """Delete all that was begun: the build was refused."""
        for path in (*self.folder.glob(f"*{PART}"), self.folder / JOURNAL):
            path.unlink(missing_ok=True)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()
