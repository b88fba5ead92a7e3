"""Targets and ignore lists of compressed-tensors, matched as engines do, in bounded time.

A pattern comes from a file that others wrote, and a regular expression can take for ever: only those whose
cost is bounded are run. Pure; `verify` and its parts import it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import comb

from quantkit.errors import BadHeader

REGEX = "re:"
CLASS_NAMES = frozenset({"Linear", "Embedding", "LMHead", "VocabParallelEmbedding", "ParallelLMHead"})
MAX_PATTERN = 512
MAX_EXPRESSIONS = 256  # of one list; real ones have a dozen, and each is compiled and tried on every module
MAX_COST = (
    1_000_000  # steps of all patterns together for one name of 64 characters; some tens of milliseconds
)
_NAME = 64
_RISKY = re.compile(r"\\[0-9]|\(\?(?!:)|\)[*+{]|\{|[*+?][*+]")
_UNBOUNDED = re.compile(r"(?<!\\)[*+]")  # each may try every length of the name
_BRANCH = re.compile(r"[|?]")  # each may try both ways


class CostlyPattern(BadHeader):
    """A regular expression that cannot be matched in bounded time, or none at all."""


def _cost(source: str) -> int:
    """Upper bound of the backtracking steps for one name."""
    if len(source) > MAX_PATTERN or _RISKY.search(source):
        raise CostlyPattern(f"pattern {source[:80]!r}", expected="no group repeated, no look-around")
    unbounded, branches = len(_UNBOUNDED.findall(source)), len(_BRANCH.findall(source))
    return comb(_NAME + unbounded, unbounded) << branches  # ways to cut a name, times ways to branch


@dataclass(frozen=True)
class Patterns:
    """A list of targets: exact names, class names, and regular expressions matched at the start.

    Attributes
    ----------
    names
        Exact module names and class names.
    expressions
        Compiled, each with the text it came from.
    """

    names: frozenset[str]
    expressions: tuple[tuple[str, re.Pattern[str]], ...]
    _known: dict[str, frozenset[str]] = field(default_factory=dict, compare=False, repr=False)

    def _matching(self, name: str) -> frozenset[str]:
        found = {text for text, pattern in self.expressions if pattern.match(name)}
        return frozenset(found | ({name} & self.names))

    def matching(self, names: Iterable[str]) -> frozenset[str]:
        """Targets that match any of a module's names; each name is tried once."""
        found: frozenset[str] = frozenset()
        for name in names:
            if name not in self._known:
                self._known[name] = self._matching(name)
            found |= self._known[name]
        return found

    def classes(self, class_name: str) -> frozenset[str]:
        """Class names that are part of an engine's, as ``Linear`` is of ``RowParallelLinear``."""
        return frozenset(name for name in self.names & CLASS_NAMES if name in class_name)


def parse_patterns(targets: Iterable[object], where: str) -> Patterns:
    """Check and compile a list of targets.

    Raises
    ------
    CostlyPattern
        For an entry that is no text, no regular expression, or one whose cost has no bound.
    """
    names: set[str] = set()
    expressions: dict[str, re.Pattern[str]] = {}
    total = 0
    for target in targets:
        if not isinstance(target, str):
            raise CostlyPattern(f"entry of {where}", got=type(target).__name__, expected="text")
        if not target.startswith(REGEX):
            names.add(target)
            continue
        source = target.removeprefix(REGEX)
        total += _cost(source)
        if total > MAX_COST or len(expressions) >= MAX_EXPRESSIONS:
            raise CostlyPattern(f"pattern {source[:80]!r} of {where}", got="too many patterns or repetitions")
        try:
            expressions[target] = re.compile(source)
        except (re.error, RecursionError, OverflowError) as error:
            raise CostlyPattern(f"pattern {source[:80]!r} of {where}", got=str(error)) from None
    return Patterns(frozenset(names), tuple(expressions.items()))
