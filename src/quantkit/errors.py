"""Every error a user can meet, one sentence each: what, got, expected, hint.

Imports nothing. Everything in the project may import it. An error is a value with fields, so that a
caller can act on it and a test can name it; the message is made from the fields alone.
"""


class QuantkitError(Exception):
    """Root of all errors of this package.

    Parameters
    ----------
    what
        The thing that is wrong, as the user would name it.
    got, expected
        What was found there, and what would have been right.
    hint
        The next step to take.
    """

    def __init__(self, what: str, *, got: object = None, expected: object = None, hint: str = "") -> None:
        self.what = what
        self.got = got
        self.expected = expected
        self.hint = hint
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        parts = [self.what]
        if self.got is not None:
            parts.append(f"got {self.got}")
        if self.expected is not None:
            parts.append(f"expected {self.expected}")
        sentence = ", ".join(parts)
        return f"{sentence} ({self.hint})" if self.hint else sentence


class NotACheckpoint(QuantkitError):
    """The folder is not a checkpoint that can be read at all."""


class BadHeader(QuantkitError):
    """A safetensors file or its index contradicts itself or the disk."""


class UnsafePath(QuantkitError):
    """A path from a file points outside the checkpoint's folder."""


class UnknownModel(QuantkitError):
    """No record describes this architecture, so nothing is known about which tensors are linears."""


class UnknownFormat(QuantkitError):
    """There is no build of that name."""


class TensorSetMismatch(QuantkitError):
    """The source lacks a tensor that its config implies, or holds one nobody knows."""


class UnknownRule(QuantkitError):
    """Another's build stores weights by a rule that is not known here, so that nothing can be said of it."""


class OffGrid(QuantkitError):
    """A tensor does not lie on the 4-bit grid, so int4 would change its values."""


class NotEligible(QuantkitError):
    """A tensor's shape cannot be stored in, or multiplied from, the format asked for."""


class OutputNotUsable(QuantkitError):
    """The output folder cannot be written, holds something else, or is the source itself."""


class BadRecord(QuantkitError):
    """A run record or baseline is truncated, inconsistent or not finite."""
