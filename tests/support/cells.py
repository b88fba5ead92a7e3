"""The cells of a sweep as a table, what each asks for, and the seeds of its prompts.

Pure: knows no server, no clock and no results. Imported by the load client, the sweep and the gate.
"""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Cell:
    """One load: how many requests are in flight, how long their prompts are and what each asks for.

    Attributes
    ----------
    concurrency
        Requests in flight, all the time.
    prompt_tokens, output_tokens
        Tokens sent and tokens asked for, of every request.
    """

    concurrency: int
    prompt_tokens: int
    output_tokens: int

    def __str__(self) -> str:
        return f"{self.concurrency}x{self.prompt_tokens}"

    @property
    def requests(self) -> int:
        """Requests measured: every slot is used at least twice, and never fewer than 8 in all."""
        return max(8, 2 * self.concurrency)

    def infeasible_in(self, context_tokens: int) -> str:
        """Why a server with this context cannot hold the cell, or nothing."""
        wanted = self.prompt_tokens + self.output_tokens
        if wanted <= context_tokens:
            return ""
        return f"{wanted} tokens of prompt and output exceed the context of {context_tokens}"


@dataclass(frozen=True)
class Grid:
    """A named set of cells, and how often each is measured."""

    name: str
    cells: tuple[Cell, ...]
    repeats: int


def _grid(
    name: str, concurrency: tuple[int, ...], prompt: tuple[int, ...], output: int, repeats: int
) -> Grid:
    cells = tuple(Cell(users, tokens, output) for tokens in prompt for users in concurrency)
    return Grid(name, cells, repeats)


GRIDS: dict[str, Grid] = {
    grid.name: grid
    for grid in (
        _grid("smoke", (1, 8), (128,), output=32, repeats=3),
        _grid("article", (1, 8, 64), (128, 1024, 8192), output=512, repeats=3),
    )
}


def seed_of(nonce: str, *parts: object) -> int:
    """A seed of 64 bits for (run nonce, build, cell, repeat, ...), the same for the same parts.

    By hash and not by counting on, so that neighbouring cells never share a prompt; the parts are kept
    apart, so that ("ab", "c") and ("a", "bc") differ.
    """
    text = "\x1f".join((nonce, *map(str, parts)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
