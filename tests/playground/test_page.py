"""The page in a real browser, over the bundled models and a few odd ones."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import onnx
import pytest
from playwright.sync_api import Page, Route, expect

from tests import onnx_models
from tests.browser.page import CHROMIUM, VIOLATIONS, Browser
from tests.e2e.processes import MODELS, Cohort, cohort
from tests.pages.blocks import ASKED
from tests.playground.drawings import HANDS, drawings
from tests.playground.visiting import answer, draw, opened, press

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: make packages")

HOSTILE = "<img src=x onerror='window.smuggled=1'><script>window.smuggled=1</script>"


def hostile_model() -> onnx.ModelProto:
    """Return a model in whose metadata is HTML."""
    model = onnx_models.identity()
    model.doc_string = model.producer_name = HOSTILE
    onnx.helper.set_model_props(model, {HOSTILE: HOSTILE, "classes": json.dumps([HOSTILE] * 3)})
    return model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """The bundled models, and models of other inputs."""
    folder = tmp_path_factory.mktemp("playground")
    models = folder / "models"
    for name in ("digits", "iris"):
        shutil.copytree(MODELS / name, models / name)
    for name, model in {
        "photos": onnx_models.image_classifier(),
        "words": onnx_models.strings(),
        "pairs": onnx_models.two_inputs(),
        "hostile": hostile_model(),
        "cubes": onnx_models.identity("FP32", ("N", 2, 2)),
        "whole": onnx_models.identity("INT64", ("N", 2)),
    }.items():
        onnx_models.save(model, models / name / "1/model.onnx")
    (models / "broken/1").mkdir(parents=True)
    (models / "broken/1/model.onnx").write_bytes(b"no model")
    with cohort(models, folder) as started:
        yield started


@pytest.fixture
def fresh(chromium: Browser) -> Iterator[Page]:
    """A new page."""
    assert chromium.page.context.browser is not None
    page = chromium.page.context.browser.new_page()
    page.add_init_script(VIOLATIONS)
    yield page
    page.close()


# --- The way there


def test_a_browser_at_the_address_sees_the_models(chromium: Browser, server: Cohort) -> None:
    """`/` leads to the page, which has a card for each, what fails and why among them."""
    chromium.page.goto(server.url)
    assert chromium.page.url == f"{server.url}/playground"
    digits = chromium.page.get_by_role("article", name="digits")
    expect(digits).to_contain_text("image FP32 [N, 1, 8, 8] → probabilities FP32 [N, 10]")
    expect(digits).to_contain_text("on cpu")
    expect(chromium.page.get_by_role("article", name="broken")).to_contain_text("UNAVAILABLE")
    chromium.page.get_by_role("link", name="digits").click()
    expect(chromium.page).to_have_url(f"{server.url}/playground/models/digits")
    expect(chromium.page.get_by_role("img", name="Draw")).to_be_visible()
    chromium.page.go_back()
    expect(chromium.page.get_by_role("article", name="iris")).to_be_visible()


def test_a_model_that_is_not_there_is_said_to_be_missing(chromium: Browser, server: Cohort) -> None:
    """The page shows the server's error."""
    page = opened(chromium, server, "/models/nothing")
    expect(page.get_by_role("alert")).to_contain_text("nothing")


@pytest.mark.parametrize(
    ("profile", "wanted"),
    [
        (
            {"filled_rows": 16, "change_seconds": 0.1},
            "padded to 16 rows, because a change in the number of rows costs 100 ms",
        ),
        (
            {"filled_rows": 2, "change_seconds": 0},
            "A single row runs as 2 rows, because its result would differ",
        ),
    ],
)
def test_a_version_whose_runs_are_filled_up_says_so(
    fresh: Page, server: Cohort, profile: dict[str, float], wanted: str
) -> None:
    """The note appears on a device where filling matters, or for the same bits."""

    def charge(route: Route) -> None:
        response = route.fetch()
        found = response.json()
        found["versions"][0]["profile"] |= profile
        route.fulfill(response=response, json=found)

    fresh.goto(f"{server.url}/playground/models/iris")
    expect(fresh.get_by_role("heading", name="Batches")).to_be_attached()
    expect(fresh.locator("main")).not_to_contain_text(wanted)
    fresh.route(f"{server.url}/models/iris", charge)
    fresh.reload()
    expect(fresh.locator("main")).to_contain_text(wanted)


