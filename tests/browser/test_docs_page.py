"""/docs in a real browser, with a small model and one that takes images."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cohort.http.pages import MAX_UNFOLDED
from tests import onnx_models
from tests.browser.page import CHROMIUM, Browser, browser
from tests.e2e.processes import MODELS, Cohort, cohort

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: make packages")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """Iris, and a model of images, for pages of another origin too."""
    folder = tmp_path_factory.mktemp("page")
    models = folder / "models"
    shutil.copytree(MODELS / "iris", models / "iris")
    onnx_models.save(onnx_models.image_classifier(), models / "photos/1/model.onnx")
    with cohort(models, folder, cors_origins=PAGE) as started:
        yield started


@pytest.fixture(scope="module")
def docs(server: Cohort) -> Iterator[Browser]:
    """The page, where Swagger UI lists the routes."""
    with browser() as started:
        started.open_docs(server.url)
        yield started


def test_a_small_model_is_tried_out_as_it_is(docs: Browser) -> None:
    """Opening it and pressing Execute answers the example."""
    operation = docs.operation("/models/iris/predict")
    operation.locator("button.execute").click()
    answer = operation.locator(".live-responses-table .response").first
    answer.wait_for()
    assert answer.locator(".response-col_status").inner_text().strip() == "200"
    assert '"probabilities"' in answer.inner_text()


def test_a_model_of_images_has_a_short_example(docs: Browser) -> None:
    """The page has thousands of characters for it, not millions, and a call to copy."""
    for path in ("/models/photos/predict", "/v1/models/photos:predict"):
        operation = docs.operation(path)
        assert len(operation.locator("textarea").input_value()) < 500
        assert len(operation.inner_text()) < 10_000
        assert "--data-binary" in operation.locator(".opblock-description").inner_text()


def test_a_file_of_raw_data_is_tried_out(docs: Browser, tmp_path: Path) -> None:
    """The page reads an image's binary values from a file."""
    path = tmp_path / "image.bin"
    path.write_bytes(bytes(4 * 3 * 224 * 224))
    operation = docs.operation("/v2/models/photos/infer")
    operation.locator(".opblock-section-request-body .content-type").select_option(
        "application/octet-stream"
    )
    operation.locator("tr[data-param-name='Inference-Header-Content-Length'] input").fill("0")
    operation.locator("input[type=file]").set_input_files(path)
    operation.locator("button.execute").click()
    answer = operation.locator(".live-responses-table .response").first
    answer.wait_for()
    assert answer.locator(".response-col_status").inner_text().strip() == "200"


def test_nothing_of_the_page_is_blocked_and_nothing_else_runs(docs: Browser) -> None:
    """The console stays empty; a script that is not the page's is stopped and reported."""
    assert docs.complaints == []
    assert docs.violations == []
    assert docs.smuggle() == "script-src-elem"
    assert len(docs.violations) == 1


def test_many_models_are_folded(tmp_path: Path) -> None:
    """The page begins with their names, since a list of hundreds of paths takes long to make."""
    for number in range(MAX_UNFOLDED + 1):
        onnx_models.save(onnx_models.mlp(), tmp_path / f"models/m{number}/1/model.onnx")
    with cohort(tmp_path / "models", tmp_path) as server:
        assert '"docExpansion": "none"' in server.get("/docs").text


PAGE = "http://page.example"

FETCH = """async ([url, headers]) => {
    try {
        const body = '{"input": [[5.1, 3.5, 1.4, 0.2]]}';
        const answer = await fetch(`${url}/models/iris/predict`, {method: "POST", headers, body});
        return [answer.status, answer.headers.get("x-request-id") ?? "", await answer.json()];
    } catch (error) {
        return [0, "", String(error)];
    }
}"""


@pytest.mark.parametrize("origin", [PAGE, "http://other.example"])
def test_a_page_calls_if_its_origin_is_named(server: Cohort, docs: Browser, origin: str) -> None:
    """A named origin may send a key and an id after a preflight; others are stopped."""
    headers = {"x-api-key": "any", "x-request-id": "1", "content-type": "application/json"}
    with docs.other_page(origin) as page:
        status, request_id, answer = page.evaluate(FETCH, [server.url, headers])
    if origin == PAGE:
        assert (status, request_id) == (200, "1")
        assert answer["prediction"]["label"] == [0]
    else:
        assert (status, answer) == (0, "TypeError: Failed to fetch")
