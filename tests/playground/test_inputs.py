"""Inputs that are files or text, answers with labels, and links that hold what was asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import soundfile
from onnx import TensorProto, helper
from PIL import Image
from playwright.sync_api import expect

from tests import onnx_models
from tests.browser.page import CHROMIUM, Browser
from tests.e2e.processes import Cohort, cohort
from tests.playground.visiting import answer, opened, press

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: make packages")


def loudness() -> onnx.ModelProto:
    """`sound` FP32 [N, samples] → `loud` FP32 [N, 2]: the highest and the lowest sample."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMax", ["sound", "axes"], ["most"], keepdims=1),
            helper.make_node("ReduceMin", ["sound", "axes"], ["least"], keepdims=1),
            helper.make_node("Concat", ["most", "least"], ["loud"], axis=1),
        ],
        "loudness",
        [value("sound", TensorProto.FLOAT, ["N", "samples"])],
        [value("loud", TensorProto.FLOAT, ["N", 2])],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A model that listens, one with labels, and one that takes texts."""
    folder = tmp_path_factory.mktemp("inputs")
    models = folder / "models"
    onnx_models.save(loudness(), models / "loud/1/model.onnx")
    (models / "loud/config.yaml").write_text(
        "inputs: {sound: {audio: {sample_rate: 8000}}}\noutputs: {loud: {labels: [high, low]}}\n"
    )
    for version in ("1", "2"):
        onnx_models.save(onnx_models.mlp(), models / f"shapes/{version}/model.onnx")
    (models / "shapes/config.yaml").write_text(
        "versions: all\noutputs: {y: {labels: [circle, square, line], softmax: true}}\n"
    )
    onnx_models.save(onnx_models.identity("BYTES", ("N",)), models / "echo/1/model.onnx")
    onnx_models.save(onnx_models.identity("FP32", ("N", 3, 2, 2)), models / "seen/1/model.onnx")
    (models / "seen/config.yaml").write_text("inputs: {x: {image: {size: [2, 2]}}}\n")
    with cohort(models, folder) as started:
        yield started


def test_a_sound_file_is_chosen_heard_and_sent(
    chromium: Browser, server: Cohort, tmp_path: Path
) -> None:
    """The answer has the label of the best class; clearing takes the file away."""
    file = tmp_path / "short.wav"
    soundfile.write(file, np.array([0.0, 0.5, -0.25, 0.0] * 200), 8000, subtype="FLOAT")
    page = opened(chromium, server, "/models/loud")
    press(page, "Predict")
    assert "Choose or drop a file" in answer(page)
    field = page.get_by_label("sound: Choose a sound file or drop it here")
    field.set_input_files(file)
    expect(page.locator("audio")).to_be_visible()
    expect(page.locator(".preview figcaption")).to_contain_text("short.wav")
    press(page, "Predict")
    status = page.get_by_role("region", name="Answer").get_by_role("status")
    expect(status).to_contain_text("high")
    press(page, "Clear")
    expect(page.locator("audio")).to_have_count(0)
    press(page, "Predict")
    assert "Choose or drop a file" in answer(page)


def test_a_picture_is_previewed_and_sent(chromium: Browser, server: Cohort, tmp_path: Path) -> None:
    """The page sends the file, and the server decodes it."""
    file = tmp_path / "red.png"
    Image.new("RGB", (40, 30), (255, 0, 0)).save(file)
    page = opened(chromium, server, "/models/seen")
    page.get_by_label("x: Choose a picture or drop it here").set_input_files(file)
    expect(page.get_by_role("img", name="The picture that is sent")).to_be_visible()
    press(page, "Predict")
    assert "[1, 3, 2, 2]" in answer(page)


def test_a_file_that_is_none_is_refused_in_words(
    chromium: Browser, server: Cohort, tmp_path: Path
) -> None:
    """The server refuses it and names the input."""
    file = tmp_path / "none.wav"
    file.write_bytes(b"this is no sound")
    page = opened(chromium, server, "/models/loud")
    page.get_by_label("sound: Choose a sound file or drop it here").set_input_files(file)
    expect(page.locator(".preview figcaption")).to_contain_text("none.wav")
    press(page, "Predict")
    assert "'sound'" in answer(page)


def test_a_link_holds_model_version_and_input(chromium: Browser, server: Cohort) -> None:
    """The link shows the same rows and the same version, and gets the same answer."""
    page = opened(chromium, server, "/models/shapes")
    page.get_by_label("Version", exact=True).select_option("1")
    for place, value in enumerate(["0.5", "-1.25", "3", "0.001"]):
        page.locator(f"#cell-0-{place}").fill(value)
    press(page, "Predict")
    first = answer(page)
    assert any(first.startswith(label) for label in ("circle", "square", "line"))
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    expect(page.locator("main")).not_to_have_attribute("aria-busy", "true")
    assert page.get_by_label("Version", exact=True).input_value() == "1"
    filled = [page.locator(f"#cell-0-{place}").input_value() for place in range(4)]
    assert filled == ["0.5", "-1.25", "3", "0.001"]
    press(page, "Predict")
    assert answer(page) == first


def test_a_link_to_a_text_fills_the_box(chromium: Browser, server: Cohort) -> None:
    """A link whose input does not fit is treated as one without input."""
    page = opened(chromium, server, "/models/echo")
    page.get_by_label("x", exact=True).fill("Größe & more")
    press(page, "Predict")
    assert "Größe & more" in answer(page)
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    expect(page.get_by_label("x", exact=True)).to_have_value("Größe & more")
    opened(chromium, server, '/models/echo?input={"y":[1]}&version=9')
    assert page.get_by_label("Version", exact=True).input_value() == "1"
