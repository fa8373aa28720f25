"""The dashboard and the pages of tasks in a real Chromium, behind a sign-in form."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from browser.browsing import empty_pictures, is_too_wide, opened_browser, serving, violations
from diffprior.service.auth import create_token
from diffprior.service.settings import Settings
from service.shop import Shop, add_models

SETTINGS = Settings(likelihood="linear", likelihood_options={"noise_std": 0.5}, propensity_draws=4)
NUM_TASKS, NUM_DECISIONS = 3, 60
NUM_CHARTS = {"/": 11, "/tasks/shop/campaign-000": 3}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a service with some decisions behind it, and a token that may read."""
    path: Path = tmp_path_factory.mktemp("shop") / "log.sqlite"
    with serving(path, required=True) as (engine, address):
        add_models(engine, SETTINGS)
        Shop(engine, NUM_TASKS).run(NUM_DECISIONS)
        yield address, create_token(engine.database, ("read",))


def test_a_visit_from_sign_in_to_sign_out(browser: Browser, shop: tuple[str, str]) -> None:
    address, token = shop
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
    browser: Browser, shop: tuple[str, str]
) -> None:
    address, _ = shop
    context = browser.new_context(base_url=address)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.goto("/docs")
    page.locator(".opblock").first.wait_for()
    assert page.get_by_text("Unable to render").count() == 0
    health = page.locator(".opblock", has_text="/health").first
    health.click()
    health.get_by_role("button", name="Execute").click()
    health.locator(".live-responses-table").get_by_text('"ok"').first.wait_for()
    assert not problems, problems
    context.close()