def test_where_rows_are_is_said_with_the_verdict(fresh: Page, server: Cohort) -> None:
    """Inputs and outputs whose rows are not along axis 0 are named; a bundled model has no such."""

    def charge(route: Route) -> None:
        response = route.fetch()
        found = response.json()
        found["versions"][0]["batching"]["rows"] |= {
            "verdict": "shared",
            "input_axes": {"x": 0, "h": 1, "rate": None},
            "output_axes": {"y": 2},
        }
        route.fulfill(response=response, json=found)

    fresh.goto(f"{server.url}/playground/models/iris")
    expect(fresh.get_by_text(re.compile("^Rows in the graph: proven$"))).to_be_attached()
    fresh.route(f"{server.url}/models/iris", charge)
    fresh.reload()
    wanted = (
        "shared; input h along axis 1; input rate once for the whole run; output y along axis 2"
    )
    expect(fresh.get_by_text(f"Rows in the graph: {wanted}", exact=True)).to_be_attached()


# --- Try it


def test_a_digit_drawn_by_hand_is_read(chromium: Browser, server: Cohort) -> None:
    """The label comes first; Clear forgets it."""
    page = opened(chromium, server, "/models/digits")
    draw(page, next(strokes for digit, strokes in drawings() if digit == 3))
    press(page, "Predict")
    assert answer(page).startswith("3")
    expect(page.locator(".bars li").first).to_contain_text("3")
    press(page, "Clear")
    expect(page.get_by_role("region", name="Answer")).to_contain_text("The answer appears here.")
    press(page, "Predict")
    assert "Draw something or choose a picture first" in answer(page)


def test_another_version_is_given_what_was_drawn(chromium: Browser, server: Cohort) -> None:
    """Another version of the model receives the same drawing."""
    page = opened(chromium, server, "/models/digits")
    draw(page, next(strokes for digit, strokes in drawings() if digit == 3))
    with page.expect_request("**/playground/data/digits/1"):
        page.get_by_label("Version", exact=True).select_option("1")
    with page.expect_request("**/versions/1/predict*"):
        press(page, "Predict")
    assert answer(page).startswith("3")


def test_drawings_are_read(chromium: Browser, server: Cohort) -> None:
    """Each version reads them, whatever their place, size, slant and tremor.

    Each digit is drawn by one of the five hands; with PAGES=all by each of them.
    """
    page = opened(chromium, server, "/models/digits")
    pictures = []
    for number, (digit, strokes) in enumerate(drawings()):
        if ASKED != "all" and number % len(HANDS) != digit % len(HANDS):
            continue
        press(page, "Clear")
        draw(page, strokes)
        pictures.append((digit, given(page)))
    assert len(pictures) == (50 if ASKED == "all" else 10)
    for version in ("1", "2"):
        response = httpx.post(
            f"{server.url}/models/digits/versions/{version}/predict",
            json={"inputs": {"image": [picture for _, picture in pictures]}},
        )
        rows = response.raise_for_status().json()["outputs"]["probabilities"]
        wrong = [
            (digit, row.index(max(row)))
            for (digit, _), row in zip(pictures, rows, strict=True)
            if row.index(max(row)) != digit
        ]
        assert wrong == []


