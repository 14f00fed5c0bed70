"""The same model in the visitor's browser, by ONNX Runtime's own build for it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import numpy as np
import pytest
from playwright.sync_api import expect

from tests import onnx_models
from tests.browser.page import CHROMIUM, SOFTWARE_GPU, Browser, browser
from tests.e2e.processes import MODELS, ROOT, Cohort, cohort
from tests.pages.blocks import ASKED, blocks_of
from tests.playground.drawings import drawings
from tests.playground.visiting import answer, draw, opened, press
from tests.waiting import PATIENCE

RUNTIME = ROOT / "app/cohort/http/playground/page/runtime/package.json"

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: make packages"),
    pytest.mark.skipif(
        not RUNTIME.exists(), reason="onnxruntime-web is missing: make page-runtime"
    ),
]

GIVEN_OUT = "playground: {download: true}\n"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser with WebGPU, in software."""
    with browser(flags=SOFTWARE_GPU) as started:
        yield started


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """The bundled models, one in half precision, one with external weights, one that is kept."""
    folder = tmp_path_factory.mktemp("in_browser")
    models = folder / "models"
    for name in ("digits", "iris"):
        shutil.copytree(MODELS / name, models / name)
    onnx_models.save(onnx_models.identity("FP16", ("N", 3)), models / "halves/1/model.onnx")
    onnx_models.save_with_external_data(onnx_models.mlp(), models / "outside/1/model.onnx")
    for name in ("halves", "outside"):
        (models / name / "config.yaml").write_text(GIVEN_OUT)
    with (models / "outside/config.yaml").open("a") as config:
        config.write("example: {x: [[0.5, -1.25, 2.0, 0.1]]}\n")
    onnx_models.save(onnx_models.mlp(), models / "kept/1/model.onnx")
    with cohort(models, folder) as started:
        yield started


def furthest(text: str) -> float:
    """Return how far the answers are from each other, as shown on the page."""
    found = re.findall(r"(?:differs by at most ([\d.e+-]+|Infinity)|is (equal))", text)
    assert found, text
    return max(float(most) if most else 0.0 for most, _ in found)


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_digit_is_read_here_as_there(chromium: Browser, server: Cohort, version: str) -> None:
    """In FP32 and in INT8, the digit is the same, and the scores are close."""
    page = opened(chromium, server, "/models/digits")
    page.get_by_label("Version", exact=True).select_option(version)
    draw(page, next(strokes for digit, strokes in drawings() if digit == 6))
    press(page, "Run in browser")
    expect(page.locator(".sides section")).to_have_count(2)
    assert answer(page) == "The same class: 6."
    assert furthest(page.locator("[aria-label=Answer]").inner_text()) < 1e-3
    sides = [one.get_attribute("aria-label") for one in page.locator(".sides section").all()]
    assert sides[0] == f"Server, version {version}"
    assert str(sides[1]).startswith("This browser, WebAssembly")
    assert chromium.violations == []


@pytest.mark.parametrize(("model", "most"), [("iris", 4e-6), ("halves", 1e-9), ("outside", 4e-6)])
def test_other_models_agree(chromium: Browser, server: Cohort, model: str, most: float) -> None:
    """They are a forest of scikit-learn, half precision, and weights in a separate file."""
    page = opened(chromium, server, f"/models/{model}")
    if model == "halves":
        for place, value in enumerate(("0.1", "-65504", "5e-8")):
            page.locator(".fields input").nth(place).fill(value)
    press(page, "Run in browser")
    expect(page.locator(".sides section")).to_have_count(2)
    assert furthest(page.locator("[aria-label=Answer]").inner_text()) <= most


