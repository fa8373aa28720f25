"""The dashboard and the pages of tasks in a real Chromium, which one has to sign in to."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from browser.browsing import empty_pictures, is_too_wide, opened_browser, serving, violations
from diffprior.service.auth import create_token
from diffprior.service.settings import Settings
from service.shop import Shop, add_models

SETTINGS = Settings(likelihood="linear", likelihood_options={"noise_std": 0.5}, propensity_draws=4)
NUM_TASKS, NUM_DECISIONS, NUM_PICTURES = 3, 60, 8
TASK = "/tasks/shop/campaign-000"


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


@pytest.fixture(scope="module")
def visit(browser: Browser, shop: tuple[str, str]) -> Iterator[BrowserContext]:
    """A visitor who has signed in, and who hears of every error and of every other host."""
    address, token = shop
    context = new_context(browser, address)
    page = context.new_page()
    page.goto("/")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("Benefit of the prior").first.wait_for()
    while "being computed" in page.content():
        page.wait_for_timeout(200)
        page.reload()
    page.close()
    yield context
    context.close()


@pytest.fixture
def page(visit: BrowserContext, shop: tuple[str, str]) -> Iterator[Page]:
    wrong: list[str] = []
    opened = visit.new_page()
    opened.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("request", lambda r: None if is_own(r.url, shop[0]) else wrong.append(r.url))
    yield opened
    opened.close()
    assert not wrong, wrong


def new_context(browser: Browser, address: str) -> BrowserContext:
    """A visitor with patience, because machines may be slow."""
    context = browser.new_context(base_url=address)
    context.set_default_timeout(120_000)
    return context


def is_own(url: str, address: str) -> bool:
    return url.startswith((address, "data:"))


def test_a_stranger_has_to_sign_in(browser: Browser, shop: tuple[str, str]) -> None:
    context = new_context(browser, shop[0])
    page = context.new_page()
    page.goto(TASK)
    assert page.title().startswith("Sign in") and not violations(page)
    page.get_by_label("Token").fill("dp_00000000_wrong")
    page.keyboard.press("Enter")
    page.get_by_text("is not valid").wait_for()
    context.close()


def test_every_link_leads_to_a_page_with_its_pictures(page: Page) -> None:
    page.goto("/")
    assert page.locator("svg").count() == NUM_PICTURES and not empty_pictures(page)
    addresses = page.eval_on_selector_all("a", "links => links.map(a => a.getAttribute('href'))")
    assert sum(one.startswith("/tasks/shop/") for one in addresses) == NUM_TASKS
    for address in sorted(set(addresses) - {"#content"}):
        with page.expect_navigation() as found:
            page.locator(f"a[href='{address}']").first.click()
        assert found.value.status == 200, address
        if address.startswith("/tasks/"):
            assert page.locator("svg").count() == 3 and not empty_pictures(page)
            page.get_by_role("link", name="Model shop").click()
            page.get_by_role("heading", name="Model shop").wait_for()
        elif not address.startswith("/?"):
            page.go_back()


@pytest.mark.parametrize("address", ["/", TASK])
def test_names_contrast_and_width(page: Page, address: str) -> None:
    page.goto(address)
    page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true; })")
    assert not violations(page)
    page.emulate_media(color_scheme="dark")
    assert not violations(page, rules=["color-contrast"])
    page.set_viewport_size({"width": 390, "height": 844})
    assert not is_too_wide(page) and not empty_pictures(page)


def test_the_keyboard_is_enough(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    summary = page.locator("summary").first
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator("details[open] table").count() == 1
    page.get_by_label("Task name").fill("campaign-000")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Task campaign-000").wait_for()


def test_signing_out_ends_it(browser: Browser, shop: tuple[str, str]) -> None:
    context = new_context(browser, shop[0])
    page = context.new_page()
    page.goto("/")
    page.get_by_label("Token").fill(shop[1])
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    context.close()


def test_an_empty_picture_would_be_found(page: Page) -> None:
    """The checks can fail: a picture of axes alone, one without numbers, a button without a name,
    a page that is too wide."""
    drawn = '<path class="mark" d="M0 0L9 9"/>'
    page.set_content(
        f'<svg aria-label="a 1"><path d="M0 0L9 9"/></svg><svg aria-label="b">{drawn}</svg>'
        f'<svg aria-label="c 1">{drawn}</svg><button></button><pre>{"x" * 999}</pre>'
    )
    assert empty_pictures(page) == ["a 1", "b"]
    assert any(one.startswith("button-name") for one in violations(page)) and is_too_wide(page)
