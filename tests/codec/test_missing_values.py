"""Missing values: null and the word NaN become the input's missing value."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.codec import PredictRequest, decode_inputs, parse_json, parse_v1
from cohort.codec.missing_values import HAVE_NAN, load_json
from cohort.errors import InvalidInput
from cohort.open_inference import InputTensor
from cohort.open_inference.inference import decode_input
from cohort.open_inference.parameters import NO_PARAMETERS
from cohort.tensors import BY_NAME, DATATYPES, Array, TensorSpec
from tests.codec.bodies import ALWAYS, NEVER, decode, simdjson_from, ways
from tests.examples import examples

ROWS = st.integers(1, 3).flatmap(
    lambda width: st.lists(
        st.lists(
            st.none() | st.sampled_from([0.0, 1.0, 2.0, -1.0]), min_size=width, max_size=width
        ),
        min_size=1,
        max_size=5,
    )
)


def plain(array: Array) -> Any:
    return [[None if one != one else one for one in row] for row in array.astype("f8").tolist()]  # noqa: PLR0124 - NaN is not itself


@pytest.mark.parametrize("datatype", [*sorted(HAVE_NAN - {"FP8E8M0", "FP8E4M3FNUZ"})])
@settings(max_examples=examples(25))
@given(rows=ROWS)
def test_null_is_nan_for_every_float(datatype: str, rows: list[list[float | None]]) -> None:
    """It is so in short and long bodies, and on every API."""
    for way in ways():
        with way:
            assert plain(decode(rows, datatype)) == rows
    spec = TensorSpec("x", datatype, ("N", "M"))
    body = orjson.dumps({"instances": rows})
    assert plain(parse_v1(body).decode([spec])["x"]) == rows
    shape = [len(rows), len(rows[0])]
    for data in (rows, [one for row in rows for one in row]):
        sent = InputTensor("x", datatype, shape, NO_PARAMETERS, data=data)
        assert plain(decode_input(spec, sent)) == rows


def test_every_float_but_the_smallest_has_nan() -> None:
    """One of four bits has only numbers."""
    floats = {row.name for row in DATATYPES if row.kind == "float"}
    assert floats - HAVE_NAN == {"FP4E2M1"}
    for datatype in HAVE_NAN:
        assert np.isnan(decode([[1, None]], datatype).astype("f4")).tolist() == [[False, True]]


@pytest.mark.parametrize(
    ("datatype", "missing", "value", "found"),
    [
        ("FP32", 7.5, [[1, None]], [[1.0, 7.5]]),
        ("FP32", 3, [[None]], [[3.0]]),
        ("INT64", -1, [[1, None, 3.0]], [[1, -1, 3]]),
        ("UINT8", 255, [[None]], [[255]]),
        ("INT4", 7, [[None]], [[7]]),
        ("BOOL", 1, [[False, None]], [[False, True]]),
        ("BYTES", "?", [["a", None]], [["a", "?"]]),
        ("BYTES", "", [[None]], [[""]]),
        ("BYTES", "é", [[{"b64": "YQ=="}, None]], [["a", "é"]]),
    ],
)
def test_what_the_input_says_stands_for_null(
    datatype: str, missing: Any, value: Any, found: Any
) -> None:
    """This holds for each datatype and each way to read the body."""
    spec = TensorSpec("x", datatype, ("N", "M"), missing=missing)
    body = orjson.dumps({"inputs": {"x": value}})
    for way in ways():
        with way:
            array = decode_inputs(PredictRequest.parse(body), [spec])["x"]
        assert array.dtype == BY_NAME[datatype].dtype
        assert array.tolist() == found
    instances = orjson.dumps({"instances": [{"x": row, "y": None} for row in value]})
    y = TensorSpec("y", "FP32", ("N",))
    assert parse_v1(instances).decode([spec, y])["x"].tolist() == found


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
@pytest.mark.parametrize("datatype", [row.name for row in DATATYPES if row.kind == "int"])
def test_a_whole_float_is_an_integer(datatype: str, size: int) -> None:
    """pandas writes integers of a column with gaps so; a fraction is refused."""
    with simdjson_from(size):
        assert decode(b"[[1.0, 0, 1e0, -0.0]]", datatype).tolist() == [[1, 0, 1, 0]]
        for wrong in (b"[[1, 0.5]]", b"[[1, null]]", b"[[NaN]]", b"[[1, true]]"):
            with pytest.raises(InvalidInput):
                decode(wrong, datatype)


def test_a_list_is_a_column_in_every_form_of_the_protocol() -> None:
    """`[N]` where the input is `[N, 1]`, in JSON, as bytes and in typed fields."""
    spec = TensorSpec("x", "FP32", ("N", 1))
    raw = np.array([1, 2], "<f4").tobytes()
    forms: list[dict[str, Any]] = [{"data": [1, 2]}, {"raw": raw}, {"values": [1.0, 2.0]}]
    for form in forms:
        sent = InputTensor("x", "FP32", [2], NO_PARAMETERS, **form)
        assert decode_input(spec, sent).tolist() == [[1.0], [2.0]]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text('NaN\\"n, :[]', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('NaN\\"', max_size=5), inner)
    ),
)


@given(VALUES)
def test_the_word_nan_is_null(value: Any) -> None:
    """Text that contains the word does not change."""
    text = json.dumps([value, float("nan"), value]).encode()
    assert load_json(text) == [value, None, value]
    assert parse_json(text) == [value, None, value]


@pytest.mark.parametrize("size", [NEVER, ALWAYS])
def test_what_pandas_and_python_write_is_read(size: int) -> None:
    """`json.dumps` writes NaN, `DataFrame.to_json` null."""
    rows = [[1.5, float("nan")], [float("nan"), 2.5]]
    with simdjson_from(size):
        assert plain(decode(json.dumps(rows).encode())) == [[1.5, None], [None, 2.5]]


@pytest.mark.parametrize("body", [b"[NaN", b"[NaNs]", b"[nan]", b"[-NaN]", b"[Infinity, NaN]"])
def test_a_slip_beside_nan_is_refused_with_its_place(body: bytes) -> None:
    """The place is one of the body."""
    with pytest.raises(orjson.JSONDecodeError) as ours:
        load_json(body)
    with pytest.raises(orjson.JSONDecodeError) as theirs:
        orjson.loads(body)
    assert str(ours.value) == str(theirs.value)
