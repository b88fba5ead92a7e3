"""The journal of a build under way: which blocks are on disk, and what their bytes hash to.

One line of JSON a block, appended after the block's bytes were written, so that a build killed at any moment
can be taken up again. Knows no tensor and no format: blocks are numbers, findings are tuples.
"""

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from quantkit.errors import OutputNotUsable
from quantkit.writer import named_write_errors

JOURNAL = "build.journal"
JUST_ENDED, AGAIN = "another build that has just ended there", "run the same command again"


@dataclass(frozen=True)
class Done:
    """A block that was carried out.

    Attributes
    ----------
    source, stored
        Hashes of the bytes read and of the bytes written.
    tally
        Groups off the grid, groups with a negative step, values that come back bit by bit.
    """

    source: str
    stored: str
    tally: tuple[int, ...]


def _parsed(line: bytes) -> tuple[int, Done] | None:
    try:
        number, source, stored, tally = json.loads(line)
        return int(number), Done(str(source), str(stored), tuple(int(count) for count in tally))
    except (ValueError, TypeError):
        return None


class Journal:
    """An open journal, locked against a second build into the same folder.

    Parameters
    ----------
    folder
        The output folder.
    key
        Stands for source, options and version: a journal of another key is refused.

    Attributes
    ----------
    begun
        Whether an earlier call left it.
    done
        Blocks that earlier calls carried out, by their number.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.path = folder / JOURNAL
        self.begun = False
        self.done: dict[int, Done] = {}
        with named_write_errors(self.path):
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._claim()
            self._read(key)
        except BaseException:
            os.close(self._fd)
            raise

    def _claim(self) -> None:
        folder = f"folder {self.path.parent}"
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "wait until it has ended"
            raise OutputNotUsable(folder, got="another build writing there", hint=hint) from None
        if os.fstat(self._fd).st_nlink == 0:  # that build ended, and deleted it, after it was opened here
            raise OutputNotUsable(folder, got=JUST_ENDED, hint=AGAIN)

    def _read(self, key: str) -> None:
        lines = self.path.read_bytes().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        if not whole:
            os.ftruncate(self._fd, 0)
            self._append(json.dumps({"key": key}))
            return
        if whole[0] != json.dumps({"key": key}).encode() + b"\n":
            raise OutputNotUsable(
                f"folder {self.path.parent}",
                got="an unfinished build of another source, format, option or version",
                hint="finish that one with its own command, or delete the folder",
            )
        self.begun = True
        os.ftruncate(self._fd, sum(map(len, whole)))  # the kill may have cut the last line
        self.done = dict(found for line in whole[1:] if (found := _parsed(line)))

    def _append(self, line: str) -> None:
        data = line.encode() + b"\n"
        with named_write_errors(self.path):  # with O_APPEND a line of one thread never cuts another's
            if os.write(self._fd, data) != len(data):
                raise OSError(28, "No space left on device")

    def add(self, number: int, done: Done) -> None:
        """Record a block whose bytes are written."""
        self._append(json.dumps([number, done.source, done.stored, done.tally]))

    def remove(self) -> None:
        """Delete the journal: the build is whole, or was refused."""
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
