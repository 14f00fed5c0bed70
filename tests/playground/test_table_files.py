"""Whole CSV files on the page: answers next to the rows, and files that do not fit the model."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests import onnx_models
from tests.browser.page import CHROMIUM, Browser
from tests.e2e.processes import MODELS, Cohort, cohort
from tests.e2e.test_columns import CATEGORIES, COLUMNS, shown
from tests.playground.visiting import answer, opened, press

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: make packages")

IRIS = ["sepal length (cm)", "sepal width (cm)", "petal length (cm)", "petal width (cm)"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A classifier, and a model whose columns are words, numbers and gaps."""
    folder = tmp_path_factory.mktemp("tables")
    models = folder / "models"
    shutil.copytree(MODELS / "iris", models / "iris")
    onnx_models.save(shown(3, **CATEGORIES, **COLUMNS), models / "told/1/model.onnx")
    with cohort(models, folder) as started:
        yield started


def chosen(chromium: Browser, server: Cohort, model: str, content: bytes) -> Page:
    """Return the page of a model, with a file chosen."""
    page = opened(chromium, server, f"/models/{model}")
    page.locator("summary", has_text="A whole CSV file").click()
    page.locator("#csv-file").set_input_files(
        {"name": "rows.csv", "mimeType": "text/csv", "buffer": content}
    )
    return page


def answered(page: Page) -> list[list[str]]:
    """Return the rows of the file that is there to be saved."""
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the rows with answers").click()
    assert download.value.suggested_filename == "rows-answers.csv"
    with download.value.path().open(newline="", encoding="utf-8") as file:
        return [*csv.reader(file)]


def told(page: Page) -> Any:
    return expect(page.locator("details.file [role=status]"))


def test_answers_come_beside_the_rows(chromium: Browser, server: Cohort) -> None:
    """The answered file has all its columns in order, then the outputs, for any number of rows."""
    head = ["id", *reversed(IRIS)]
    rows = [[f'"no, {n}"', "0.2", "1.4", "3.5", str(5 + n / 2000)] for n in range(1200)]
    text = "\r\n".join(map(",".join, [head, *rows]))
    page = chosen(chromium, server, "iris", text.encode())
    told(page).to_have_text("1,200 rows answered, by the names in the first line.")
    found = answered(page)
    assert found[0][:6] == [*head, "label"]
    assert found[0][-1] == "error"
    assert len(found) == 1201
    assert found[1200][:6] == ["no, 1199", "0.2", "1.4", "3.5", "5.5995", "0"]


def test_rows_that_are_wrong_are_named_and_the_others_answered(
    chromium: Browser, server: Cohort
) -> None:
    """The page finds some wrong rows and the server others; gaps are not wrong."""
    lines = ["city,size,age", *["Ulm,5,30"] * 40]
    lines[7], lines[20], lines[30] = "Ulm,5,old", "Zug,5,30", ",3,"
    page = chosen(chromium, server, "told", "\n".join(lines).encode())
    told(page).to_have_text("38 rows answered, 2 rows not, by the names in the first line.")
    expect(page.get_by_text('Row 7: age must be a number, not "old"')).to_be_visible()
    expect(page.get_by_text("Row 20: input 'city': 'Zug' is not one of its 3")).to_be_visible()
    found = answered(page)
    assert found[0] == ["city", "size", "age", "y 1", "y 2", "y 3", "error"]
    assert found[1] == ["Ulm", "5", "30", "30", "2", "1", ""]
    assert found[7][:6] == ["Ulm", "5", "old", "", "", ""]
    assert found[20][3:6] == ["", "", ""]
    assert "'Zug' is not one of its 3 categories" in found[20][6]
    assert found[30] == ["", "3", "", "-100", "-100", "0", ""]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "The file has no rows."),
        (b"city,size,age\n", "The file has no rows."),
        (b"\xff\xfe\x00a" * 9000, "not UTF-8 text"),
        (b"\x00\x01" * 9000, "it contains zero bytes"),
        (b'"' + b"a,1\n" * 400_000, "are its quotes closed?"),
        (b",".join([b"1"] * 10_000) + b"\n", "Row 1 has 10000 values, but the model expects 3"),
        (b"town,size,age\n1,2,3\n", 'The first line does not contain "city"'),
        (b"a" * (3 << 20), "A row has more than a million characters"),
    ],
    ids=["empty", "names", "utf-16", "binary", "quotes", "wide", "others", "long"],
)
def test_what_is_no_table_of_the_model_is_said(
    chromium: Browser, server: Cohort, content: bytes, said: str
) -> None:
    """The error comes at once, and without a request."""
    page = chosen(chromium, server, "told", content)
    told(page).to_contain_text(said)


def test_a_long_file_can_be_cancelled(chromium: Browser, server: Cohort) -> None:
    """Forty timers fire before it ends, and the rows that were answered can be saved."""
    page = opened(chromium, server, "/models/iris")
    page.locator("summary", has_text="A whole CSV file").click()
    page.evaluate(
        """() => {
            const lines = new Blob(["5.1,3.5,1.4,0.2\\n".repeat(65536)]);
            const data = new DataTransfer();
            data.items.add(new File(new Array(200).fill(lines), "rows.csv"));
            const box = document.querySelector("details.file");
            box.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true}));
        }"""
    )
    told(page).to_contain_text("rows answered")
    page.evaluate(
        """async () => {
            for (let n = 0; n < 40; n++) await new Promise(resolve => setTimeout(resolve, 10));
        }"""
    )
    assert float(page.locator("details.file progress").get_attribute("value") or "1") < 1
    page.get_by_role("button", name="Cancel").click()
    told(page).to_contain_text("Cancelled.")
    assert len(answered(page)) > 500


def test_cells_may_be_empty_where_the_model_takes_gaps(chromium: Browser, server: Cohort) -> None:
    """Nothing is made up for a model without an example."""
    page = opened(chromium, server, "/models/told")
    fields = page.locator(".rows input")
    assert [one.input_value() for one in fields.all()] == ["", "Bern", ""]
    fields.nth(1).fill("")
    fields.nth(2).fill("3")
    press(page, "Predict")
    answer(page)
    page.locator("summary", has_text="Raw JSON").click()
    expect(page.locator("details pre").first).to_contain_text("[[-100.0,-100.0,0.0]]")