def given(page: Page) -> list[list[list[float]]]:
    """Return the model's input, as the page shows it."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    grey: list[int] = page.evaluate(
        """() => {
            const seen = document.querySelector("canvas.seen");
            const data = seen.getContext("2d").getImageData(0, 0, 8, 8).data;
            return Array.from({length: 64}, (_, place) => data[place * 4]);
        }"""
    )
    return [[[grey[row * 8 + column] / 255 for column in range(8)] for row in range(8)]]


def test_fields_of_a_table(chromium: Browser, server: Cohort) -> None:
    """The example is filled in; other values give another answer; CSV brings rows."""
    page = opened(chromium, server, "/models/iris")
    press(page, "Predict")
    assert answer(page).split()[0] in {"setosa", "versicolor", "virginica"}
    fields = page.locator(".fields input")
    for place, value in enumerate(("6.3", "3.3", "6", "2.5")):
        fields.nth(place).fill(value)
    press(page, "Predict")
    expect(page.get_by_role("region", name="Answer").get_by_role("status")).to_contain_text(
        "virginica"
    )
    page.get_by_text("Paste CSV").click()
    page.get_by_label("Rows, with or without").fill("5.1,3.5,1.4,0.2\n6.3,3.3,6,2.5\n")
    press(page, "Use these rows")
    press(page, "Predict")
    expect(page.locator("table").last).to_contain_text("virginica")
    assert "setosa" in answer(page)
    fields = page.locator("td input")
    fields.first.fill("a lot")
    press(page, "Predict")
    expect(page.get_by_role("status")).to_contain_text('must be a number, not "a lot"')


def test_a_text_is_asked_for_in_a_box(chromium: Browser, server: Cohort) -> None:
    """A model that takes text has a text box."""
    page = opened(chromium, server, "/models/words")
    page.locator("form textarea").first.fill("Grüße 🙂")
    press(page, "Predict")
    assert "Grüße 🙂" in answer(page)


def test_other_inputs_are_json(chromium: Browser, server: Cohort) -> None:
    """The box is filled in; faults in its JSON and the model's complaints are both shown."""
    page = opened(chromium, server, "/models/cubes")
    box = page.get_by_label("Inputs, as JSON")
    box.fill('{"x": [[[1, 2], [3, 4]]]}')
    press(page, "Predict")
    assert "1, 2, 3, 4" in page.locator(".values").inner_text()
    for text, complaint in {
        "{": "This is not JSON",
        "{}": 'The input "x" is missing',
        '{"x": [[[1, 2], [3]]]}': "the same length",
        '{"x": [[["a", 2], [3, 4]]]}': "must contain numbers",
        '{"x": [[1, 2]]}': "x",
    }.items():
        box.fill(text)
        press(page, "Predict")
        expect(page.get_by_role("status")).to_contain_text(complaint)


def test_whole_numbers_stay_whole(chromium: Browser, server: Cohort) -> None:
    """This holds for 64-bit integers, up to the limit of JSON."""
    page = opened(chromium, server, "/models/whole")
    for place, value in enumerate(("9007199254740991", "-3")):
        page.locator(".fields input").nth(place).fill(value)
    press(page, "Predict")
    answer(page)
    expect(page.locator("details pre").first).to_contain_text("[9007199254740991,-3]")


def test_a_picture_is_dropped(chromium: Browser, server: Cohort, tmp_path: Path) -> None:
    """It is red at the left and blue at the right: the model gets them in that order."""
    page = opened(chromium, server, "/models/photos")
    page.evaluate(
        """async () => {
            const canvas = new OffscreenCanvas(300, 200), context = canvas.getContext("2d");
            context.fillStyle = "red"; context.fillRect(0, 0, 150, 200);
            context.fillStyle = "blue"; context.fillRect(150, 0, 150, 200);
            const file = new File([await canvas.convertToBlob()], "two.png", {type: "image/png"});
            const transfer = new DataTransfer();
            transfer.items.add(file);
            document.querySelector(".picture").dispatchEvent(
                new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true}));
        }"""
    )
    page.wait_for_function(
        """() => {
            const pixels = document.querySelector("canvas.seen").getContext("2d");
            const [left, right] = [8, 216].map(x => pixels.getImageData(x, 100, 1, 1).data.join());
            return left === "255,0,0,255" && right === "0,0,255,255";
        }"""
    )
    with page.expect_request("**/infer*") as sent:
        press(page, "Predict")
    answer(page)
    assert "inference-header-content-length" in sent.value.headers  # as bytes
    press(page, "Clear")
    press(page, "Predict")
    expect(page.get_by_role("status")).to_contain_text("Choose a picture first")
    (tmp_path / "text.png").write_text("no picture")
    page.locator("input[type=file]").set_input_files(tmp_path / "text.png")
    expect(page.get_by_role("alert").last).to_contain_text("is not a picture")


