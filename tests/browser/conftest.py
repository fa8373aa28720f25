"""One browser for the tests of a module."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from browser.browsing import opened_browser


@pytest.fixture(scope="module")  # its event loop would be in the way of other modules
def browser() -> Iterator[Browser]:
    with opened_browser() as opened:
        yield opened
