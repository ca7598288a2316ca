"""The page in a real browser: it opens from disk without errors, recolours, and shows the JSON's numbers."""

import json
import shutil

import numpy as np
import pytest

from deconfound.auditing import audit, html_table
from deconfound.auditing.figures import Value
from deconfound.auditing.forest import Panel, forest
from tests.auditing.cohort import cohort

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--headless",
]
NASTY = "<script>alert(1)</script>"
NASTIER = "</script><img src=x onerror=alert(1)>{{data}}'\"&"


@pytest.fixture(scope="module")
def result():
    outputs, table = cohort()
    del outputs["by age"]
    table["site"] = np.where(table["site"] == "SRI", NASTY, np.where(table["site"] == "UCSD", NASTIER, "UCSF"))
    table["a<b>ge"] = table.pop("age")
    hidden = {
        name: np.column_stack([values, values**2, np.random.default_rng(0).normal(size=240)])
        for name, values in outputs.items()
    }
    outputs, hidden = (
        {key if key != "clean" else NASTY: value for key, value in given.items()} for given in (outputs, hidden)
    )
    return audit(
        outputs,
        table,
        confounds=["a<b>ge", "sex", "site"],
        labels=["dx"],
        features=hidden,
        permutations=39,
        bootstraps=40,
    )


def test_nothing_from_the_data_is_markup(result):
    page = result.to_html()
    assert page.count("<script") == 2
    assert "<img" not in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_every_text_of_a_table_and_of_a_forest_is_escaped():
    panel = Panel("<i>title", "<i>note", (Value(0.1, 0.0, 0.2),))
    drawn = forest(["<i>model"], [panel], "<i>figure").svg
    for page in (drawn, html_table(["<i>head", "b"], [["<i>row", "<i>cell"]], label="<i>label")):
        assert "<i>" not in page
    assert [drawn.count(f"&lt;i&gt;{text}") for text in ("title", "note", "model")] == [2, 1, 2]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium is installed on this system")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser, result, tmp_path):
    result.save(tmp_path / "audit.html")
    troubles = []
    view = browser.new_page(viewport={"width": 1280, "height": 900})
    view.on("console", lambda message: troubles.append(message.text))
    view.on("pageerror", lambda error: troubles.append(str(error)))
    view.on("dialog", lambda dialog: (troubles.append(dialog.message), dialog.dismiss()))
    view.on("request", lambda request: request.url.startswith("file:") or troubles.append(request.url))
    view.goto((tmp_path / "audit.html").as_uri())
    yield view
    assert troubles == []
    view.close()


def test_it_opens_without_errors_requests_or_dialogs_and_draws_every_figure(page):
    assert page.locator("#left-charts svg").count() == 3
    assert page.locator("#performance-charts svg").count() == 4
    assert page.locator("#maps svg").count() == 2
    assert page.locator(".points").first.locator("circle").count() == 240


def test_switching_the_colour_recolours_the_same_points(page):
    def state():
        return page.eval_on_selector_all(
            ".points circle",
            "all => all.map(c => [c.getAttribute('cx'), c.getAttribute('cy'), c.getAttribute('fill')])",
        )

    before = state()
    page.select_option("#map-colour", "site")
    after = state()
    assert [item[:2] for item in before] == [item[:2] for item in after]
    assert len({item[2] for item in before}) == 2
    assert len({item[2] for item in after}) == 3
    page.select_option("#map-colour", "a<b>ge")
    assert len({item[2] for item in state()}) > 50


def test_the_numbers_on_the_page_are_those_in_the_json(page, result):
    rows = json.loads(result.to_json())["rows"]
    shown = page.eval_on_selector_all(
        ".numbers tbody tr", "all => all.map(r => [...r.cells].map(c => [c.textContent, c.dataset]))"
    )
    assert len(shown) == len(rows)
    for cells, row in zip(shown, rows, strict=True):
        assert [cell[0] for cell in cells[:3]] == [row["model"], row["space"], row["confound"]]
        for cell, key in zip(cells[5:11], ("value", "low", "high", "p", "chance", "independent"), strict=True):
            number = row[key]
            assert cell[0] == ("–" if number is None else f"{number:.3f}".replace("-", "−"))
            assert number is None or float(cell[1][key]) == number
    drawn = page.eval_on_selector_all("#left-charts .mark", "all => all.map(m => Number(m.dataset.value))")
    expected = [
        row["value"]
        for confound in ("a<b>ge", "sex", "site")
        for row in rows
        if (row["confound"], row["statistic"], row["space"]) == (confound, "within_group_dcor_sqr", "outputs")
    ]
    assert drawn == expected


def test_the_measure_can_be_changed_by_keyboard(page):
    page.focus("#left-measure")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.input_value("#left-measure") == "partial_dcor"
    assert page.locator("#left-charts svg").count() == 3
    page.locator("#map-legend button").first.focus()
    page.keyboard.press("Enter")
    assert page.locator(".points .dim").count() > 0


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_screen_and_text_stands_out_in_light_and_dark(page, width, scheme):
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )

    def luminance(colour):
        channels = [int(part) / 255 for part in colour[4:-1].split(",")]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted([luminance(ink), luminance(paper)], reverse=True)
    assert (light + 0.05) / (dark + 0.05) > 7
    assert (luminance(paper) > 0.5) == (scheme == "light")


def test_filter_keeps_the_lines_that_match(page):
    page.click("#numbers summary")
    page.fill("#filter", "full confounder")
    assert page.locator(".numbers tbody tr:visible").count() == 2 * 3 * 2


def test_without_a_figure_the_page_has_no_map(browser, tmp_path):
    outputs, table = cohort(n=60)
    made = audit(outputs["clean"], table, confounds=["sex"], permutations=39, bootstraps=40, embedding=False)
    made.save(tmp_path / "audit.html")
    view = browser.new_page()
    view.goto((tmp_path / "audit.html").as_uri())
    assert view.locator("#map").count() == 0
    assert view.locator("#performance").is_hidden()
    view.close()
