"""The report page in a real headless Chromium, opened from disk."""

from __future__ import annotations

import contextlib
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classgap import MultiLabelPredictions, Predictions, audit, audit_labels, compare, compare_labels
from classgap.measure.render import html, plot
from classgap.measure.render.multi_label import render_label_comparison, render_labels
from classgap.measure.render.page_tables import plain
from reports import HOSTILE, comparison, formula_report, full_report, run_as_formulas
from waiting import SECONDS

pytestmark = pytest.mark.browser

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-dev-shm-usage",
]  # fmt: skip
PATIENCE = 1000 * SECONDS  # Playwright counts milliseconds
IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
ALL_DRAWN = "document.querySelectorAll('[data-figure]').length === document.querySelectorAll('[data-ready]').length"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (the dev extra)")
    if CHROMIUM is None:
        pytest.skip("needs chromium or google-chrome on the PATH")
    with sync_api.sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET, timeout=PATIENCE)
        except sync_api.Error as error:
            pytest.skip(f"{CHROMIUM} does not start here: {str(error).splitlines()[0]}")
        yield chromium
        chromium.close()


# Pixels by which each text reaches beyond the picture, for those that do.
CUT_OFF = """() => {
  const frame = document.documentElement.getBoundingClientRect();
  return [...document.querySelectorAll('text')].map(text => {
    const box = text.getBoundingClientRect();
    const beyond = [frame.left - box.left, box.right - frame.right, frame.top - box.top, box.bottom - frame.bottom];
    return [text.textContent, Math.max(...beyond)];
  }).filter(([words, beyond]) => words && beyond > 1);
}"""


def test_no_text_of_a_picture_file_is_cut_off(browser: Any, tmp_path: Path) -> None:
    """The font of the viewer may be wider than the one that the picture was laid out with."""
    files = [plot.save(chart, tmp_path / f"{name}.svg") for name, chart in plot.figures(full_report()).items()]
    page = browser.new_context().new_page()
    for file in (*files, *IMAGES.glob("*.svg")):
        page.goto(file.as_uri())
        assert page.locator("text").count()
        assert page.evaluate(CUT_OFF) == [], file.name
    page.context.close()


class Visit:
    """A page opened from disk, with everything the browser complained about or asked the network for."""

    def __init__(self, browser: Any, file: Path, **context: Any) -> None:
        self.context = browser.new_context(viewport=context.pop("viewport", {"width": 1280, "height": 900}), **context)
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-interactive]", state="attached")

    def draw_all(self) -> None:
        """Scroll every figure into view and wait until it is drawn."""
        for figure in self.page.locator("[data-figure]").all():
            figure.scroll_into_view_if_needed()
        self.page.wait_for_function(ALL_DRAWN)

    def processor_seconds(self) -> float:
        """What the process that shows this page has used so far."""
        session = self.context.new_cdp_session(self.page)
        session.send("Performance.enable")
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "ProcessTime"))

    def column(self, table: str, index: int) -> list[str]:
        texts: list[str] = self.page.locator(f"[data-table={table}] tbody tr td:nth-child({index})").all_inner_texts()
        return texts

    def close(self) -> None:
        """Close, after checking that all was quiet."""
        outside = [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]
        self.context.close()
        assert self.complaints == []
        assert outside == []


@pytest.fixture(scope="module")
def audit_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = [*HOSTILE, *(f"class {k}" for k in range(24))]
    file = tmp_path_factory.mktemp("page") / "audit.html"
    html.render_audit(full_report(30, 20, names=names, train_counts=[50] * 30), file)
    return file


def test_figures_are_drawn_in_both_themes(browser: Any, audit_page: Path) -> None:
    visit = Visit(browser, audit_page, color_scheme="dark")
    page = visit.page
    visit.draw_all()
    assert page.locator("[data-figure] svg.marks").count() == page.locator("[data-figure]").count() > 5
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    page.wait_for_function(f"getComputedStyle(document.body).backgroundColor !== '{dark}'")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.inner_text("#theme") == "Dark"
    page.wait_for_function(
        "document.querySelector('[data-figure] svg text[fill=\"#1d232b\"]') !== null"
    )  # legends are redrawn in the ink of the light theme
    visit.close()


