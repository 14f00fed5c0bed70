"""Rows of numbers: packed into one array, and cut out of one text."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cohort.codec import flat_rows, flat_texts, is_coalescible, nested_texts, pack_rows, raw_parts
from cohort.tensors import Array, TensorSpec

X = TensorSpec("x", "FP32", ("N", 4))
Y = TensorSpec("y", "FP32", ("N", 3))


@pytest.mark.parametrize(
    ("inputs", "outputs", "yes"),
    [
        ([X], [Y], True),
        ([X], [Y, Y], True),
        ([TensorSpec("x", "INT64", ("N", 4))], [TensorSpec("y", "INT64", ("N",))], True),
        ([], [Y], False),
        ([X, X], [Y], False),
        ([X], [], False),
        ([TensorSpec("x", "FP32", None)], [Y], False),
        ([TensorSpec("x", "FP32", ("N",))], [Y], False),
        ([TensorSpec("x", "FP32", ("N", 4, 4))], [Y], False),
        ([TensorSpec("x", "FP32", ("N", "L"))], [Y], False),
        ([TensorSpec("x", "FP32", ("N", None))], [Y], False),
        ([TensorSpec("x", "BYTES", ("N", 4))], [Y], False),
        ([X], [TensorSpec("y", "FP16", ("N", 3))], False),
        ([X], [Y, TensorSpec("y", "BYTES", ("N", 3))], False),
    ],
)
def test_a_model_of_rows_of_numbers_is_coalescible(
    inputs: list[TensorSpec], outputs: list[TensorSpec], yes: bool
) -> None:
    """The time that a run of longer rows holds the loop cannot be known in advance."""
    assert is_coalescible(inputs, outputs) is yes


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([[1, 2]], ([1, 2], 1)),
        ([[1, 2], [3, 4]], ([1, 2, 3, 4], 2)),
        ([[1], [2], [3]], ([1, 2, 3], 3)),
        ([], None),
        ([[]], None),
        ([[], []], None),
        ([1], None),
        (1, None),
        ({"a": 1}, None),
        ([[1, 2], [3]], None),
        ([[1, 2], 3], None),
        ([[1, 2], {"a": 1, "b": 2}], None),
        ([[1, 2], "ab"], None),
    ],
)
def test_rows_of_one_width_are_read_flat(rows: Any, found: object) -> None:
    """Other values are left to the general reader."""
    assert flat_rows(rows) == found


def pack(*values: Any, datatype: str = "FP32", width: int = 2) -> Array | None:
    spec = TensorSpec("x", datatype, ("N", width))
    size = spec.dtype.itemsize
    rows = sum(len(one) // (1 if isinstance(one, list) else size) for one in values) // width
    bodies = [json.dumps(one).encode() if isinstance(one, list) else one for one in values]
    return pack_rows(bodies, values, spec, rows)


def test_rows_are_packed_into_one_array() -> None:
    """The array has the model's datatype and the order of the rows, whatever their forms."""
    raw = np.array([[5, 6], [7, np.nan]], "f4").tobytes()
    for values, expected in (
        ([[1, 2]], [[1, 2]]),
        ([[1, 2], [3, 4.5]], [[1, 2], [3, 4.5]]),
        ([[1, 2, 3, 4]], [[1, 2], [3, 4]]),
        ([[1, 2], raw, [3, 4]], [[1, 2], [5, 6], [7, np.nan], [3, 4]]),
        ([raw], [[5, 6], [7, np.nan]]),
        ([raw, raw], [[5, 6], [7, np.nan]] * 2),
    ):
        array = pack(*values)
        assert array is not None
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, np.array(expected, "f4"))


@pytest.mark.parametrize(
    ("row", "datatype"),
    [
        ([True], "FP32"), ([False], "INT64"), ([None], "FP32"), (["1"], "FP32"), ([1e300], "FP32"),
        ([1.5], "INT64"), ([2**70], "INT64"), ([300], "UINT8"), ([[1]], "FP32"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("beside", [[], [[1]]], ids=["alone", "with others"])
def test_rows_with_an_invalid_value_are_not_packed(
    row: list[Any], datatype: str, beside: list[Any]
) -> None:
    """True would be packed as 1."""
    assert pack(*beside, row, datatype=datatype, width=1) is None


def test_a_word_in_a_body_is_no_boolean() -> None:
    """A model may be called true."""
    spec = TensorSpec("x", "FP32", ("N", 1))
    array = pack_rows([b'{"model": "true", "input": [[1]]}'], [[1.0]], spec, 1)
    assert array is not None


@st.composite
def outputs(draw: st.DrawFn) -> tuple[Array, list[int]]:
    """An output of a run, and how many of its rows each request has."""
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    shape = (sum(counts), *draw(st.lists(st.integers(1, 3), max_size=3)))
    dtype = draw(st.sampled_from(["f4", "f8", "i8", "u1", "?"]))
    finite = hnp.from_dtype(np.dtype(dtype), allow_nan=False, allow_infinity=False)
    array = draw(hnp.arrays(dtype, shape, elements=finite))
    return draw(st.sampled_from([array, np.asfortranarray(array)])), counts


@given(outputs())
def test_each_request_gets_its_rows(found: tuple[Array, list[int]]) -> None:
    """Rows may be nested, flat and bytes."""
    array, counts = found
    ends = np.cumsum([0, *counts])
    parts = [array[begin:end] for begin, end in pairwise(ends)]
    nested, flat, raw = (
        nested_texts(array, counts),
        flat_texts(array, counts),
        raw_parts(array, counts),
    )
    assert nested is not None
    assert flat is not None
    for part, text, line in zip(parts, nested, flat, strict=True):
        for written, expected in ((text, part), (line, part.reshape(-1))):
            read = np.array(json.loads(written), part.dtype)
            assert read.shape == expected.shape
            np.testing.assert_array_equal(read, expected)
            assert b" " not in written
    assert raw == [part.tobytes() for part in parts]


@pytest.mark.parametrize(
    "array",
    [
        np.ones(3, "f4"),
        np.array([[1], [np.nan]], "f4"),
        np.array([[1], [np.inf]], "f4"),
        np.float32(1.0),
        np.ones((0, 2), "f4"),
        np.ones((2, 0), "f4"),
        np.ones(2, "f2"),
        np.array(["a", "b"], object),
    ],
    ids=["too many rows", "NaN", "infinity", "no rows", "none", "empty", "halves", "text"],
)
@pytest.mark.parametrize("counts", [[1, 1], [2]])
def test_outputs_that_need_the_full_encoder_are_not_written(
    array: Array, counts: list[int]
) -> None:
    """Each request is then answered as a single one, which handles such outputs."""
    assert nested_texts(np.asarray(array), counts) is None
    assert flat_texts(np.asarray(array), counts) is None


def test_bytes_are_cut_where_there_are_as_many_rows() -> None:
    """NaN are bytes as any."""
    array = np.array([[1, np.nan], [3, 4]], "f4")
    assert raw_parts(array, [1, 1]) == [array[:1].tobytes(), array[1:].tobytes()]
    assert raw_parts(array, [1]) is None
    assert raw_parts(np.asarray(np.float32(1)), [1]) is None
