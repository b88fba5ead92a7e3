"""Makes the README's pictures of the report from the committed published figures: `python -m tests.meta.pictures`.

Each picture carries a digest of the figures it shows, so that a test can tell when it is stale.
"""

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import Page

from tests.meta.browsing import chromium, opened
from tests.report.published import published_record
from tests.report.summary import summary_json
from tests.report.write import write_report

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "baselines" / "mi300x" / "published"
DOCS = ROOT / "docs"
DIGEST = "figures-sha256"
PICTURES = {  # name -> first and last element of what it shows
    "report.png": ("header", "#answer .cards"),
    "report-grid.png": ("#speed h2", "[data-plot=heat]"),
}
MARGIN = 24
COLOURS = 128


def figures_digest() -> str:
    """SHA-256 of every figure, answer and caveat that the report of the published rows gives."""
    return hashlib.sha256(summary_json(published_record(PUBLISHED)).encode()).hexdigest()


def _shot(page: Page, first: str, last: str, file: Path) -> None:
    tops = [page.locator(chosen).first.bounding_box() for chosen in (first, last)]
    if tops[0] is None or tops[1] is None:
        raise ValueError(f"elements of a picture, got {first} or {last} not on the page, expected both")
    top, bottom = tops[0]["y"] - MARGIN, tops[1]["y"] + tops[1]["height"] + MARGIN / 2
    clip = {"x": 0.0, "y": top, "width": 1180.0, "height": bottom - top}
    page.screenshot(path=file, clip=clip, full_page=True)  # type: ignore[arg-type]


def _keep(shot: Path, file: Path, digest: str) -> None:
    told = PngInfo()
    told.add_text(DIGEST, digest)
    Image.open(shot).convert("RGB").quantize(COLOURS).save(file, optimize=True, pnginfo=told)


def main() -> None:
    """Make both pictures anew."""
    DOCS.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder, chromium() as browser:
        page_file = write_report(PUBLISHED, Path(folder))
        with opened(browser, page_file, width=1180, device_scale_factor=1.5, color_scheme="light") as (
            page,
            _,
        ):
            page.locator(".chips").evaluate("chips => chips.remove()")
            for name, (first, last) in PICTURES.items():
                _shot(page, first, last, Path(folder) / name)
                _keep(Path(folder) / name, DOCS / name, figures_digest())
                print(DOCS / name)


if __name__ == "__main__":
    main()
