"""The dashboard and the pages of tasks in a real Chromium, behind a sign-in form."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page

from browser.browsing import empty_pictures, is_too_wide, serving, violations
from diffprior.reporting.page import Callout, Code, Heading, Picture, SideBySide, Text
from diffprior.reporting.page import page as report
from diffprior.reporting.tables import Table
from diffprior.service.auth import create_token
from diffprior.service.settings import Settings
from service.shop import Shop, add_models

SETTINGS = Settings(likelihood="linear", likelihood_options={"noise_std": 0.5}, propensity_draws=4)
NUM_TASKS, NUM_DECISIONS = 3, 60
TRAFFIC = "/traffic?model=shop&version=2&share=25"
NUM_CHARTS = {"/?range=24h&top=20": 11, "/tasks/shop/campaign-000": 3, TRAFFIC: 0}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str]]:
    """The address of a service with decisions behind it, a token that may read, and all rights."""
    path: Path = tmp_path_factory.mktemp("shop") / "log.sqlite"
    with serving(path, required=True) as (engine, address):
        add_models(engine, SETTINGS)
        Shop(engine, NUM_TASKS).run(NUM_DECISIONS)
        yield address, create_token(engine.database, ("read",)), create_token(engine.database)


def test_a_visit_from_sign_in_to_sign_out(browser: Browser, shop: tuple[str, str, str]) -> None:
    address, token, admin = shop
    context = browser.new_context(base_url=address)
    context.set_default_timeout(120_000)
    page = context.new_page()
    problems: list[str] = []

    def on_request(url: str) -> None:
        if not url.startswith((address, "data:")):
            problems.append(url)

    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: on_request(request.url))
    page.goto("/tasks/shop/campaign-000")
    assert page.title().startswith("Sign in") and not violations(page)
    page.get_by_label("Token").fill("dp_00000000_wrong")
    page.keyboard.press("Enter")
    page.get_by_text("is not valid").wait_for()
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    sign_in(page, token)
    for path, num_charts in NUM_CHARTS.items():
        check_page(page, path, num_charts)
    check_links(page)
    use_keyboard(page)
    sort_and_save(page)
    change_traffic(page, admin)
    assert not problems, problems
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    context.close()


def sign_in(page: Page, token: str) -> None:
    """Sign in, and wait until the benefit of the prior is computed."""
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("Benefit of the prior").first.wait_for()
    while "being computed" in page.content():
        page.wait_for_timeout(200)
        page.reload()


def check_page(page: Page, path: str, num_charts: int) -> None:
    """Charts, names, contrast in light and dark, and the width of a phone."""
    page.goto(path)
    page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true; })")
    assert page.locator("svg").count() == num_charts and not empty_pictures(page)
    assert not violations(page)
    page.emulate_media(color_scheme="dark")
    assert not violations(page, rules=["color-contrast"])
    page.emulate_media(color_scheme="light")
    size = page.viewport_size
    page.set_viewport_size({"width": 390, "height": 844})
    assert not is_too_wide(page) and not empty_pictures(page)
    page.set_viewport_size(size)


def check_links(page: Page) -> None:
    """Every link leads somewhere, and a task's page leads back to its model."""
    page.goto("/")
    found = page.eval_on_selector_all("a", "links => links.map(a => a.getAttribute('href'))")
    assert sum(one.startswith("/tasks/shop/") for one in found) == NUM_TASKS
    for one in sorted(set(found) - {"#content"}):
        assert page.request.get(one).status == 200, one
    page.get_by_role("link", name="campaign-001").click()
    page.get_by_role("link", name="Model shop").click()
    page.get_by_role("heading", name="Model shop").wait_for()


def use_keyboard(page: Page) -> None:
    """Skip to the content, open numbers and find a task, without a mouse."""
    page.goto("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details[open] table").count() == 1
    page.get_by_label("Task name").fill("campaign-000")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Task campaign-000").wait_for()


