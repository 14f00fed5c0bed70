"""Actions of a visitor of the page."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.page import Browser
from tests.e2e.processes import Cohort
from tests.playground.drawings import Stroke

NO_ANSWER = re.compile(r"The answer appears here\.|Waiting for the answer…|(Loading|Opening) .*")


def opened(chromium: Browser, server: Cohort, path: str = "") -> Page:
    """Return a view of the page, when it is there."""
    chromium.page.goto(f"{server.url}/playground{path}")
    expect(chromium.page.locator("main")).not_to_have_attribute("aria-busy", "true")
    return chromium.page


def answer(page: Page) -> str:
    """Return the first text in the region of the answer, once there is an answer."""
    status = page.get_by_role("region", name="Answer").get_by_role("status")
    expect(status).not_to_have_text(NO_ANSWER)
    return status.inner_text()


def draw(page: Page, strokes: list[Stroke]) -> None:
    """Draw with the mouse."""
    canvas = page.get_by_role("img", name="Draw")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    for stroke in strokes:
        points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*points[0])
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*point)
        page.mouse.up()


def press(page: Page, name: str) -> None:
    """Press a button."""
    page.get_by_role("button", name=name, exact=True).click()