@pytest.mark.parametrize(
    ("model", "version", "most"),
    [
        ("digits", "1", 4e-6),
        *([("digits", "2", 1e-3)] if ASKED == "all" else []),
        ("halves", "1", 1e-9),
        ("outside", "1", 4e-6),
    ],
)
def test_models_agree_by_webgpu(
    chromium: Browser, server: Cohort, model: str, version: str, most: float
) -> None:
    """They are FP32, half precision, and weights in a separate file; with PAGES=all also INT8."""
    page = opened(chromium, server, f"/models/{model}")
    page.get_by_label("Version", exact=True).select_option(version)
    if model == "digits":
        draw(page, next(strokes for digit, strokes in drawings() if digit == 6))
    for place, value in enumerate(("0.1", "-65504", "5e-8") if model == "halves" else ()):
        page.locator(".fields input").nth(place).fill(value)
    page.get_by_label("In the browser with").select_option("WebGPU")
    press(page, "Run in browser")
    expect(page.locator(".sides section")).to_have_count(2)
    assert furthest(page.locator("[aria-label=Answer]").inner_text()) <= most
    assert page.locator(".sides section").last.get_attribute("aria-label") == "This browser, WebGPU"
    assert chromium.violations == chromium.complaints == []


def test_what_webgpu_has_no_operator_for_runs_in_webassembly(
    chromium: Browser, server: Cohort
) -> None:
    """The answer for a forest names its runtime, and the reason against WebGPU."""
    page = opened(chromium, server, "/models/iris")
    page.get_by_label("In the browser with").select_option("WebGPU")
    press(page, "Run in browser")
    side = page.get_by_role("region", name="This browser, WebAssembly")
    expect(side).to_contain_text("WebGPU cannot run this model")
    expect(side).to_contain_text("TreeEnsembleClassifier")
    assert furthest(page.locator("[aria-label=Answer]").inner_text()) <= 4e-6


def test_where_there_is_no_adapter_webassembly_does_it(chromium: Browser, server: Cohort) -> None:
    """A browser that has WebGPU by name alone."""
    page = opened(chromium, server, "/models/iris")
    page.evaluate("navigator.gpu.requestAdapter = async () => null")
    page.get_by_label("In the browser with").select_option("WebGPU")
    press(page, "Run in browser")
    side = page.get_by_role("region", name="This browser, WebAssembly")
    expect(side).to_contain_text("no graphics adapter")


WATCH_LOADING = """() => {
    const [texts, shares] = window.loading = [[], []];
    const look = () => {
        const text = document.querySelector(".answer [role=status]").textContent;
        const bar = document.querySelector(".answer progress");
        if (bar && texts.at(-1) !== text) texts.push(text);
        if (bar && bar.position >= 0) shares.push(bar.position);
    };
    new MutationObserver(look).observe(document.querySelector(".answer"),
        {subtree: true, childList: true, attributes: true, characterData: true});
}"""
"""Records the texts shown while files are loaded, and the places of the bar."""


def test_what_is_loaded_only_when_asked_for(chromium: Browser, server: Cohort) -> None:
    """The runtime and the model are loaded once the button is pressed, with their progress."""
    assert chromium.page.context.browser is not None
    page = chromium.page.context.browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    opened(Browser(page), server, "/models/iris")
    assert not [url for url in asked if "/runtime/" in url or "/files/model" in url]
    page.evaluate(WATCH_LOADING)
    press(page, "Run in browser")
    expect(page.locator(".sides section")).to_have_count(2)
    texts, shares = page.evaluate("window.loading")
    assert re.fullmatch(r"Loading ONNX Runtime \S+ for browsers \(14 MB\)…", texts[0])
    assert texts[1:] == ["Loading model.onnx (under 0.1 MB)…", "Opening the model…"]
    assert max(shares) == 1
    assert [url for url in asked if url.endswith(".wasm")]
    assert all(url.startswith((server.url, "data:", "blob:")) for url in asked)
    page.close()


