"""Bodies of one row: which are read so, and responses equal to those of the long way."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest

from app.codec import is_coalescible, pack_rows, read_row, write_rows
from app.errors import InvalidInput
from app.tensors import Array, TensorSpec

X = TensorSpec("x", "FP32", ("N", 4))
Y = TensorSpec("y", "FP32", ("N", 3))


@pytest.mark.parametrize(
    ("document", "asked"),
    [
        ({"inputs": {"x": [[1, 2]]}}, (None, "x", [1, 2])),
        ({"input": [[1, 2]]}, (None, None, [1, 2])),
        ({"model": "m", "inputs": {"x": [[1]]}}, ("m", "x", [1])),
        ({"input": [[1]], "model": "m"}, ("m", None, [1])),
        ({"inputs": {"x": [[1], [2]]}}, None),
        ({"inputs": {"x": []}}, None),
        ({"inputs": {"x": [[]]}}, None),
        ({"inputs": {"x": [1]}}, None),
        ({"inputs": {"x": 1}}, None),
        ({"inputs": {"x": [[1]], "y": [[1]]}}, None),
        ({"inputs": {}}, None),
        ({"inputs": [[1]]}, None),
        ({"inputs": {"x": [[1]]}, "id": "7"}, None),
        ({"inputs": {"x": [[1]]}, "model": 1}, None),
        ({"inputs": {"x": [[1]]}, "model": "m", "id": "7"}, None),
        ({"model": "m"}, None),
        ({}, None),
        ([1], None),
    ],
)
def test_one_row_for_one_input_is_read(document: Any, asked: object) -> None:
    """With at most a model beside it; whatever else there is, the document comes along."""
    assert read_row(orjson.dumps(document)) == (document, asked)


@pytest.mark.parametrize("body", [b"", b"{", b"nonsense"])
def test_a_body_that_is_not_json_is_refused(body: bytes) -> None:
    """With the message of all other routes."""
    with pytest.raises(InvalidInput):
        read_row(body)


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
def test_a_model_of_one_row_of_numbers_is_coalescible(
    inputs: list[TensorSpec], outputs: list[TensorSpec], yes: bool
) -> None:
    """Nobody can say beforehand how long a run of longer rows holds the loop."""
    assert is_coalescible(inputs, outputs) is yes


def test_rows_are_packed_into_one_array() -> None:
    """In the datatype of the model."""
    array = pack_rows([b"[[1,2]]", b"[[3,4.5]]"], [[1, 2], [3, 4.5]], "FP32")
    assert array is not None
    assert array.dtype == np.float32
    assert array.tolist() == [[1, 2], [3, 4.5]]


@pytest.mark.parametrize(
    ("row", "datatype"),
    [
        ([True], "FP32"), ([False], "INT64"), ([None], "FP32"), (["1"], "FP32"), ([1e300], "FP32"),
        ([1.5], "INT64"), ([2**70], "INT64"), ([300], "UINT8"), ([[1]], "FP32"),
    ],
)  # fmt: skip
def test_rows_with_an_invalid_value_are_not_packed(row: list[Any], datatype: str) -> None:
    """True would be packed as 1."""
    assert pack_rows([json.dumps([row]).encode()], [row], datatype) is None


def write(outputs: list[tuple[str, Array]], *, single: bool = False) -> list[Any] | None:
    bodies = write_rows(outputs, model="m", version="3", single=single, seconds=0.0123456)
    return None if bodies is None else [json.loads(body) for body in bodies]


def test_each_row_is_written_as_a_response() -> None:
    """With the model, its version and the time in milliseconds, to the microsecond."""
    y, n = np.array([[1, 2], [3, 4]], "f4"), np.array([5, 6], "i8")
    rest = {"model": "m", "version": "3", "inference_time_ms": 12.345}
    assert write([("y", y), ("n", n)]) == [
        {**rest, "outputs": {"y": [[1, 2]], "n": [5]}},
        {**rest, "outputs": {"y": [[3, 4]], "n": [6]}},
    ]
    assert write([("y", y)], single=True) == [
        {**rest, "prediction": [[1, 2]]},
        {**rest, "prediction": [[3, 4]]},
    ]
    assert write([("y", y), ("n", n)], single=True) == [
        {**rest, "prediction": {"y": [[1, 2]], "n": [5]}},
        {**rest, "prediction": {"y": [[3, 4]], "n": [6]}},
    ]


def test_rows_of_any_rank_are_written() -> None:
    """Also where they do not lie one after the other in memory."""
    array = np.arange(16, dtype="f4").reshape(2, 2, 2, 2)
    expected = [array[:1].tolist(), array[1:].tolist()]
    for one in (array, np.asfortranarray(array)):
        found = write([("y", one)])
        assert found is not None
        assert [body["outputs"]["y"] for body in found] == expected


def test_names_are_escaped() -> None:
    """An output may be called anything."""
    outputs = [('a"%b', np.ones((2, 1), "f4")), ("%", np.ones(2, "i8"))]
    for single in (True, False):
        bodies = write_rows(outputs, model='m"%d', version="1", single=single, seconds=0.0)
        assert bodies is not None
        document = json.loads(bodies[1])
        assert document["prediction" if single else "outputs"] == {'a"%b': [[1.0]], "%": [1]}
        assert document["model"] == 'm"%d'


@pytest.mark.parametrize(
    "arrays",
    [
        [np.ones((2, 1), "f4"), np.ones(3, "f4")],
        [np.array([[1], [np.nan]], "f4")],
        [np.array([[1], [np.inf]], "f4")],
        [np.float32(1.0)],
        [np.ones((0, 2), "f4")],
        [np.ones((2, 0), "f4")],
        [np.ones(2, "f2")],
        [np.array(["a", "b"], object)],
    ],
    ids=["rows differ", "NaN", "infinity", "no rows", "none", "empty", "halves", "text"],
)
def test_outputs_that_need_the_full_encoder_are_not_written(arrays: list[Array]) -> None:
    """Each request is then answered as a single one, which handles such outputs."""
    outputs = [(str(place), np.asarray(one)) for place, one in enumerate(arrays)]
    assert write(outputs) is None