def test_two_versions_are_compared(chromium: Browser, server: Cohort) -> None:
    """The same input on both, side by side, and how far they differ."""
    page = opened(chromium, server, "/models/digits")
    draw(page, next(strokes for digit, strokes in drawings() if digit == 4))
    press(page, "Compare")
    assert answer(page) == "The same class: 4."
    sides = page.locator(".sides section")
    expect(sides).to_have_count(2)
    assert [one.get_attribute("aria-label") for one in sides.all()] == ["Version 2", "Version 1"]
    expect(page.locator(".differences")).to_contain_text("probabilities differs by at most")


def test_the_request_can_be_sent_from_elsewhere(chromium: Browser, server: Cohort) -> None:
    """The text for a terminal is run, and answers what the page was answered."""
    page = opened(chromium, server, "/models/iris")
    press(page, "Predict")
    label = answer(page).split()[0]
    page.get_by_text("This request in").click()
    command = page.locator(".snippet pre").first.inner_text()
    assert command.startswith("curl -s 'http://127.0.0.1")
    body = json.loads(command.split("-d '")[1].rstrip("'"))
    url = command.split("'")[1]
    outputs = httpx.post(url, json=body).raise_for_status().json()["outputs"]
    classes = ["setosa", "versicolor", "virginica"]
    assert classes[outputs["label"][0]] == label


# --- Hostile use


def test_a_key_is_asked_for_and_kept_in_memory_alone(fresh: Page, tmp_path: Path) -> None:
    """The page works with it, and no storage, cookie or address has it."""
    key = "0123456789abcdef0123456789abcdef"
    keys = tmp_path / "keys.yaml"
    keys.write_text(f'- {{name: me, sha256: "{sha256(key.encode()).hexdigest()}", models: [iris]}}')
    with cohort(MODELS, tmp_path, api_keys=keys) as guarded:
        fresh.goto(f"{guarded.url}/playground/models/iris")
        expect(fresh.get_by_role("alert")).to_be_visible()
        fresh.get_by_label("Key").fill(key)
        press(fresh, "Use key")
        press(fresh, "Predict")
        answer(fresh)
        fresh.get_by_role("link", name="Models", exact=True).first.click()
        expect(fresh.get_by_role("article")).to_have_count(1)
        kept = fresh.evaluate(
            "JSON.stringify([location, document.cookie, {...localStorage}, {...sessionStorage}])"
        )
        assert key not in kept
        press(fresh, "Forget the key")
        expect(fresh.get_by_label("Key")).to_be_visible()


def test_what_a_model_says_is_text(chromium: Browser, server: Cohort) -> None:
    """HTML in a model's metadata is text on its card, in its form and in its answer."""
    page = opened(chromium, server)
    expect(page.get_by_role("article", name="hostile")).to_contain_text("<img src=x")
    page = opened(chromium, server, "/models/hostile")
    press(page, "Clear")
    press(page, "Predict")
    expect(page.get_by_role("status")).to_contain_text("Fill in a row first")
    for field in page.locator(".fields input").all():
        field.fill("1")
    press(page, "Predict")
    expect(page.get_by_role("status")).to_contain_text("<img src=x")
    assert page.locator("main img[src=x]").count() == 0
    assert page.evaluate("window.smuggled") is None


def test_nothing_leaves_the_origin_and_nothing_is_complained_of(
    fresh: Page, server: Cohort
) -> None:
    """No request goes elsewhere, the console is empty, and the policy blocks nothing."""
    asked, said = [], []
    fresh.on("request", lambda request: asked.append(request.url))
    fresh.on("console", lambda message: said.append(message.text))
    fresh.on("pageerror", lambda error: said.append(str(error)))
    for path in ("", "/models/digits", "/models/iris", "/models/photos"):
        opened(Browser(fresh), server, path)
        assert fresh.evaluate("window.violations") == []
    assert said == []
    assert len(asked) > 20
    assert all(url.startswith((server.url, "data:", "blob:")) for url in asked)


def test_the_first_load_is_small(fresh: Page, server: Cohort) -> None:
    """All that a model's view loads, its answers included."""
    loaded = []
    fresh.on("requestfinished", lambda request: loaded.append(request))  # noqa: PLW0108 - Playwright marks what it calls
    opened(Browser(fresh), server, "/models/digits")
    sizes = [request.sizes() for request in loaded]
    total = sum(size["responseBodySize"] + size["responseHeadersSize"] for size in sizes)
    assert 0 < total < 300_000
