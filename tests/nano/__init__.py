"""Where the small trained Gemma 4 checkpoint lies; its makers are the modules beside this file.

Pure paths: importing this package loads neither torch nor transformers.
Suites and `tests.support` may import `NANO`; only `tests.meta` imports the makers.
"""

from pathlib import Path

NANO: Path = Path(__file__).parent / "gemma-4-nano"
CHAT_TEMPLATE: Path = NANO / "chat_template.jinja"

__all__ = ["CHAT_TEMPLATE", "NANO"]