def test_a_model_is_given_out_where_its_operator_says_so(chromium: Browser, server: Cohort) -> None:
    """Otherwise there is no button, and no file; never one that is not the model's."""
    page = opened(chromium, server, "/models/kept")
    expect(page.get_by_role("button", name="Predict")).to_be_visible()
    expect(page.get_by_role("button", name="Run in browser")).to_be_hidden()
    data = f"{server.url}/playground/data"
    refused = httpx.get(f"{data}/kept/1/files/model.onnx")
    assert refused.status_code == httpx.codes.FORBIDDEN
    assert "playground: {download: true}" in refused.json()["error"]
    given = httpx.get(f"{data}/iris/1/files/model.onnx").raise_for_status()
    assert given.content == (MODELS / "iris/1/model.onnx").read_bytes()
    for path in (
        "iris/1/files/../config.yaml",
        "iris/1/files/%2e%2e/config.yaml",
        "iris/9/files/model.onnx",
    ):
        assert httpx.get(f"{data}/{path}").status_code == httpx.codes.NOT_FOUND


def test_half_precision_is_that_of_the_standard(chromium: Browser, server: Cohort) -> None:
    """Every half there is, and numbers between them, as numpy rounds them."""
    page = opened(chromium, server, "/models/iris")
    halves = np.arange(65536, dtype=np.uint16)
    numbers = halves.view(np.float16).astype(np.float64)
    between = np.random.default_rng(1).uniform(-70000, 70000, 2000).astype(np.float32)
    small = (between * 1e-9).astype(np.float32)
    script = """async ([files, numbers]) => {
        const { toHalf, fromHalf } = await import(files + "/halves.js");
        const all = Array.from({length: 65536}, (_, half) => fromHalf(half));
        return [all.map(String), numbers.map(toHalf)];
    }"""
    files = page.evaluate("new URL('.', document.querySelector('script').src).href.slice(0, -1)")
    with np.errstate(over="ignore"):
        wanted = np.concatenate([between, small]).astype(np.float16).view(np.uint16)
    read, written = page.evaluate(script, [files, np.concatenate([between, small]).tolist()])
    assert written == wanted.tolist()
    back = np.array([float(one.replace("Infinity", "inf")) for one in read])
    np.testing.assert_array_equal(back, numbers)


def test_the_page_of_the_guide_answers_as_the_server(
    chromium: Browser, server: Cohort, tmp_path: Path
) -> None:
    """Made of the files that the guide names, by a server that knows nothing of them."""
    blocks = list(blocks_of((ROOT / "docs/guide/browsers.md").read_text()))
    (copying,) = [one.text for one in blocks if "make page-runtime" in one.text]
    (tmp_path / "app/cohort/http/playground/page").mkdir(parents=True)
    (tmp_path / "app/cohort/http/playground/page/runtime").symlink_to(RUNTIME.parent)
    (tmp_path / "models").symlink_to(MODELS)
    subprocess.run(
        ["sh", "-ec", copying.replace("make page-runtime\n", "")], cwd=tmp_path, check=True
    )
    for block in blocks:
        if block.file:
            (tmp_path / block.file).write_text(block.text)
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path / "mine")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as files:
        serving = Thread(target=files.serve_forever)
        serving.start()
        try:
            chromium.page.goto(f"http://127.0.0.1:{files.server_port}/")
            shown = chromium.page.locator("#answer")
            expect(shown).not_to_have_text("…", timeout=PATIENCE * 1000)
            digit, _, scores = shown.inner_text().partition(": ")
        finally:
            files.shutdown()
            serving.join()
    asked = {"model": "digits", "version": "1", "input": np.zeros((1, 1, 8, 8)).tolist()}
    answered = httpx.post(f"{server.url}/predict", json=asked).raise_for_status().json()
    (expected,) = answered["prediction"]
    np.testing.assert_allclose([float(one) for one in scores.split(", ")], expected, atol=4e-6)
    assert int(digit) == np.argmax(expected)
    chromium.complaints.clear()  # such a page has no icon


def test_what_is_on_disk_and_does_not_serve_is_not_given(tmp_path: Path) -> None:
    """A file that was replaced and cannot be loaded."""
    models = tmp_path / "models"
    shutil.copytree(MODELS / "iris", models / "iris")
    with cohort(models, tmp_path) as server:
        (models / "iris/1/model.onnx").write_bytes(b"no model")
        server.wait_for("/playground/data/iris/1/files/model.onnx", 404)
