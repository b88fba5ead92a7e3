"""The plotting library as one script: Vega, Vega-Lite and vega-embed, as the package vl-convert brings them.

Making the script takes two seconds, so it is kept in the user's cache under the package's version.
"""

import os
from functools import cache
from importlib.metadata import version
from pathlib import Path

VEGA_LITE = "6.4"
ENTRY = "window.vegaEmbed = vegaEmbed;"  # what the script leaves for the page


def cache_folder() -> Path:
    """Where the script is kept: ``$XDG_CACHE_HOME/quantkit``, else ``~/.cache/quantkit``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "quantkit"


def _made() -> str:
    import vl_convert

    return vl_convert.javascript_bundle(ENTRY, vl_version=VEGA_LITE).replace("</script", "<\\/script")


@cache
def vega() -> str:
    """The script, safe to stand inside a ``<script type=module>``; it defines ``window.vegaEmbed``."""
    kept = cache_folder() / f"vega-{version('vl-convert-python')}-{VEGA_LITE}.js"
    if kept.is_file():
        return kept.read_text(encoding="utf-8")
    made = _made()
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        temporary = kept.with_name(f".{kept.name}.{os.getpid()}")
        temporary.write_text(made, encoding="utf-8")
        temporary.rename(kept)
    except OSError:
        return made  # a home that cannot be written costs two seconds a report, not the report
    return made
