"""The page with a keyboard, assistive technology, a phone, or many models."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests import onnx_models
from tests.browser.page import CHROMIUM, Browser
from tests.e2e.processes import MODELS, ROOT, Cohort, cohort
from tests.playground.drawings import drawings
from tests.playground.visiting import answer, draw, opened, press

AXE = ROOT / ".npm/node_modules/axe-core/axe.min.js"
MANY = 200

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: make packages")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """The bundled models and two hundred more, most of them not loaded until asked for."""
    folder = tmp_path_factory.mktemp("many")
    models = folder / "models"
    for name in ("digits", "iris"):
        shutil.copytree(MODELS / name, models / name)
    (folder / "rollouts.yaml").write_text(
        "digits: {variants: {old: {version: 1, weight: 90}, new: {version: 2, weight: 10}}}\n"
    )
    for number in range(MANY):
        onnx_models.save(onnx_models.mlp(hidden=2), models / f"many-{number:03}/1/model.onnx")
    with cohort(models, folder) as started:
        yield started


@pytest.fixture(params=["light phone", "dark desk"])
def width(request: pytest.FixtureRequest, chromium: Browser) -> Iterator[int]:
    """The width of the window, which is that of a phone or a desk.

    Colours are the same at each width, and places in each scheme: two pairs have all of them.
    """
    scheme, _, device = request.param.partition(" ")
    width, height = {"phone": (390, 844), "desk": (1280, 900)}[device]
    chromium.page.emulate_media(color_scheme=scheme)
    chromium.page.set_viewport_size({"width": width, "height": height})
    yield width
    chromium.page.emulate_media(color_scheme=None)
    chromium.page.set_viewport_size({"width": 1000, "height": 800})


def findings(page: Page) -> list[str]:
    """Return the findings that axe rates serious or critical.

    https://github.com/dequelabs/axe-core
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    result: dict[str, Any] = page.evaluate("axe.run()")
    assert len(result["passes"]) > 10
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:200]}"
        for one in result["violations"]
        if one["impact"] in {"serious", "critical"}
        for node in one["nodes"]
    ]


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is missing: make .npm/npm.stamp")
def test_axe_finds_nothing_serious(chromium: Browser, server: Cohort, width: int) -> None:
    """Every view passes, with an answer and a comparison in it; nothing is wider than the window.

    The cards of the models are alike: axe reads those of a search.
    """
    page = opened(chromium, server)
    page.get_by_role("searchbox").fill("i")
    expect(page.get_by_role("article")).to_have_count(2)
    assert findings(page) == []
    page = opened(chromium, server, "/models/digits")
    draw(page, next(strokes for digit, strokes in drawings() if digit == 2))
    press(page, "Compare")
    answer(page)
    for summary in page.locator("summary").all():
        summary.click()
    assert findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page = opened(chromium, server, "/models/iris")
    press(page, "Predict")
    answer(page)
    assert findings(page) == []
    page = opened(chromium, server, "/live")
    expect(page.locator("figure.live svg").first).to_be_visible()
    assert findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_all_of_it_works_by_keyboard(chromium: Browser, server: Cohort) -> None:
    """A visitor can go from the models to a digit drawn by arrows and read, without a pointer."""
    page = opened(chromium, server)
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.get_by_role("searchbox").focus()
    page.keyboard.type("digits")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="digits")).to_be_focused()
    page.keyboard.press("Enter")
    canvas = page.get_by_role("img", name="Draw")
    expect(canvas).to_be_visible()
    while not canvas.evaluate("canvas => canvas === document.activeElement"):
        page.keyboard.press("Tab")
    page.keyboard.press("Space")
    for _ in range(14):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    while not page.get_by_role("button", name="Predict").evaluate(
        "button => button === document.activeElement"
    ):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert answer(page)[0] == "1"


def test_two_hundred_models_stay_usable(chromium: Browser, server: Cohort) -> None:
    """Only visible cards request data; a search finds one, and is kept on the way back."""
    asked: list[str] = []
    assert chromium.page.context.browser is not None
    page = chromium.page.context.browser.new_page(viewport={"width": 1280, "height": 900})
    page.on("request", lambda request: asked.append(request.url))
    opened(Browser(page), server)
    expect(page.get_by_role("article")).to_have_count(MANY + 2)
    expect(page.get_by_role("article", name="digits")).to_contain_text("rollout: old 90 %")
    assert len([url for url in asked if "/models/" in url]) < MANY / 2
    page.get_by_role("searchbox").fill("many-19")
    expect(page.get_by_role("article")).to_have_count(10)
    expect(page.get_by_role("article", name="many-199")).to_contain_text("x FP32 [N, 4]")
    page.get_by_role("article", name="many-199").get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("many-199")
    page.go_back()
    expect(page.get_by_role("searchbox")).to_have_value("many-19")
    expect(page.get_by_role("article")).to_have_count(10)
    page.get_by_role("link", name="Models", exact=True).first.click()
    expect(page.get_by_role("article")).to_have_count(MANY + 2)
    page.go_back()
    expect(page.get_by_role("article")).to_have_count(10)
    page.get_by_role("searchbox").fill("")
    expect(page.get_by_role("article")).to_have_count(MANY + 2)
    assert page.url == f"{server.url}/playground"
    page.close()


def test_a_rollout_shows_its_shares(chromium: Browser, server: Cohort) -> None:
    """The card shows each variant's share, and the baseline."""
    page = opened(chromium, server, "/models/digits")
    rollout = page.get_by_role("region", name="Rollout")
    expect(rollout).to_contain_text("old (version 1), baseline")
    expect(rollout).to_contain_text("90 %")
    expect(rollout).to_contain_text("new (version 2)")
