"""The page's own reckoning, in the browser that does it."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Error, Page

from cohort.cli.top_command.scraped import quantile
from tests.browser.page import CHROMIUM, Browser
from tests.e2e.processes import Cohort
from tests.examples import examples
from tests.playground.visiting import opened

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: make packages")

MANY = settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
COLUMNS = [{"name": "width", "kind": "number"}, {"name": "kind", "kind": "text"}]
CELL = st.text(st.sampled_from('abc01.," -\nü'), max_size=8)


@pytest.fixture(scope="module")
def page(chromium: Browser, bundled: Cohort) -> Page:
    """A page that can import its modules: `await module("csv")`."""
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
    """Cells may have quotes, commas and lines; empty rows are left out."""
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(rows)
    assert call(page, "csv", "cells", text.getvalue()) == [row for row in rows if any(row)]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_cells_are_parted_by_what_the_first_line_has(page: Page, separator: str) -> None:
    """Files, foreign spreadsheets and pasted cells differ in it; quoted ones do not count."""
    text = f'"a,;"{separator}b\r\n1{separator} 2 {separator}" 3 "'
    assert call(page, "csv", "cells", text) == [["a,;", "b"], ["1", "2", " 3 "]]


def test_decimal_commas_are_read_where_they_part_nothing(page: Page) -> None:
    """Spreadsheets of some countries write them; texts are left alone."""
    columns = [{"name": "a", "kind": "number"}, {"name": "b", "kind": "text"}]
    found = call(page, "csv", "rowsFor", "5,1;1,5\n-3,25;x", columns)["rows"]
    assert found == [["5.1", "1,5"], ["-3.25", "x"]]


def test_names_in_the_first_line_say_which_column_is_which(page: Page) -> None:
    """Columns may be in any order, among others; without names the order is the model's."""
    for text, found in {
        "kind,other,Width\nx,9,1": ([["1", "x"]], "1 row, by the names in the first line."),
        "1,x\n2,y": ([["1", "x"], ["2", "y"]], "2 rows, in the model's order."),
        "breadth,sort\n1,x": (
            [["1", "x"]],
            "1 row, in the model's order; the first line was skipped as a header.",
        ),
        "1,x,\n2,y,": ([["1", "x"], ["2", "y"]], "2 rows, in the model's order."),
        ",x\n2,y": ([["", "x"], ["2", "y"]], "2 rows, in the model's order."),
    }.items():
        assert tuple(call(page, "csv", "rowsFor", text, COLUMNS).values()) == found


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("1,2,3", "Row 1 has 3 values, but the model expects 2: width, kind"),
        ("kind,breadth\nx,1", 'The first line does not contain "width". It must name all columns'),
        ("width,kind\n", "There is a header, but no rows"),
        (" \n", "The text is empty"),
    ],
)
def test_rows_that_do_not_fit_are_refused(page: Page, text: str, wrong: str) -> None:
    """The error has the line, and the model's columns."""
    with pytest.raises(Error, match=wrong):
        call(page, "csv", "rowsFor", text, COLUMNS)


def test_a_row_with_a_missing_value_is_no_line_of_names(page: Page) -> None:
    """Truth values are values; a missing one is asked for when the row is read."""
    columns = [
        {"name": "a", "kind": "number"},
        {"name": "b", "kind": "truth"},
        {"name": "c", "kind": "number"},
    ]
    for text in ("NA,true,1", ",FALSE,1", "1,NA,"):
        assert call(page, "csv", "rowsFor", text, columns)["rows"] == [text.split(",")]


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
    """Any rank works, including a single value."""
    flat = np.arange(int(np.prod(shape, dtype=int))).reshape(shape)
    nested = flat.astype(str).tolist() if datatype == "BYTES" else flat.tolist()
    again = page.evaluate(
        """async ([spec, nested]) => {
            const tensors = await window.module("tensors");
            const tensor = tensors.fromNested(spec, nested);
            return [tensor.shape, Array.from(tensor.data), tensors.nested(tensor)];
        }""",
        [spec(datatype), nested],
    )
    assert again == [shape, np.ravel(np.array(nested)).tolist(), nested]


@MANY
@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4))
def test_whole_numbers_of_64_bits_keep_their_digits(page: Page, values: list[int]) -> None:
    """They keep them from JSON to the request, and from an answer to the page."""
    text = f'{{"x": {json.dumps(values)}}}'
    again = page.evaluate(
        """async ([spec, text]) => {
            const [tensors, json] = [await window.module("tensors"), await window.module("json")];
            const tensor = tensors.fromNested(spec, json.parse(text).x);
            const [answered] = tensors.outputsOf({outputs: json.parse(text)}, [spec]);
            return [tensors.request("m", [tensor]).options.body, Array.from(answered.data, String)];
        }""",
        [spec("INT64"), text],
    )
    assert json.loads(again[0]) == {"inputs": {"x": values}}
    assert again[1] == [str(one) for one in values]