def test_sorting_searching_filtering_and_paging(browser: Any, audit_page: Path) -> None:
    visit = Visit(browser, audit_page)
    page = visit.page
    first = visit.column("classes", 2)
    values = [float(text.split()[0]) for text in first]
    assert values == sorted(values)
    heading = page.locator("[data-table=classes] th", has_text="accuracy")
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    values = [float(text.split()[0]) for text in visit.column("classes", 2)]
    assert values == sorted(values, reverse=True)
    assert len(values) == 15
    page.click("[data-table=classes] button:has-text('Show more')")
    assert len(visit.column("classes", 1)) == 30
    page.fill("[data-table=classes] input[type=search]", "CLASS 1")
    assert len(visit.column("classes", 1)) == 11  # class 1 and class 10 to 19
    page.fill("[data-table=classes] input[type=search]", "")
    page.select_option("[data-table=classes] select", "hard")
    assert set(visit.column("classes", 3)) == {"hard"}
    page.fill("[data-table=pairs] input[type=number]", "3")
    assert all(int(text) >= 3 for text in visit.column("pairs", 3))
    visit.close()


def test_tables_download_as_csv(browser: Any, audit_page: Path) -> None:
    visit = Visit(browser, audit_page)
    with visit.page.expect_download() as download:
        visit.page.click("[data-table=classes] button:has-text('Download CSV')")
    lines = Path(download.value.path()).read_text(encoding="utf-8")
    assert download.value.suggested_filename == "classes.csv"
    assert lines.startswith("name,accuracy,group,")
    assert '"quote "" and' in lines
    visit.close()


def test_no_download_holds_a_formula(browser: Any, tmp_path: Path) -> None:
    """Class names, sample ids, texts, slices and their names begin like formulas; a spreadsheet opens every table as text."""
    html.render_audit(formula_report(), tmp_path / "formulas.html")
    visit = Visit(browser, tmp_path / "formulas.html")
    found = {}
    buttons = visit.page.locator("button:has-text('Download CSV')")
    for number in range(buttons.count()):
        visit.page.reload()  # Chromium drops the eleventh of eleven downloads that a page starts at once
        with visit.page.expect_download() as download:
            buttons.nth(number).evaluate("button => button.click()")  # also where the table is folded
        found[download.value.suggested_filename] = Path(download.value.path()).read_bytes().decode()
    assert {"classes.csv", "pairs.csv"} <= found.keys()
    assert "'=cmd|" in found["classes.csv"]
    assert {name: cells for name, text in found.items() if (cells := run_as_formulas(text))} == {}
    visit.close()


def test_pairs_and_classes_open_on_click(browser: Any, audit_page: Path) -> None:
    visit = Visit(browser, audit_page)
    page = visit.page
    row = page.locator("[data-table=pairs] tbody tr").nth(2)
    true, predicted = (row.locator("td").nth(i).inner_text() for i in (0, 1))
    row.click()
    shown = page.inner_text("#pair")
    assert f"{true} predicted as {predicted}" in shown
    assert f"{predicted} predicted as {true}" in shown
    page.fill("[data-table=classes] input[type=search]", HOSTILE[0])
    page.click("[data-table=classes] tbody tr")
    assert page.inner_text("#class h2") == HOSTILE[0]
    assert "samples" in page.inner_text("#class")
    page.keyboard.press("Escape")
    assert not page.locator("#class").is_visible()
    visit.draw_all()
    page.locator("[data-figure=spread_accuracy] path[aria-roledescription=circle]").first.click(force=True)
    assert page.locator("#class").is_visible()
    visit.close()