def sort_and_save(page: Page) -> None:
    """Choose a range, sort a table, point at a chart, and save numbers."""
    page.goto("/")
    page.get_by_role("link", name="30 days").click()
    page.get_by_role("link", name="mean reward", exact=True).nth(1).click()
    assert "range=30d" in page.url and page.locator("th[aria-sort]").count() == 1
    assert page.locator(".dot title").first.text_content()
    with page.expect_download() as saved:
        page.get_by_role("link", name="CSV of Arms, the most taken first").click()
    assert saved.value.path().read_text().startswith("arm,decisions,")


def change_traffic(page: Page, admin: str) -> None:
    """Look at what a change does, and make it with another token than that of the visit."""
    page.goto("/")
    page.get_by_role("link", name="Change traffic…").click()
    page.get_by_label("serves, % of the tasks").fill("25")
    page.get_by_role("button", name="Preview").click()
    page.get_by_label("Token with the right admin").fill(admin)
    page.get_by_role("button", name="Let version 2 serve 25 %").click()
    page.get_by_role("heading", name="Model shop").wait_for()
    assert page.get_by_role("cell", name="75%").count() == 1


def test_reports_have_no_violations(browser: Browser) -> None:
    """In light, dark and on a phone, where a wide table scrolls and says so."""
    wide = Table([f"a column, {i}" for i in range(8)], [["5.0 ± 0.5"] * 8] * 3, "A wide table")
    with io.BytesIO() as file:
        Image.new("RGB", (900, 300), "gray").save(file, "png")
        picture = Picture(file.getvalue(), file.getvalue(), "A picture with numbers")
    callouts = [Callout("It pays.", "good"), Callout("It warns.", "bad")]
    words = Table((), [("a setting", "and what it is")], "Settings", words=True)
    blocks = [callouts[1], Text("Text."), Heading("A part"), wide, SideBySide([words]), picture]
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.set_content(report("A report", callouts[0], blocks, Code("diffprior serve")))
    assert not violations(tab) and tab.locator("main > *").nth(1).inner_text() == "It pays."
    tab.emulate_media(color_scheme="dark")
    assert not violations(tab, ["color-contrast"])
    assert tab.locator(".hint").first.bounding_box()["height"] == 0
    tab.set_viewport_size({"width": 390, "height": 844})
    assert not is_too_wide(tab) and tab.locator(".hint").first.bounding_box()["height"] > 10
    tab.close()


def test_an_empty_picture_would_be_found(browser: Browser) -> None:
    """The checks can fail: a picture of axes only, one without numbers, a button without a name,
    a page that is too wide."""
    page, drawn = browser.new_page(), '<path class="mark" d="M0 0L9 9"/>'
    page.set_content(
        f'<svg aria-label="a 1"><path d="M0 0L9 9"/></svg><svg aria-label="b">{drawn}</svg>'
        f'<svg aria-label="c 1">{drawn}</svg><button></button><pre>{"x" * 999}</pre>'
    )
    assert empty_pictures(page) == ["a 1", "b"]
    assert [one.split(":")[0] for one in violations(page, ["button-name"])] == ["button-name"]
    assert is_too_wide(page)
    page.close()


def test_the_api_documentation_shows_operations_and_calls_them(
    browser: Browser, shop: tuple[str, str, str]
) -> None:
    address, *_ = shop
    context = browser.new_context(base_url=address)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.goto("/docs")
    page.locator(".opblock").first.wait_for()
    assert page.get_by_text("Unable to render").count() == 0
    assert page.get_by_text("Report the reward of a decision").count() > 0
    page.emulate_media(color_scheme="dark")
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    assert page.evaluate(paper) != "rgb(255, 255, 255)"
    assert not violations(page, ["color-contrast"])
    page.emulate_media(color_scheme="light")
    health = page.locator(".opblock", has_text="/health").first
    health.click()
    health.get_by_role("button", name="Execute").click()
    health.locator(".live-responses-table").get_by_text('"ok"').first.wait_for()
    assert not problems, problems
    context.close()
