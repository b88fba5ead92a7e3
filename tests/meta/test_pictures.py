"""The README's pictures of the report show the figures that the committed published rows give today."""

import re
from pathlib import Path

import pytest
from PIL import Image

from tests.meta.pictures import DIGEST, DOCS, PICTURES, ROOT, figures_digest


def digest_of(picture: Path) -> str:
    """The digest of the figures that a picture was made from."""
    with Image.open(picture) as opened:
        return str(opened.info.get(DIGEST))


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_not_stale(name: str) -> None:
    """If this fails: `python -m tests.meta.pictures`, and look at both."""
    assert digest_of(DOCS / name) == figures_digest()


def test_the_readme_shows_both() -> None:
    shown = re.findall(
        r"!\[[^\]]+\]\(docs/(report[^)]*\.png)\)", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    assert sorted(shown) == sorted(PICTURES)


def test_a_picture_of_other_figures_is_stale(tmp_path: Path) -> None:
    old = tmp_path / "old.png"
    Image.new("RGB", (4, 4)).save(old)
    assert digest_of(old) != figures_digest()