def test_phone_has_no_sideways_scroll(browser: Any, audit_page: Path, tmp_path: Path) -> None:
    html.render_comparison(comparison(8, names=[*HOSTILE, "x" * 80, "y" * 80]), tmp_path / "comparison.html")
    for file in (audit_page, tmp_path / "comparison.html"):
        visit = Visit(browser, file, viewport={"width": 360, "height": 740}, has_touch=True)
        visit.draw_all()
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
        visit.page.locator("[data-table=classes] tbody tr").first.tap()
        assert visit.page.locator("#class").is_visible()
        visit.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_long_words_stay_in_their_card(browser: Any, tmp_path: Path, width: int) -> None:
    """Class names of one long word ran over the edge of the page, and over the next card."""
    names = ["Donaudampfschifffahrtsgesellschaft" * 4 + str(k) for k in range(6)]
    true = np.repeat(np.arange(6), 60)
    rng = np.random.default_rng(0)
    good, bad = (np.where(rng.random(360) < share, true, (true + 1) % 6) for share in (0.9, 0.4))
    before, after = (audit(true, y, class_names=names, n_boot=100) for y in (good, bad))
    after.to_html(tmp_path / "audit.html")
    compare(before, after).to_html(tmp_path / "comparison.html")
    for file in ("audit.html", "comparison.html"):
        visit = Visit(browser, tmp_path / file, viewport={"width": width, "height": 900})
        visit.draw_all()
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        inside = "[...document.querySelectorAll('.card, .cards > *')].filter(c => c.scrollWidth > c.clientWidth + 1)"
        assert visit.page.evaluate(f"{inside}.map(c => c.className + c.innerText)") == []
        visit.close()


def test_a_number_is_the_same_everywhere_in_the_page(browser: Any, tmp_path: Path) -> None:
    """5 of 16 were 31.2 % in the sentence and 31.3 % in the table, 0.8244994 was 82.4 % and 82.5 %."""
    report = audit(np.repeat([0, 1], 16), np.r_[[0] * 5, [1] * 11, [1] * 16], n_boot=100)
    report.to_html(tmp_path / "audit.html")
    visit = Visit(browser, tmp_path / "audit.html")
    assert "31.2\u00a0%" in visit.page.locator(".verdict").inner_text()
    assert visit.page.locator("[data-table=classes] tbody tr", has_text="31.2").count() == 1
    assert plain(np.array([0.8244994])) == [0.8244994]
    visit.close()


def test_comparison_page(browser: Any, tmp_path: Path) -> None:
    html.render_comparison(comparison(60), tmp_path / "comparison.html")
    visit = Visit(browser, tmp_path / "comparison.html")
    visit.draw_all()
    visit.page.locator("[data-table=classes] th", has_text="change").locator("button").click()
    deltas = [float(text.replace("−", "-").replace("±", "")) for text in visit.column("classes", 6)]
    assert deltas == sorted(deltas)
    visit.close()


def test_thousand_classes_cost_little_more_than_ten(browser: Any, tmp_path: Path) -> None:
    """Processor time until the page is interactive, which other processes do not change; by the clock it is about 0.3 s."""
    rng = np.random.default_rng(0)
    seconds = {}
    for size in (10, 1000):
        counts = rng.poisson(0.2, (size, size)) + np.diag(rng.integers(20, 200, size))
        report = audit(Predictions.from_counts(counts, [f"class {k}" for k in range(size)]))
        html.render_audit(report, tmp_path / f"{size}.html")
        visit = Visit(browser, tmp_path / f"{size}.html")
        seconds[size] = visit.processor_seconds()
        visit.page.fill("[data-table=pairs] input[type=search]", "class 7")
        true, predicted = (visit.column("pairs", column) for column in (1, 2))
        assert true
        assert all("class 7" in one + other for one, other in zip(true, predicted, strict=True))
        visit.close()
    assert seconds[1000] < 3 * seconds[10]


def drawn_curves(pdf: bytes) -> int:
    """Number of curves on all sheets of a PDF file; text is not drawn with curves there."""
    found = 0
    for stream in re.finditer(rb"stream\r?\n(.*?)endstream", pdf, re.DOTALL):
        with contextlib.suppress(zlib.error):
            found += len(re.findall(rb" c\n", zlib.decompress(stream[1])))
    return found


