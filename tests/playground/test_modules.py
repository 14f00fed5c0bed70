"""The page's own reckoning, in the browser that does it."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Page

from app.cli.top_command.scraped import quantile
from tests.browser.page import CHROMIUM, Browser
from tests.e2e.processes import Cohort
from tests.playground.visiting import opened

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: make packages")

MANY = settings(max_examples=60, suppress_health_check=list(HealthCheck))
CELL = st.text(st.sampled_from('abc01.," -\nü'), max_size=8).map(str.strip)


@pytest.fixture(scope="module")
def page(chromium: Browser, bundled: Cohort) -> Page:
    """A page that has its modules at hand: `await module("csv")`."""
    found = opened(chromium, bundled)
    found.evaluate(
        """() => {
            const base = document.querySelector("script").src.replace("main.js", "");
            window.module = name => import(`${base}${name}.js`);
        }"""
    )
    return found


def call(page: Page, module: str, function: str, *arguments: Any) -> Any:
    """Call what a module exports."""
    return page.evaluate(
        "async ([module, name, given]) => (await window.module(module))[name](...given)",
        [module, function, list(arguments)],
    )


@MANY
@given(rows=st.lists(st.lists(CELL, min_size=2, max_size=4), min_size=1, max_size=5))
def test_csv_is_read_as_it_was_written(page: Page, rows: list[list[str]]) -> None:
    """With quotes, commas and lines within cells; rows in which there is nothing are left out."""
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    assert call(page, "csv", "cells", text.getvalue()) == [row for row in rows if any(row)]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_cells_are_parted_by_what_the_first_line_has(page: Page, separator: str) -> None:
    """As files, spreadsheets of other countries, and their cells have it."""
    text = f"a{separator}b\r\n1{separator}2"
    assert call(page, "csv", "cells", text) == [["a", "b"], ["1", "2"]]


def test_names_in_the_first_line_say_which_column_is_which(page: Page) -> None:
    """In any order, with others beside them; without names the order is the model's."""
    columns = [{"name": "width", "text": False}, {"name": "kind", "text": True}]
    for text, rows in {
        "kind,other,Width\nx,9,1": [["1", "x"]],
        "1,x\n2,y": [["1", "x"], ["2", "y"]],
        "breadth,sort\n1,x": [["1", "x"]],
    }.items():
        assert call(page, "csv", "rowsFor", text, columns) == rows
    with pytest.raises(Exception, match="Row 1 has 3 values, and the model takes 2: width, kind"):
        call(page, "csv", "rowsFor", "1,2,3", columns)


@MANY
@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_numbers_are_short_and_the_same_in_single_precision(page: Page, value: float) -> None:
    """What JSON has of a value is that value for the model."""
    short = call(page, "tensors", "shortest", value)
    assert np.float32(short) == np.float32(value)
    assert len(repr(float(short))) <= len(repr(value)) + 2


@MANY
@given(
    shape=st.lists(st.integers(1, 3), max_size=4),
    datatype=st.sampled_from(["FP32", "INT32", "UINT8", "BYTES"]),
)
def test_nested_lists_and_arrays_are_the_same(page: Page, shape: list[int], datatype: str) -> None:
    """Of any rank, a single value among them."""
    flat = np.arange(int(np.prod(shape, dtype=int))).reshape(shape)
    nested = flat.astype(str).tolist() if datatype == "BYTES" else flat.tolist()
    again = page.evaluate(
        """async ([spec, nested]) => {
            const tensors = await window.module("tensors");
            const tensor = tensors.fromNested(spec, nested);
            return [tensor.shape, Array.from(tensor.data), tensors.nested(tensor)];
        }""",
        [{"name": "x", "datatype": datatype, "shape": None, "transportable": True}, nested],
    )
    assert again == [shape, np.ravel(np.array(nested)).tolist(), nested]


@MANY
@given(counts=st.lists(st.integers(0, 20), min_size=4, max_size=4), share=st.floats(0.01, 1))
def test_a_quantile_is_reckoned_as_in_the_terminal(
    page: Page, counts: list[int], share: float
) -> None:
    """The live view and `cohort top` say the same."""
    bounds = [1.0, 2.0, 4.0]
    found = call(page, "histograms", "quantile", share, counts, bounds)
    wanted = quantile(share, tuple(counts), tuple(bounds))
    assert math.isnan(found) if wanted is None else found == pytest.approx(wanted)


def test_classes_are_named_by_the_metadata(page: Page) -> None:
    """As lists, as objects by index, or as words with commas."""
    for text, names in {
        '["a", "b"]': ["a", "b"],
        '{"1": "b", "0": "a", "10": "c"}': ["a", "b", "c"],
        "a, b": ["a", "b"],
        "nothing": [],
    }.items():
        assert call(page, "labels", "classNames", {"classes": text}) == names


@MANY
@given(
    strokes=st.lists(
        st.lists(st.tuples(st.floats(0, 280), st.floats(0, 280)), min_size=1, max_size=12),
        max_size=4,
    ),
    size=st.sampled_from([8, 16, 28]),
)
def test_any_strokes_make_a_picture(
    page: Page, strokes: list[list[tuple[float, float]]], size: int
) -> None:
    """Dots, lines and tangles: grey from 0 to 1, and ink wherever there was a stroke."""
    points = [[{"x": x, "y": y} for x, y in stroke] for stroke in strokes]
    script = """async ([strokes, size]) =>
        Array.from((await window.module("strokes")).picture(strokes, size, size))"""
    grey = page.evaluate(script, [points, size])
    assert len(grey) == size * size
    assert all(0 <= value <= 1 for value in grey)
    assert any(grey) == bool(strokes)
