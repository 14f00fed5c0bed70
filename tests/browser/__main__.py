"""Take the pictures of /docs again: python -m tests.browser"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import FloatRect, Locator

from tests import onnx_models
from tests.browser.page import Browser, browser
from tests.e2e.processes import MODELS, ROOT, cohort

FOLDER = ROOT / "docs/images"

CALM = "*, ::before, ::after { transition: none !important; animation: none !important; }"


def main() -> None:
    """Serve iris and a model of images, and write a picture of each in the page."""
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


main()
