"""One browser for all tests of pages."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from browser.browsing import opened_browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with opened_browser() as opened:
        yield opened
