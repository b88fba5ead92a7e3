"""Targets and ignore lists of compressed-tensors, matched as engines do, in bounded time.

A pattern comes from a file that others wrote, and a regular expression can take for ever: only those whose
cost is bounded are run. Pure; `verify` and its parts import it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import comb, prod

from quantkit.errors import BadHeader

REGEX = "re:"
CLASS_NAMES = frozenset({"Linear", "Embedding", "LMHead", "VocabParallelEmbedding", "ParallelLMHead"})
MAX_PATTERN = 512
MAX_ENTRIES = 50_000  # of one config, as many as a checkpoint may have tensors; real ones list a few hundred
MAX_EXPRESSIONS = 256  # of one config; real ones have a dozen, and each is compiled and tried on every module
MAX_STEPS = 50_000_000  # of all patterns of a config on all names; about a second
_NAME = 64
_RISKY = re.compile(r"\\[0-9]|\(\?(?!:)|\)[*+{]|\{|[*+?][*+]")
_UNBOUNDED = re.compile(r"(?<!\\)[*+]")  # each may try every length of the name
_OPTIONAL = re.compile(r"(?<!\\)\?")  # each may try both ways
_ESCAPED = re.compile(r"\\.")


class CostlyPattern(BadHeader):
    """A regular expression that cannot be matched in bounded time, or none at all."""


def _cost(source: str) -> int:
    """Upper bound of the backtracking steps for one name."""
    if len(source) > MAX_PATTERN or _RISKY.search(source):
        raise CostlyPattern(f"pattern {source[:80]!r}", expected="no group repeated, no look-around")
    unbounded, optional = len(_UNBOUNDED.findall(source)), len(_OPTIONAL.findall(source))
    return (comb(_NAME + unbounded, unbounded) << optional) * _ways(
        source
    )  # ways to cut a name, and to branch


def _ways(source: str) -> int:
    """Ways through the alternatives of all groups; none is repeated."""
    closed, alternatives = 1, [1]
    for mark in _ESCAPED.sub("", source):
        if mark == "|":
            alternatives[-1] += 1
        elif mark == "(":
            alternatives.append(1)
        elif mark == ")" and len(alternatives) > 1:
            closed *= alternatives.pop()
    return closed * prod(alternatives)


class Budget:
    """What all lists of one config may cost together.

    Parameters
    ----------
    names
        How many module names each pattern will be tried on.
    """

    def __init__(self, names: int) -> None:
        self._entries, self._expressions = MAX_ENTRIES, MAX_EXPRESSIONS
        self._steps = MAX_STEPS // max(1, names)

    def spend(self, target: str, where: str) -> None:
        """Count one more entry; raise where it is one too many."""
        self._entries -= 1
        if target.startswith(REGEX):
            self._expressions -= 1
            self._steps -= _cost(target.removeprefix(REGEX))
        if min(self._entries, self._expressions, self._steps) < 0:
            raise CostlyPattern(f"entry {target[:80]!r} of {where}", got="too many patterns or repetitions")


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


def parse_patterns(targets: Iterable[object], where: str, budget: Budget) -> Patterns:
    """Check and compile a list of targets.

    Raises
    ------
    CostlyPattern
        For an entry that is no text, no regular expression, or one whose cost has no bound.
    """
    names: set[str] = set()
    expressions: dict[str, re.Pattern[str]] = {}
    for target in targets:
        if not isinstance(target, str):
            raise CostlyPattern(f"entry of {where}", got=type(target).__name__, expected="text")
        budget.spend(target, where)
        if not target.startswith(REGEX):
            names.add(target)
            continue
        source = target.removeprefix(REGEX)
        try:
            expressions[target] = re.compile(source)
        except (re.error, RecursionError, OverflowError) as error:
            raise CostlyPattern(f"pattern {source[:80]!r} of {where}", got=str(error)) from None
    return Patterns(frozenset(names), tuple(expressions.items()))
