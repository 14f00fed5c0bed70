"""Take the pictures of /docs and the playground: `make pictures`.

To measure the first load: python -c "from tools.pictures.__main__ import first_load; first_load()"
"""

from __future__ import annotations

import re
import shutil
import tempfile
from itertools import product
from pathlib import Path

from playwright.sync_api import FloatRect, Locator, Page, ViewportSize, expect

from tests import onnx_models
from tests.browser.page import Browser, browser
from tests.e2e.processes import MODELS, cohort
from tests.playground.drawings import drawings
from tests.playground.visiting import answer, draw, opened, press
from tools import ROOT

FOLDER = ROOT / "docs/images"

DEVICES: dict[str, ViewportSize] = {
    "desk": {"width": 1280, "height": 800},
    "phone": {"width": 390, "height": 844},
}

ROUNDS = 11

USABLE = """
window.usable = new Promise(resolve => new MutationObserver((_, watch) => {
    const main = document.querySelector("main");
    if (!main?.firstElementChild?.matches(":not(noscript)") || main.ariaBusy === "true") return;
    watch.disconnect();
    requestAnimationFrame(() => setTimeout(() => resolve(performance.now())));
}).observe(document, { subtree: true, childList: true, attributes: true }));
"""

CALM = "*, ::before, ::after { transition: none !important; animation: none !important; }"


def main() -> None:
    """Serve iris and an image classifier, and write a picture of each in /docs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = folder / "models"
        shutil.copytree(MODELS / "iris", models / "iris")
        onnx_models.save(onnx_models.image_classifier(), models / "photos/1/model.onnx")
        with cohort(models, folder, port=8000) as server, browser() as started:
            started.open_docs(server.url.replace("127.0.0.1", "localhost"))
            operation = started.operation("/models/iris/predict")
            operation.locator("button.execute").click()
            answer = operation.locator(".live-responses-table .response").first
            answer.wait_for()
            _take(started, operation, answer, "docs-iris.png")
            operation.locator(".opblock-summary").click()
            operation = started.operation("/models/photos/predict")
            _take(started, operation, operation.locator("button.execute"), "docs-image.png")


def playground() -> None:
    """Serve the bundled models, and write pictures of the page: light, dark, wide, narrow."""
    digit = next(strokes for digit, strokes in drawings() if digit == 2)
    with (
        tempfile.TemporaryDirectory() as name,
        cohort(MODELS, Path(name), port=8000) as server,
        browser() as started,
    ):
        page = started.page
        for scheme, (device, size) in product(("light", "dark"), DEVICES.items()):
            kind, on_phone = f"{scheme}-{device}", device == "phone"
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.set_viewport_size(size)
            opened(started, server)
            expect(page.get_by_role("article", name="iris")).to_contain_text("on cpu")
            _save(page, f"playground-models-{kind}.png")
            opened(started, server, "/models/digits")
            draw(page, digit)
            press(page, "Predict" if on_phone else "Run in browser")
            answer(page)
            if not on_phone:
                expect(page.locator(".sides section")).to_have_count(2)
            page.evaluate("scrollTo(0, 0)")
            _save(page, f"playground-digits-{kind}.png", whole=on_phone)
            opened(started, server, "/models/digits/versions/2")
            page.locator(".node", has_text="Conv").first.click()
            _save(page, f"playground-graph-{kind}.png")
            opened(started, server, "/live")
            page.get_by_label("Requests, at most").fill("2000")
            press(page, "Send load")
            expect(page.get_by_role("form", name="Load")).to_contain_text("answered")
            expect(page.get_by_role("row", name="digits/2")).to_contain_text(re.compile(r"\d00\d"))
            page.evaluate("scrollTo(0, 0)")
            _save(page, f"playground-live-{kind}.png")


def first_load() -> None:
    """Print how long the playground takes until it is usable, in browsers with an empty cache."""
    with (
        tempfile.TemporaryDirectory() as name,
        cohort(MODELS, Path(name)) as server,
        browser() as started,
    ):
        chromium = started.page.context.browser
        assert chromium is not None
        for path in ("", "/models/digits", "/models/digits/versions/2", "/live"):
            taken = []
            for _ in range(ROUNDS):
                page = chromium.new_page(viewport={"width": 1280, "height": 800})
                page.add_init_script(USABLE)
                page.goto(f"{server.url}/playground{path}")
                taken.append(page.evaluate("window.usable"))
                page.close()
            taken.sort()
            middle = taken[ROUNDS // 2]
            print(f"/playground{path}: {middle:.0f} ms ({taken[0]:.0f} to {taken[-1]:.0f})")


def _save(page: Page, name: str, *, whole: bool = False) -> None:
    """Write a picture of the view, or of the upper part of the whole page."""
    clip: FloatRect | None = {"x": 0, "y": 0, "width": 390, "height": 1500} if whole else None
    path = FOLDER / name
    page.screenshot(path=path, clip=clip, full_page=whole, style=CALM)
    print(f"wrote {path.relative_to(ROOT)}, {path.stat().st_size:,} bytes")


def _take(started: Browser, operation: Locator, last: Locator, name: str) -> None:
    """Write a picture of an operation down to its part `last`."""
    box, end = operation.bounding_box(), last.bounding_box()
    assert box is not None
    assert end is not None
    height = end["y"] + end["height"] + 12 - box["y"]
    clip: FloatRect = {"x": box["x"], "y": box["y"], "width": box["width"], "height": height}
    scrolled = started.page.evaluate("window.scrollY")
    clip["y"] += scrolled
    path = FOLDER / name
    started.page.screenshot(path=path, clip=clip, full_page=True, style=CALM)
    print(f"wrote {path.relative_to(ROOT)}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
    playground()
