"""A block of rows: the unit of memory, of work and of resume; and the encoder of each scheme.

Pure but for the thread's own buffers. It joins `grid` and `codes` behind one call; `convert` reads, calls and
writes. Peak memory of a build is a few blocks a worker, whatever the size of a tensor or a shard.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from quantkit.codes import encode_fp8_rows, encode_int8_rows
from quantkit.errors import NotEligible, OffGrid
from quantkit.formats import Scheme
from quantkit.grid import Tally, encode_int4_rows
from quantkit.header import DTYPES
from quantkit.plan import Decision

BLOCK_BYTES = 1 << 20  # of source: two such blocks and their codes stay in the caches of a core
NO_TALLY = Tally(0, 0, 0)

Array = NDArray[Any]
Encoder = Callable[[Array, Array, Array, float], Tally | int]


@dataclass(frozen=True)
class Block:
    """Rows ``start:stop`` of one decision's tensor; `number` is its place in the build."""

    number: int
    decision: Decision
    start: int
    stop: int
    row_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of source."""
        return (self.stop - self.start) * self.row_bytes


def cut(decisions: Sequence[Decision]) -> Iterator[Block]:
    """All blocks of a build; the cuts depend on the source alone, never on format or workers."""
    number = 0
    for decision in decisions:
        shape = decision.tensor.shape
        rows = shape[0] if len(shape) > 1 else 1
        row_bytes = DTYPES[decision.dtype].itemsize * decision.tensor.values // rows
        step = max(1, BLOCK_BYTES // row_bytes)
        for start in range(0, rows, step):
            yield Block(number, decision, start, min(start + step, rows), row_bytes)
            number += 1


def raw_bytes(array: Array) -> memoryview:
    """The bytes of a contiguous array, not copied."""
    return array.reshape(-1).view(np.uint8).data


def digest(*arrays: Array) -> str:
    """Hash of bytes, fast enough to be taken of everything read and written."""
    state = xxhash.xxh3_64()
    for array in arrays:
        state.update(raw_bytes(array))
    return state.hexdigest()


def _int4(bits: Array, codes: Array, scales: Array, code_max: float) -> Tally:
    return encode_int4_rows(bits, codes, scales)


ENCODERS: dict[str, Encoder] = {  # by the dtype tag of the codes
    "I32": _int4,
    "I8": encode_int8_rows,
    "F8_E4M3": encode_fp8_rows,
    "F8_E4M3FNUZ": encode_fp8_rows,
}


class Workspace:
    """One worker's buffers, reused from block to block."""

    def __init__(self, largest_bytes: int) -> None:
        self._source = np.empty(largest_bytes, np.uint8)
        self._codes = np.empty(largest_bytes, np.uint8)
        self._scales = np.empty(2 * largest_bytes, np.uint8)

    def source(self, block: Block) -> Array:
        """Room for the block's source bytes, uint8."""
        return self._source[: block.size_bytes]

    def room(self, block: Block) -> list[Array]:
        """Room for what one module stores of the block: codes, scales, and the shape with the first rows."""
        found: list[Array] = []
        for stored, buffer in zip(block.decision.stored[0], (self._codes, self._scales), strict=False):
            rows = block.stop - block.start
            raw = buffer[: rows * stored.row_bytes].view(DTYPES[stored.dtype])
            found.append(raw.reshape(rows, -1))
        if block.start == 0 and len(block.decision.stored[0]) > len(found):
            found.append(np.array(block.decision.tensor.shape, np.int64))
        return found

    def encode(self, block: Block, scheme: Scheme) -> tuple[list[Array], Tally]:
        """Codes, scales and findings of the source bytes that lie in this workspace.

        Raises
        ------
        OffGrid
            Where int4 would change values.
        NotEligible
            Where the source holds infinity or NaN.
        """
        bits = self.source(block).view(np.uint16).reshape(block.stop - block.start, -1)
        room = self.room(block)
        found = ENCODERS[scheme.code_dtype](bits, room[0], room[1], scheme.code_max)
        if isinstance(found, Tally):
            return room, found
        if found:
            raise NotEligible(
                _place(block), got=f"infinity or NaN in {found} rows", expected="finite weights"
            )
        return room, NO_TALLY


def _place(block: Block) -> str:
    return f"rows {block.start} to {block.stop - 1} of {block.decision.tensor.name}"


def refuse_off_grid(block: Block, tally: Tally) -> None:
    """Raise where a block that goes to int4 has groups off the grid."""
    if tally.off_grid:
        groups = block.size_bytes // 64
        hint = (
            "is this a QAT checkpoint? --off-grid keep leaves such linears bf16; tables must be on the grid"
        )
        raise OffGrid(_place(block), got=f"{tally.off_grid} of {groups} groups off the 4-bit grid", hint=hint)
