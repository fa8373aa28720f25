"""A service with a simulated shop behind it, a Chromium to look at it, and what is looked for."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from diffprior.service.api import make_app
from diffprior.service.auth import Tokens
from diffprior.service.engine import Engine
from diffprior.service.gate import Limits
from diffprior.service.metrics import Metrics
from diffprior.service.server import free_port, server_config
from diffprior.service.store import Database

NAMES = ("chromium", "chromium-browser", "google-chrome")
EMPTY = """pictures => pictures.filter(picture =>
    ![...picture.querySelectorAll('.mark')].some(mark => {
        const box = mark.getBoundingClientRect();
        return box.width > 0.5 || box.height > 0.5;
    }) || !/[0-9]/.test(picture.getAttribute('aria-label') || '')
).map(picture => picture.getAttribute('aria-label') || 'a picture without a label')"""


def chromium() -> str:
    """Where the browser is.

    Raises:
        RuntimeError: There is none.
    """
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise RuntimeError(
            "the tests of pages need Chromium, found none: `apt-get install -y chromium` brings it"
        )
    return found


@contextmanager
def opened_browser() -> Iterator[Browser]:
    """A Chromium without a window."""
    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@contextmanager
def serving(path: Path, *, required: bool) -> Iterator[tuple[Engine, str]]:
    """The engine of a service on loopback, and the service's address."""
    database, port = Database(str(path)), free_port()
    engine = Engine(database, metrics=Metrics())
    app = make_app(engine, Tokens(database, required=required), limits=Limits())
    server = uvicorn.Server(server_config(app, "127.0.0.1", port, Limits()))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the service did not start"
        time.sleep(0.02)
    engine.prepare()
    yield engine, f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(60)
    database.close()


def empty_pictures(page: Page) -> list[str]:
    """Labels of pictures in which nothing is drawn, or whose label names no number."""
    return page.eval_on_selector_all("svg", EMPTY)


def violations(page: Page, rules: list[str] | None = None) -> list[str]:
    """Violations that axe finds in names, contrast, landmarks and tables, or of some rules."""
    options = {} if rules is None else {"runOnly": rules}
    found = Axe().run(page, options=options).response["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]


def is_too_wide(page: Page) -> bool:
    """Whether one has to scroll sideways."""
    return page.evaluate(
        "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    )
