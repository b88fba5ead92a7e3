"""The page in a real browser: it fetches nothing, complains of nothing, and shows what the record holds."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from quantkit.formats import FORMATS
from tests.meta.browsing import Seen, chromium, opened
from tests.meta.made_up import ARTICLE
from tests.meta.test_report_forms import HOSTILE, PUBLISHED, RECORDS
from tests.report.page import page as make_page
from tests.report.plots import specs
from tests.report.published import published_record
from tests.report.run import Cell, Run, load_name
from tests.support.record import Record, read_record

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

NANO = Path(__file__).parents[2] / "docs" / "demo"
ALL: dict[str, Record] = {
    **RECORDS,
    "published": published_record(PUBLISHED),
    "the nano's run": read_record(NANO),
}
PageOf = Callable[[str], Path]

CONTRAST = """([chosen, back]) => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (c) => c.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const found = rgb(getComputedStyle(each).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll(chosen)].filter((e) => e.checkVisibility()).map((element) => {
    const style = getComputedStyle(element);
    const [a, b] = [light(rgb(back ? style.fill : style.color)), light(back ? rgb(back) : ground(element))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
}"""
HEAT = """(paper) => {
  const light = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const box = document.querySelector('[data-plot=heat]');
  const fill = (kind) => [...box.querySelectorAll(`.mark-${kind}.role-mark > *`)].map((e) => getComputedStyle(e).fill);
  const words = fill('text');
  return fill('rect').map((back, i) => {
    const [a, b] = [light(back === 'rgba(0, 0, 0, 0)' ? paper : back), light(words[i])];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of this file."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> PageOf:
    """Gives the page of a record by name, written once."""
    folder = tmp_path_factory.mktemp("pages")

    def find(name: str) -> Path:
        file = folder / f"{name.replace(' ', '-')}.html"
        if not file.exists():
            file.write_text(make_page(ALL[name]), encoding="utf-8")
        return file

    return find


def marks(page: Page, plot: str, kind: str) -> int:
    """How many marks of a kind a plot has."""
    return page.locator(f"[data-plot={plot}] .mark-{kind}.role-mark > *").count()


@dataclass
class Reading:
    """A record's page, open."""

    run: Run
    file: Path
    page: Page
    seen: Seen

    @property
    def first(self) -> list[Cell]:
        """Every cell of a first pass, those that are absent too."""
        return [self.run.cell(build.name, load) for build in self.run.builds for load in self.run.grid]


@pytest.fixture(scope="module")
def open_pages(browser: Browser, page_of: PageOf) -> Iterator[Callable[[str], Reading]]:
    """Gives a record's page, opened once for all tests that only look."""
    known: dict[str, Reading] = {}
    with ExitStack() as stack:

        def find(name: str) -> Reading:
            if name not in known:
                page, seen = stack.enter_context(opened(browser, page_of(name)))
                known[name] = Reading(Run(ALL[name]), page_of(name), page, seen)
            return known[name]

        yield find


@pytest.fixture(params=ALL)
def reading(request: pytest.FixtureRequest, open_pages: Callable[[str], Reading]) -> Reading:
    """Each record's page."""
    return open_pages(request.param)


def test_nothing_is_fetched_and_nothing_complains(reading: Reading) -> None:
    assert [url for url in reading.seen.requests if not url.startswith("data:")] == [reading.file.as_uri()]
    assert reading.seen.complaints == []


def test_every_build_and_cell_is_there(reading: Reading) -> None:
    run, page = reading.run, reading.page
    if not run.builds:
        assert page.locator("#builds .empty").is_visible()
        return
    rows = page.locator("#table-builds tbody tr")
    assert [row.get_attribute("data-build") for row in rows.all()] == [build.name for build in run.builds]
    for row, build in zip(rows.all(), run.builds, strict=True):
        assert build.name.split()[0] in row.locator("th").inner_text()
    if run.grid:
        heads = page.locator("#table-throughput thead th").all_text_contents()
        assert [head.strip() for head in heads] == ["build", *map(load_name, run.grid)]
        assert page.locator("#table-throughput tbody td").count() == len(reading.first)


def test_plots_have_as_many_marks_as_the_record_has_figures(reading: Reading) -> None:
    page, cells = reading.page, reading.first
    assert page.locator("[data-plot]").count() == len(specs(reading.run))
    assert marks(page, "heat", "rect") == len(cells)
    assert marks(page, "heat", "text") == len(cells)
    assert marks(page, "tpot", "symbol") == sum(cell.tpot_s is not None for cell in cells)
    assert marks(page, "tpot", "rect") == sum(r.tpot_s is not None for cell in cells for r in cell.repeats)


def test_every_plot_speaks_and_has_a_table_beside_it(reading: Reading) -> None:
    for plot in reading.page.locator("[data-plot]").all():
        said = plot.get_attribute("aria-label")
        assert said
        assert plot.locator("xpath=preceding-sibling::figcaption").inner_text() == said
        assert plot.locator("xpath=ancestor::section").locator("table").count() >= 1


def test_the_page_is_small(reading: Reading) -> None:
    assert reading.file.stat().st_size < 3_000_000


def test_a_narrow_screen_does_not_overflow(reading: Reading) -> None:
    wide = reading.page.viewport_size
    reading.page.set_viewport_size({"width": 390, "height": 844})
    reading.page.wait_for_timeout(400)  # the plots are drawn again once the resizing has ended
    assert reading.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert wide is not None
    reading.page.set_viewport_size(wide)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["published", "a failed build", "the nano's run"])
def test_words_stand_out_in_light_and_dark(browser: Browser, page_of: PageOf, name: str, scheme: str) -> None:
    """WCAG AA: 4.5 to 1."""
    chosen = (
        "h1, h2, p, li, td, th, th button, summary, figcaption, dt, dd, .chips button, .standings span.words"
    )
    with opened(browser, page_of(name), color_scheme=scheme) as (page, _):
        ratios = page.evaluate(CONTRAST, [chosen, None])
        assert len(ratios) > 50
        assert min(ratios) >= 4.5
        paper = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        axis = page.evaluate(CONTRAST, [".role-axis-label text, .role-legend-label text", paper])
        assert min(axis) >= 4.5
        assert min(page.evaluate(HEAT, paper)) >= 4.5


def test_a_click_sorts_and_another_turns_it_round(browser: Browser, page_of: PageOf) -> None:
    with opened(browser, page_of("a failed build")) as (page, _):
        column = page.locator("#table-throughput tbody tr td:nth-child(2)")
        head = page.locator("#table-throughput thead th:nth-child(2)")
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "ascending"
        assert column.all_inner_texts() == ["120", "–"]
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "descending"
        assert column.all_inner_texts() == ["120", "–"]  # what was not measured stays last
    with opened(browser, page_of("published")) as (page, _):
        page.locator("#table-throughput thead th:nth-child(8) button").click()
        values = page.locator("#table-throughput tbody tr td:nth-child(8)").all_inner_texts()
        numbers = [float(value.replace(",", "")) for value in values]
        assert numbers == sorted(numbers)
        assert numbers != sorted(numbers, key=str)


def test_a_click_hides_a_build_everywhere(browser: Browser, page_of: PageOf) -> None:
    with opened(browser, page_of("published")) as (page, _):
        before = marks(page, "heat", "rect")
        chip = page.locator("[data-toggle=fp8]")
        chip.click()
        page.wait_for_function(f"document.querySelector('[data-plot=heat]').dataset.drawn === '{before - 9}'")
        assert marks(page, "heat", "rect") == before - 9
        assert chip.get_attribute("aria-pressed") == "false"
        assert page.locator("[data-build=fp8]:visible").count() == 0
        assert page.locator("#table-builds tbody tr:visible").count() == len(FORMATS) - 1
        chip.click()
        page.wait_for_function(f"document.querySelector('[data-plot=heat]').dataset.drawn === '{before}'")
        assert page.locator("#table-builds tbody tr:visible").count() == len(FORMATS)


def test_marks_say_their_figures(browser: Browser, page_of: PageOf) -> None:
    with opened(browser, page_of("published")) as (page, _):
        marks_said = page.locator("[data-plot=heat] .mark-rect.role-mark path").evaluate_all(
            "all => all.map((each) => each.getAttribute('aria-label'))"
        )
        assert any("build: fp8" in said and "0.75" in said for said in marks_said)


def test_a_hostile_record_runs_nothing(browser: Browser, page_of: PageOf) -> None:
    with opened(browser, page_of("hostile")) as (page, seen):
        assert page.locator("script").count() == 3
        assert "<script>alert" in page.locator("h1").inner_text()
        page.locator("summary").first.click()
        page.locator(".chips").evaluate("chips => chips.remove()")
        page.locator("[data-plot=heat] .mark-text.role-mark text").last.hover()
        page.locator("#vg-tooltip-element.visible").wait_for()
        assert page.locator("#vg-tooltip-element script").count() == 0
        assert seen.complaints == []
    assert HOSTILE.count("<script>") == 1


def test_the_policy_stops_a_script_that_is_not_the_pages(browser: Browser, page_of: PageOf) -> None:
    with opened(browser, page_of("whole")) as (page, seen):
        page.evaluate(
            "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s);"
        )
        assert page.evaluate("window.ran") is None
        page.evaluate("fetch('http://127.0.0.1:9/').catch(() => 0)")
        assert sum("Content Security Policy" in each for each in seen.complaints) >= 2


def test_without_scripts_every_figure_is_still_there(browser: Browser, page_of: PageOf) -> None:
    with opened(browser, page_of("article"), java_script_enabled=False) as (page, _):
        assert page.locator(".card .pick").count() == 4
        assert page.locator("#table-throughput tbody td").count() == len(FORMATS) * len(ARTICLE)


def test_print_opens_folds_and_leaves_controls_out(browser: Browser, page_of: PageOf) -> None:
    with opened(browser, page_of("published")) as (page, _):
        page.emulate_media(media="print", color_scheme="light")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("details:not([open])").count() == 0
        assert not page.locator(".chips").is_visible()
        assert page.pdf().startswith(b"%PDF")
