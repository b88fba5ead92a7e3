"""Opens a page in Debian's Chromium as a reader would: from disk, with nothing to fetch. For the browser tests."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from quantkit.errors import QuantkitError

FLAGS = (
    "--no-sandbox",  # the tests run as root
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
)
PATIENCE_MS = 120_000  # a deadline against hanging, not a bound on speed


class NoBrowser(QuantkitError):
    """There is no Chromium on this host."""


@dataclass
class Seen:
    """What happened while a page was open."""

    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, headless."""
    path = shutil.which("chromium")
    if path is None:
        raise NoBrowser(
            "chromium", got="none on PATH", expected="Debian's package", hint="apt-get install chromium"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, file: Path, *, width: int = 1280, **context: Any) -> Iterator[tuple[Page, Seen]]:
    """A page from disk, ready, with what it asked for and complained of."""
    with browser.new_context(viewport={"width": width, "height": 900}, **context) as made:
        made.set_default_timeout(PATIENCE_MS)
        page, seen = made.new_page(), Seen()
        page.on("request", lambda request: seen.requests.append(request.url))
        page.on("console", lambda said: seen.complaints.append(f"{said.type}: {said.text}"))
        page.on("pageerror", lambda fault: seen.complaints.append(str(fault)))
        page.goto(file.as_uri())
        if context.get("java_script_enabled", True):
            page.wait_for_selector("html[data-ready=yes]", state="attached")
        yield page, seen
