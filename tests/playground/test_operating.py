"""Operations on the page, with the admin token."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests import onnx_models
from tests.browser.page import CHROMIUM, Browser
from tests.e2e.processes import MODELS, Cohort, cohort
from tests.playground.visiting import opened, press

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: make packages")

TOKEN = "only-operators-know"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """Digits in a rollout, one that costs batching, and an admin token."""
    folder = tmp_path_factory.mktemp("operated")
    shutil.copytree(MODELS / "digits", folder / "models/digits")
    onnx_models.save(onnx_models.identity(), folder / "models/centered/1/model.onnx")
    onnx_models.save(onnx_models.normalized_over_rows(), folder / "models/centered/2/model.onnx")
    (folder / "rollouts.yaml").write_text(
        "digits: {variants: {old: {version: 1, weight: 50}, new: {version: 2, weight: 50}}}\n"
        "centered: {variants: {old: {version: 1, weight: 99}, new: {version: 2, weight: 1}}, "
        "shadow: {version: 2}}\n"
    )
    with cohort(folder / "models", folder, admin_token=TOKEN) as started:
        yield started


def operating(chromium: Browser, server: Cohort) -> Page:
    """Return the page of digits, with its operations opened."""
    page = opened(chromium, server, "/models/digits")
    page.locator("summary", has_text="Operate").click()
    return page


def said(page: Page) -> str:
    """Return the outcome of the last action."""
    status = page.locator("details", has_text="Operate").get_by_role("status")
    expect(status).not_to_have_text("")
    expect(status).not_to_have_text("Sent …")
    return status.inner_text()


def test_a_variant_is_rolled_back_and_comes_back(chromium: Browser, server: Cohort) -> None:
    """The token authorizes it, and is in no address, storage or element afterwards."""
    page = operating(chromium, server)
    page.get_by_label("Admin token").fill(TOKEN)
    press(page, "Roll back new")
    assert said(page) == "new is rolled back: its callers get old."
    expect(page.get_by_role("region", name="Rollout")).to_contain_text("Rolled back")
    (variant,) = [
        one
        for one in server.get("/models/digits").json()["rollout"]["variants"]
        if one["name"] == "new"
    ]
    assert variant["rolled_back"]
    assert TOKEN not in page.url + page.content()
    assert page.get_by_label("Admin token").input_value() == ""
    assert (
        page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0
    )
    press(page, "End the rollback of new")
    expect(page.get_by_role("button", name="Roll back new")).to_be_visible()
    expect(page.get_by_role("region", name="Rollout")).not_to_contain_text("Rolled back")
    page.reload()
    page.locator("summary", has_text="Operate").click()
    press(page, "Roll back new")
    assert said(page).startswith("Enter the admin token first: ")
    expect(page.get_by_label("Admin token")).to_be_focused()
    chromium.complaints.clear()  # the browser reports the status


def test_a_wrong_token_changes_nothing(chromium: Browser, server: Cohort) -> None:
    """The page shows the server's error."""
    page = operating(chromium, server)
    page.get_by_label("Admin token").fill("wrong")
    press(page, "Unload")
    assert "wrong" in said(page)
    assert server.get("/models/digits").json()["versions"][0]["state"] == "READY"
    press(page, "Forget the token")
    expect(page.get_by_label("Admin token")).to_be_focused()
    chromium.complaints.clear()


def test_a_model_is_unloaded_and_loaded(chromium: Browser, server: Cohort) -> None:
    """The buttons fit the current state."""
    page = operating(chromium, server)
    page.get_by_label("Admin token").fill(TOKEN)
    press(page, "Unload")
    assert said(page) == "digits is unloaded."
    expect(page.get_by_text("No version of this model is ready.")).to_be_visible()
    expect(page.get_by_text(re.compile(r"^Version 2: .*unloaded"))).to_be_visible()
    expect(page.get_by_role("button", name="Predict")).to_have_count(0)
    expect(page.get_by_role("button", name="Unload")).to_have_count(0)
    press(page, "Load")
    expect(page.get_by_role("button", name="Unload")).to_be_visible()
    expect(page.get_by_role("button", name="Predict")).to_be_visible()
    assert server.get("/models/digits").json()["versions"][0]["state"] == "READY"


def test_a_variant_that_loses_batching_is_told(chromium: Browser, server: Cohort) -> None:
    """The page names the node, for the shadow as well; not for the baseline."""
    page = opened(chromium, server, "/models/centered")
    warnings = page.get_by_role("region", name="Rollout").locator(".warning")
    expect(warnings).to_have_count(2)
    expect(warnings.first).to_contain_text("Cannot batch as the baseline does: rows may")
    expect(warnings.first).to_contain_text("ReduceMean 'mean'")
    expect(warnings.last).to_contain_text("The shadow cannot batch")


def test_the_verdict_on_rows_is_beside_the_reason(chromium: Browser, server: Cohort) -> None:
    """Each version shows its verdict."""
    page = opened(chromium, server, "/models/centered")
    for version, verdict in (("1", "proven"), ("2", "refuted")):
        about = page.locator("details", has=page.get_by_text(f"Version {version}", exact=True))
        expect(about).to_contain_text(f"Rows in the graph: {verdict}")
    expect(about).to_contain_text("ReduceMean 'mean': it takes the mean over all rows")
