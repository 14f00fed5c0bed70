"""Requests from the page: the last one is answered, with the values that were filled in."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests import onnx_models
from tests.browser.page import CHROMIUM, Browser
from tests.e2e.processes import MODELS, Cohort, cohort
from tests.playground.visiting import answer, opened, press

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: make packages")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """Models of which there are two versions, or that take or answer odd things."""
    folder = tmp_path_factory.mktemp("tried")
    models = folder / "models"
    for path, model in {
        "times/1": onnx_models.times(2.0),
        "times/2": onnx_models.times(3.0),
        "renamed/1": onnx_models.describe(
            onnx_models.identity(), {"feature_names": json.dumps(["a", "b", "c"])}
        ),
        "renamed/2": onnx_models.describe(
            onnx_models.identity(), {"feature_names": json.dumps(["c", "b", "a"])}
        ),
        "reciprocal/1": onnx_models.reciprocal(),
        "default/1": onnx_models.with_defaults(),
        "truth/1": onnx_models.identity("BOOL", ("N", 2)),
        "ids/1": onnx_models.identity("INT64", ("N", 1)),
    }.items():
        onnx_models.save(model, models / path / "model.onnx")
    for path in ("times", "renamed"):
        (models / path / "config.yaml").write_text("versions: all\n")
    shutil.copytree(MODELS / "iris", models / "iris")
    shutil.copytree(MODELS / "digits", models / "digits")
    with cohort(models, folder) as started:
        yield started


def fields(page: Page) -> list[str]:
    """Return the values of the fields."""
    return [one.input_value() for one in page.locator(".rows input").all()]


def test_the_last_request_is_the_one_that_is_answered(chromium: Browser, server: Cohort) -> None:
    """A slower one before it no longer changes anything; the answer names its version."""
    page = opened(chromium, server, "/models/times")
    page.locator(".rows input").first.fill("1")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/models/times/versions/1/predict*", hold)
    page.get_by_label("Version", exact=True).select_option("1")
    press(page, "Predict")
    expect(page.get_by_role("status").first).to_have_text("Waiting for the answer…")
    page.get_by_label("Version", exact=True).select_option("2")
    press(page, "Predict")
    assert answer(page).endswith("version 2")
    before = answer(page)
    held[0].abort()
    page.unroute("**/models/times/versions/1/predict*")
    press(page, "Predict")
    assert answer(page) == before
    page.get_by_label("Version", exact=True).select_option("1")
    expect(page.get_by_role("status").first).to_have_text("The answer appears here.")
    press(page, "Predict")
    assert answer(page).endswith("version 1")


def test_what_waits_can_be_given_up(chromium: Browser, server: Cohort) -> None:
    """Clear gives it up, and the buttons are back."""
    page = opened(chromium, server, "/models/times")
    page.locator(".rows input").first.fill("1")
    page.route("**/models/times/versions/*/predict*", lambda _: None)
    press(page, "Predict")
    expect(page.get_by_role("button", name="Predict")).to_be_disabled()
    press(page, "Clear")
    expect(page.get_by_role("button", name="Predict")).to_be_enabled()
    expect(page.get_by_role("status").first).to_have_text("The answer appears here.")
    page.unroute("**/models/times/versions/*/predict*")


def test_a_version_whose_columns_are_others_has_another_form(
    chromium: Browser, server: Cohort
) -> None:
    """This includes reordered inputs; if the data cannot be loaded, the choice stays."""
    page = opened(chromium, server, "/models/renamed")
    labels = page.locator(".rows label")
    expect(labels).to_have_text(["c", "b", "a"])
    page.get_by_label("Version", exact=True).select_option("1")
    expect(labels).to_have_text(["a", "b", "c"])
    page.route("**/playground/data/renamed/2", lambda route: route.abort())
    page.get_by_label("Version", exact=True).select_option("2")
    expect(page.get_by_role("status").first).to_contain_text("cannot be reached")
    expect(page.get_by_label("Version", exact=True)).to_have_value("1")
    expect(labels).to_have_text(["a", "b", "c"])
    page.unroute("**/playground/data/renamed/2")


def test_a_version_is_compared_with_another(chromium: Browser, server: Cohort) -> None:
    """Choosing the one that is compared with changes the two about."""
    page = opened(chromium, server, "/models/times")
    version, against = page.get_by_label("Version", exact=True), page.get_by_label("compared with")
    expect(version).to_have_value("2")
    version.select_option("1")
    expect(against).to_have_value("2")


def test_infinity_is_shown(chromium: Browser, server: Cohort) -> None:
    """JSON has no infinity: the answer is binary, and the example shows how to ask for it."""
    page = opened(chromium, server, "/models/reciprocal")
    for field in page.locator(".rows input").all():
        field.fill("0")
    press(page, "Predict")
    answer(page)
    expect(page.get_by_role("region", name="Answer")).to_contain_text("Infinity")
    page.locator("summary", has_text="This request").click()
    expect(page.locator(".snippet pre").first).to_contain_text("binary_data_output")


def test_optional_inputs_go_by_json(chromium: Browser, server: Cohort) -> None:
    """The page sends optional inputs as JSON by name."""
    page = opened(chromium, server, "/models/default")
    page.get_by_role("checkbox", name="as JSON").check()
    box = page.get_by_label("Inputs, as JSON")
    expect(page.get_by_text('Optional: "factor".')).to_be_visible()
    box.fill('{"x": [[1, 2, 3]], "factor": 5}')
    press(page, "Predict")
    answer(page)
    expect(page.get_by_role("region", name="Answer")).to_contain_text("5, 10, 15")
    box.fill('{"x": [[1, 2, 3]], "other": 1}')
    press(page, "Predict")
    expect(page.get_by_role("status").first).to_contain_text('has no input "other"')


def test_truth_values_and_long_numbers_are_sent_as_they_are(
    chromium: Browser, server: Cohort
) -> None:
    """The example of a model of truth values is filled in so that it can be sent."""
    page = opened(chromium, server, "/models/truth")
    page.locator(".rows input").first.fill("TRUE")
    page.locator(".rows input").last.fill("0")
    press(page, "Predict")
    answer(page)
    page.locator("summary", has_text="Raw JSON").click()
    expect(page.locator("details pre").first).to_contain_text("[[true,false]]")
    page = opened(chromium, server, "/models/ids")
    page.locator(".rows input").first.fill("9007199254740993")
    press(page, "Predict")
    assert answer(page).startswith("9007199254740993")


def test_json_begins_with_what_was_filled_in(chromium: Browser, server: Cohort) -> None:
    """The example does not replace it."""
    page = opened(chromium, server, "/models/iris")
    page.locator(".rows input").first.fill("7.25")
    page.get_by_role("checkbox", name="as JSON").check()
    assert json.loads(page.get_by_label("Inputs, as JSON").input_value())["features"][0][0] == 7.25


def test_rows_are_added_looked_through_and_removed(chromium: Browser, server: Cohort) -> None:
    """Twenty are shown at a time; one that is wrong is shown, and has the focus."""
    page = opened(chromium, server, "/models/iris")
    page.locator("summary", has_text="Paste CSV").click()
    lines = [f"{number},1,1,1" for number in range(45)]
    page.get_by_label("Rows, with or without").fill(
        "\n".join([*lines[:30], "x,1,1,1", *lines[31:]])
    )
    press(page, "Use these rows")
    expect(page.get_by_text("45 rows, in the model's order.")).to_be_visible()
    press(page, "Predict")
    expect(page.get_by_role("status").first).to_contain_text('row 31, must be a number, not "x"')
    assert page.evaluate("document.activeElement.value") == "x"
    expect(page.get_by_text("21 to 40 of 45")).to_be_visible()
    press(page, "Remove row 31")
    press(page, "Later rows")
    expect(page.get_by_text("41 to 44 of 44")).to_be_visible()
    assert fields(page)[0] == "41"
    press(page, "Add a row")
    assert page.evaluate("document.activeElement.id") == "cell-44-0"


def test_rows_that_were_pasted_are_the_ones_that_are_sent(
    chromium: Browser, server: Cohort
) -> None:
    """They are sent even without a press on the button for them; a fault in them is shown."""
    page = opened(chromium, server, "/models/iris")
    page.locator("summary", has_text="Paste CSV").click()
    area = page.get_by_label("Rows, with or without")
    area.fill("6.7,3.1,5.6,2.4")
    press(page, "Predict")
    assert answer(page).startswith("virginica")
    assert fields(page) == ["6.7", "3.1", "5.6", "2.4"]
    area.fill("1,2")
    press(page, "Predict")
    expect(page.get_by_role("status").first).to_contain_text("Row 1 has 2 values")


def test_what_is_no_picture_is_not_answered_for(
    chromium: Browser, server: Cohort, tmp_path: Path
) -> None:
    """The picture before it is removed, and the fault of this one is shown."""
    page = opened(chromium, server, "/models/digits")
    page.get_by_role("img", name="Draw").click()
    (tmp_path / "broken.png").write_bytes(b"no picture")
    page.get_by_label("Or choose a picture").set_input_files(tmp_path / "broken.png")
    expect(page.get_by_text('"broken.png" is not a picture')).to_be_visible()
    press(page, "Predict")
    expect(page.get_by_role("status").first).to_contain_text("Draw something or")
    page.get_by_role("img", name="Draw").click()
    expect(page.get_by_text('"broken.png" is not a picture')).to_be_hidden()


# --- By keyboard, and from view to view


def test_skipping_to_the_content_keeps_the_form(chromium: Browser, server: Cohort) -> None:
    """A press of Predict keeps the focus on the button."""
    page = opened(chromium, server, "/models/iris")
    page.locator(".rows input").first.fill("7.25")
    page.get_by_role("link", name="Skip to content").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert fields(page)[0] == "7.25"
    page.get_by_role("button", name="Predict").focus()
    page.keyboard.press("Enter")
    answer(page)
    expect(page.get_by_role("button", name="Predict")).to_be_focused()


def test_a_view_begins_at_its_top_and_is_found_again(chromium: Browser, server: Cohort) -> None:
    """The focus is on its heading. The current view is marked, and each has its own title."""
    page = opened(chromium, server)
    page.set_viewport_size({"width": 390, "height": 400})
    expect(page.get_by_role("article", name="times")).to_contain_text("on cpu")
    page.get_by_role("article", name="times").get_by_role("link").click()
    expect(page.get_by_role("heading", level=1, name="times")).to_be_focused()
    assert page.evaluate("scrollY") == 0
    assert page.title() == "Cohort · times"
    page.get_by_role("link", name="Graph of version 2").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Graph of times, version 2")
    assert page.title() == "Cohort · times · graph of 2"
    page.go_back()
    page.go_back()
    expect(page.get_by_role("article", name="times")).to_be_in_viewport()
    assert page.evaluate("scrollY") > 0
    current = page.get_by_role("link", name="Models", exact=True).first
    expect(current).to_have_attribute("aria-current", "page")
    page.set_viewport_size({"width": 1280, "height": 720})


def test_an_address_that_names_nothing_is_a_view(chromium: Browser, server: Cohort) -> None:
    """This includes an address that is not UTF-8."""
    page = opened(chromium, server, "/models/%E0%A4%A")
    expect(page.get_by_role("alert")).to_contain_text(
        re.compile("not found|no model", re.IGNORECASE)
    )
