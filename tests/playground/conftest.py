"""The browser of a module's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.page import Browser, browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for all tests."""
    with browser() as started:
        yield started