@MANY
@given(
    name=st.sampled_from(["INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32"]),
    value=st.integers(-(2**33), 2**33) | st.floats(-300, 300),
)
def test_values_that_a_datatype_cannot_hold_are_refused(
    page: Page, name: str, value: float
) -> None:
    """They are neither wrapped around nor cut off; the others are kept unchanged."""
    limits = np.iinfo(name.lower())
    script = """async ([spec, value]) =>
        Array.from((await window.module("tensors")).typed(spec, [value]))"""
    if value == int(value) and limits.min <= value <= limits.max:
        assert page.evaluate(script, [spec(name), value]) == [value]
    else:
        with pytest.raises(Error, match=f'"x" has datatype {name}, which cannot hold'):
            page.evaluate(script, [spec(name), value])


@pytest.mark.parametrize(
    ("datatype", "value"), [("BOOL", 2), ("INT64", 1.5), ("INT64", "a"), ("UINT64", -1)]
)
def test_odd_values_are_refused_by_name(page: Page, datatype: str, value: Any) -> None:
    """They are values that are not truth values, not whole numbers, or below zero."""
    with pytest.raises(Error, match=f'"x" has datatype {datatype}, which cannot hold {value}'):
        call(page, "tensors", "typed", spec(datatype), [value])


def test_no_number_is_far_from_any_number(page: Page) -> None:
    """NaN and a number differ, NaN and NaN do not; the same holds for infinities."""
    script = """async values => {
        const {difference} = await window.module("answers");
        const side = (data, datatype = "FP32") => ({names: [], outputs: [
            {name: "y", datatype, shape: [2], data}]});
        return [
            difference(side([NaN, 1]), side([0, 1])),
            difference(side([NaN, Infinity]), side([NaN, Infinity])),
            difference(side([Infinity, 1]), side([-Infinity, 1])),
            difference(side([10n ** 17n, 1], "INT64"), side([10n ** 17n + 1n, 1], "INT64")),
            difference(side([0.1, 1]), side([Math.fround(0.1), 1])),
        ].map(one => one.lines[0]);
    }"""
    assert page.evaluate(script) == [
        "y differs by at most Infinity, at [0].",
        "y is equal.",
        "y differs by at most Infinity, at [0].",
        "y differs by at most 1.0, at [0].",
        "y is equal.",
    ]


def spec(datatype: str) -> dict[str, Any]:
    return {"name": "x", "datatype": datatype, "shape": None, "transportable": True}


@MANY
@given(counts=st.lists(st.integers(0, 20), min_size=4, max_size=4), share=st.floats(0.01, 1))
def test_a_quantile_is_reckoned_as_in_the_terminal(
    page: Page, counts: list[int], share: float
) -> None:
    """The live view and `cohort top` compute the same quantiles."""
    bounds = [1.0, 2.0, 4.0]
    found = call(page, "histograms", "quantile", share, counts, bounds)
    wanted = quantile(share, tuple(counts), tuple(bounds))
    assert math.isnan(found) if wanted is None else found == pytest.approx(wanted)


def test_classes_are_named_by_the_metadata(page: Page) -> None:
    """Lists, objects by index or by name, Python's printed lists, and words are accepted."""
    for text, names in {
        '["a", "b"]': ["a", "b"],
        '{"1": "b", "0": "a", "10": "c"}': ["a", "b", "c"],
        "a, b": ["a", "b"],
        "a\nb\n": ["a", "b"],
        "{0: 'cat', 2: \"it's\", 1: 'owl'}": ["cat", "owl", "it's"],
        '[{"id": 0, "name": "a"}, {"id": 1, "name": "b"}]': ["a", "b"],
        '{"b": 1, "a": 0}': ["a", "b"],
        "nothing": [],
    }.items():
        assert call(page, "labels", "classNames", {"classes": text}) == names


def test_classes_that_the_server_has_read_come_first(page: Page) -> None:
    """The graph of a converted classifier comes before the metadata."""
    version = {"outputs": [{"name": "label"}], "metadata": {"properties": {"classes": '["x"]'}}}
    assert call(page, "labels", "namesOf", version) == ["x"]
    version["outputs"] = [{"name": "label"}, {"name": "p", "classes": ["a", 1]}]
    assert call(page, "labels", "namesOf", version) == ["a", "1"]


@pytest.mark.parametrize(
    ("name", "row", "names", "label"),
    [
        ("y", [0.25, 0.75], ["a", "b"], "b"),
        ("y", [0.25, 0.75], [], "class 1"),
        ("y", [0.25, 0.75], ["a", "b", "c"], "class 1"),
        ("logits", [-3.0, 2.0], [], "class 1"),
        ("y", [-3.0, 2.0], ["a", "b"], "b"),
        ("y", [-3.0, 2.0], [], "y [1, 2]"),
    ],
)
def test_numbers_are_classes_where_something_says_so(
    page: Page, name: str, row: list[float], names: list[str], label: str
) -> None:
    """The hint is as many names, the output's name, or shares of 1; no other name counts."""
    output = {"name": name, "datatype": "FP32", "shape": [1, 2], "data": row}
    assert call(page, "labels", "inWords", [output], names)["label"] == label


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
    """Dots, lines and tangles give grey from 0 to 1, with ink wherever there was a stroke."""
    points = [[{"x": x, "y": y} for x, y in stroke] for stroke in strokes]
    script = """async ([strokes, size]) =>
        Array.from((await window.module("strokes")).picture(strokes, size, size))"""
    grey = page.evaluate(script, [points, size])
    assert len(grey) == size * size
    assert all(0 <= value <= 1 for value in grey)
    assert any(grey) == bool(strokes)
