"""The error of a build that the judge found faulty: its first problems by name, and how many more. Reads nothing."""

from collections.abc import Sequence

from quantkit.errors import QuantkitError
from quantkit.findings import Finding

NAMED = 3  # problems that the error names; a row of the record has one line


class FaultyBuild(QuantkitError):
    """The judge found problems in a build's weights, config or files."""


def refuse_faulty(build: str, problems: Sequence[Finding]) -> None:
    """Raise where the judge found anything.

    Raises
    ------
    FaultyBuild
        With the first problems as ``quantkit verify`` says them.
    """
    if not problems:
        return
    named = "; ".join(str(problem) for problem in problems[:NAMED])
    more = f"; and {len(problems) - NAMED} more" if len(problems) > NAMED else ""
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    raise FaultyBuild(
        f"build {build}",
        got=f"{count}: {named}{more}",
        expected="none",
        hint="quantkit verify names them all",
    )
