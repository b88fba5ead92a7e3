"""How figures are written: one function a kind of figure, the same in terminal, Markdown and page. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.report.run import Gap

GIB = 1024**3


def rate(value: float) -> str:
    """Tokens a second with three or more figures that mean something: ``47.8``, ``1,945``."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def ratio(value: float) -> str:
    """``0.75×``."""
    return f"{value:.2f}×"


def percent(value: float) -> str:
    """A share as ``1.5 %``; small ones keep two figures."""
    return f"{value * 100:.1f} %" if value >= 0.001 or value == 0 else f"{value * 100:.2g} %"


def share(value: float) -> str:
    """A share in whole per cent: ``50 %``."""
    return f"{value * 100:.0f} %"


def size(value: float) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def gib(value: float) -> str:
    """GiB as ``7.07 GiB``, in a smaller unit where that would be nothing."""
    return f"{value:.2f} GiB" if value >= 0.1 else size(value * GIB)


def milliseconds(value: float) -> str:
    """Seconds as ``3.83 ms``."""
    return f"{value * 1000:.2f} ms" if value < 0.1 else f"{value * 1000:,.0f} ms"


def seconds(value: float) -> str:
    """``181.9 s``."""
    return f"{value:.1f} s"


def whole(value: float) -> str:
    """``9,017,531``."""
    return f"{value:,.0f}"


def error(value: float) -> str:
    """A relative error with three significant figures."""
    return "0" if value == 0 else f"{value:.3g}"


def dollars(value: float) -> str:
    """US dollars: ``$2.13``; cents and below keep two figures."""
    return f"${value:.2f}" if value >= 0.1 else f"${value:.2g}"


def text(value: object) -> str:
    """As it is; lists joined by commas, flags as yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | frozenset | set):
        return ", ".join(str(each) for each in value)
    return str(value)


FORMS: dict[str, Callable[[Any], str]] = {
    "rate": rate,
    "ratio": ratio,
    "percent": percent,
    "size": size,
    "gib": gib,
    "ms": milliseconds,
    "s": seconds,
    "whole": whole,
    "error": error,
    "usd": dollars,
    "text": text,
}


def written(form: str, value: Any) -> str:
    """A value as its column's form says; a Gap as ``not measured``, a word as itself."""
    if isinstance(value, Gap | str):
        return str(value)
    if form != "text" and (isinstance(value, bool) or not isinstance(value, int | float)):
        return text(value)
    return FORMS[form](value)


def is_(names: Sequence[str]) -> str:
    """``is`` for one name, ``are`` for more."""
    return "is" if len(names) == 1 else "are"


def was(names: Sequence[str]) -> str:
    """``was`` for one name, ``were`` for more."""
    return "was" if len(names) == 1 else "were"


def listed(names: Sequence[str], last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"