def test_the_printed_page_has_every_figure(browser: Any, audit_page: Path) -> None:
    """Figures were drawn only when scrolled to, so that all of them were missing on paper."""
    visit = Visit(browser, audit_page)
    page = visit.page
    whole = drawn_curves(page.pdf())
    assert page.locator("[data-figure] svg.marks").count() == page.locator("[data-figure]").count() > 5
    page.add_style_tag(content="[data-figure] { visibility: hidden; }")
    assert whole > drawn_curves(page.pdf()) + 500  # every dot of a figure has curves
    visit.close()


def test_labels_of_an_axis_open_their_class(browser: Any, audit_page: Path) -> None:
    visit = Visit(browser, audit_page)
    visit.draw_all()
    label = visit.page.locator("[data-figure=accuracy_by_class] .class-label").first
    name = label.text_content()
    label.click()
    assert visit.page.inner_text("#class h2").startswith(name.removesuffix("…"))
    visit.close()


def test_pictures_are_shown_and_wide_tables_say_so(browser: Any, tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(5), 20)
    scores = rng.dirichlet(np.ones(5), 100)
    files = []
    for i in range(100):
        files.append(str(tmp_path / f"{i}.png"))
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(files[-1])
    report = audit(y, scores=scores, paths=files, ids=[f"<b>{i}" for i in range(100)])
    html.render_audit(report, tmp_path / "report.html")
    visit = Visit(browser, tmp_path / "report.html")
    page = visit.page
    first = page.locator("[data-gallery=mistakes] .sample").first
    assert first.locator(".name").inner_text() == str(report.mistakes(n=1)["id"][0])
    first.scroll_into_view_if_needed()
    page.wait_for_function("document.querySelector('[data-gallery=mistakes] img').naturalWidth === 8")
    page.select_option("[data-gallery=mistakes] select", "3")
    shown = page.locator("[data-gallery=mistakes] .sample .link:first-child").all_inner_texts()
    assert set(shown) == {"3"}
    first.locator(".link").first.click()
    assert page.locator("#class .sample img").count() > 0
    page.keyboard.press("Escape")
    assert page.locator("[data-table=classes] .frame.cut").count() == 1
    page.evaluate("document.querySelector('[data-table=classes] .scroll').scrollLeft = 1e5")
    page.wait_for_selector("[data-table=classes] .frame:not(.cut)")
    visit.close()


@pytest.mark.parametrize("width", [800, 1400])
def test_pages_of_multi_label_data(browser: Any, tmp_path: Path, width: int) -> None:
    rng = np.random.default_rng(0)
    true = rng.random((300, 6)) < 0.3
    scores = 1 / (1 + np.exp(-(3 * true - 1.5 + rng.normal(size=true.shape))))
    found = MultiLabelPredictions.from_arrays(true, scores=scores, label_names=[*HOSTILE[:3], "d", "e", "f"])
    render_labels(audit_labels(found), tmp_path / "audit.html")
    render_label_comparison(compare_labels(found, found.at_threshold(0.9)), tmp_path / "compare.html")
    for name in ("audit.html", "compare.html"):
        visit = Visit(browser, tmp_path / name, viewport={"width": width, "height": 900})
        visit.draw_all()
        assert len(visit.column("classes", 1)) == 6
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        visit.page.locator("[data-table=classes] tbody tr").first.click()
        assert visit.page.locator("dialog[open] h2").inner_text() == visit.column("classes", 1)[0]
        visit.close()


def test_only_significant_differences_are_coloured(browser: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(5), 80)
    before, after = (np.where(rng.random(400) < 0.6, y, (y + 1) % 5) for _ in range(2))
    after[:80] = 0  # one class improves beyond doubt, the others change by chance
    html.render_comparison(compare(audit(y, before), audit(y, after)), tmp_path / "page.html")
    visit = Visit(browser, tmp_path / "page.html")
    rows = visit.page.locator("[data-table=classes] tbody tr")
    for k in range(rows.count()):
        cells = rows.nth(k).locator("td")
        texts = cells.all_inner_texts()
        assert (rows.nth(k).locator("td.up, td.down").count() > 0) == ("yes" in texts)
    assert 0 < visit.page.locator("[data-table=classes] td.up, [data-table=classes] td.down").count() < rows.count()
    visit.close()
