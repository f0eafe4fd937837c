"""The report in a real browser: no error, no request, tables that sort and search, and room on a phone."""

import os
import shutil

import pytest

from gradsieve.report.html import write_report

CHROMIUM = os.environ.get("GRADSIEVE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
if CHROMIUM is None:
    pytest.skip("no browser: apt-get install chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="no driver: pip install playwright")
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Open a report; at the end, nothing may have gone wrong, run or left the page."""
    contexts, troubles = [], []

    def open_report(subjects, viewport=DESK, scheme="light"):
        path = tmp_path / "report.html"
        write_report(subjects, path)
        context = browser.new_context(viewport=viewport, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: troubles.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: note_request(request.url, path.as_uri()))
        context.on("page", lambda popup: troubles.append(f"popup: {popup.url}") if popup is not page else None)
        page.goto(path.as_uri())
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        return page

    def note_request(url, own):
        if url.split("#")[0] != own and not url.startswith("data:image/png;base64,"):
            troubles.append(f"request: {url}")

    yield open_report
    for context in contexts:
        for page in context.pages:
            assert page.evaluate("window.pwned") is None
        context.close()
    assert not troubles


def column(page, table, title):
    """The cells of a column that are to be seen, from the top."""
    return page.evaluate(
        """([table, title]) => {
            const found = document.getElementById(table);
            const place = [...found.tHead.rows[0].cells].findIndex((cell) => cell.textContent === title);
            const rows = [...found.tBodies[0].rows].filter((row) => row.checkVisibility());
            return rows.map((row) => row.cells[place].textContent);
        }""",
        [table, title],
    )


def head(page, table, title):
    return page.locator(f"#{table} thead").get_by_role("button", name=title, exact=True)


def test_a_click_on_a_header_sorts_and_another_turns_round(opened, made):
    page = opened(made.subjects)
    before = [float(cell) for cell in column(page, "rows-1", "mean score")]
    assert before == sorted(before, reverse=True)
    head(page, "rows-1", "row").click()
    falling = [int(cell) for cell in column(page, "rows-1", "row")]
    assert falling == sorted(falling, reverse=True)
    assert page.locator("#rows-1 th[aria-sort]").get_attribute("aria-sort") == "descending"
    head(page, "rows-1", "row").click()
    assert [int(cell) for cell in column(page, "rows-1", "row")] == falling[::-1]
    head(page, "rows-1", "given").click()
    given = column(page, "rows-1", "given")
    assert given == sorted(given)
    head(page, "rows-1", "rank").press("Enter")  # the keyboard will do
    assert column(page, "rows-1", "rank")[0] == "50"
    assert page.locator("#rows-1 th[aria-sort]").count() == 1


def test_empty_cells_stay_last_whichever_way(opened, made):
    page = opened(made.subjects)
    for _ in range(2):
        head(page, "runs", "last").click()
        cells = column(page, "runs", "last")
        assert cells[-1] == ""  # an audit has no test rows
        assert "" not in cells[:-1]


def test_words_in_the_field_leave_the_rows_that_have_them_all(opened, made):
    page = opened(made.subjects)
    everything = column(page, "rows-1", "in truth")
    wrong = [cell for cell in everything if cell.startswith("wrong")]
    field = page.locator("#rows-1-search")
    field.fill("WRONG was")
    assert column(page, "rows-1", "in truth") == wrong
    assert page.locator(".search[data-table=rows-1] output").text_content() == f"{len(wrong)} of 50 rows"
    field.fill("no row has this")
    assert column(page, "rows-1", "row") == []
    field.fill("")
    assert column(page, "rows-1", "in truth") == everything


def test_a_link_opens_its_run(opened, made):
    page = opened(made.subjects)
    page.evaluate("document.querySelector('#run-3').open = false")
    page.get_by_role("link", name="faces").click()
    assert page.evaluate("document.querySelector('#run-3').open")
    assert page.locator("#run-3 h2").is_visible()
    page.locator("#run-3 > summary").click()
    assert not page.evaluate("document.querySelector('#run-3').open")


def test_pictures_are_shown(opened, made):
    page = opened(made.subjects)
    pictures = page.locator("#run-1 td img")
    pictures.last.scroll_into_view_if_needed()
    page.wait_for_function("[...document.querySelectorAll('#run-1 td img')].at(-1).naturalWidth === 8")
    assert pictures.count() == 50


@pytest.mark.parametrize("which", ["made", "hostile"])
@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_nothing_is_wider_than_the_screen(opened, request, which, viewport):
    page = opened(request.getfixturevalue(which).subjects, viewport)
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def test_hostile_names_run_nothing_and_ask_for_nothing(opened, hostile):
    """What would have run, would have run by now: everything is open, sorted, and searched for."""
    page = opened(hostile.subjects)
    tables = page.evaluate("[...document.querySelectorAll('table.sortable')].map((each) => each.id)")
    assert len(tables) > 5
    page.evaluate("for (const each of document.querySelectorAll('thead button')) each.click()")
    names = {name for subject in hostile.subjects if subject.targets for name in subject.targets.names}
    assert len(names) == 30
    for name in sorted(names):
        page.locator("#rows-1-search").fill(name)
    page.locator("#runs tbody th").first.hover()
    page.wait_for_timeout(200)


def test_the_same_names_do_run_where_they_are_markup(browser, hostile):
    """So that the test above tests something: most of them need no click."""
    context = browser.new_context()
    asked = []
    context.route("http://evil.test/**", lambda route: (asked.append(route.request.url), route.abort()))
    alive = 0
    for name in next(subject.targets.names for subject in hostile.subjects if subject.targets):
        page = context.new_page()
        try:
            page.set_content(f"<!doctype html><title>x</title><p>{name}</p>", wait_until="commit")
            page.wait_for_timeout(20)
            alive += bool(page.evaluate("window.pwned === 1") or asked)
        except playwright.Error:  # it has led the page elsewhere
            alive += 1
        page.close()
        asked.clear()
    context.close()
    assert alive >= 15


def luminance(colour):
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_lines_stand_out_in_light_and_dark(opened, made, scheme):
    """4.5 to 1 for words, 3 to 1 for lines, as WCAG asks."""
    page = opened(made.subjects, scheme=scheme)
    style = "(selector, name) => getComputedStyle(document.querySelector(selector))[name]"
    look = f"([selector, name]) => ({style})(selector, name)"
    paper = page.evaluate(look, ["body", "backgroundColor"])
    assert (luminance(paper) < 0.2) == (scheme == "dark")
    for selector, name in (("p", "color"), (".soft", "color"), ("a", "color"), (".axes text", "fill")):
        assert contrast(page.evaluate(look, [selector, name]), paper) >= 4.5, selector
    for selector, name in ((".line.c0", "stroke"), (".line.c1", "stroke"), (".bar.f0", "fill"), (".bar.f1", "fill")):
        assert contrast(page.evaluate(look, [selector, name]), paper) >= 3, selector
