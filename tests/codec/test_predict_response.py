"""Predict responses: their keys, and arrays as JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import orjson
import pytest

from cohort.codec import LARGE_BYTES, are_large, encode_prediction, encode_simple, encode_tensor
from cohort.errors import InferenceFailed
from cohort.tensors import BY_NAME, Array
from tests.codec.bodies import (
    FLOATS,
)


def answer(outputs: dict[str, Array], *, simple: bool = False, **more: Any) -> Any:
    write = encode_simple if simple else encode_prediction
    facts: dict[str, Any] = {"model": "m", "version": "1", "variant": None, "id": None, **more}
    return orjson.loads(write(**facts, outputs=outputs, inference_time=0.00031))


def test_a_response_has_the_version_and_the_time() -> None:
    """The time is in milliseconds; variant and id are there when there is one."""
    outputs: dict[str, Array] = {"label": np.array([0])}
    assert answer(outputs) == {
        "model": "m", "version": "1", "outputs": {"label": [0]}, "inference_time_ms": 0.31,
    }  # fmt: skip
    full = answer(outputs, variant="stable", id="a1")
    assert list(full) == ["model", "version", "variant", "id", "outputs", "inference_time_ms"]


def test_the_simple_response_has_one_output_without_its_name_and_several_by_name() -> None:
    """`prediction` is what tutorials expect."""
    one: Array = np.array([[0.5]], np.float32)
    assert answer({"y": one}, simple=True) == {
        "prediction": [[0.5]], "inference_time_ms": 0.31, "model": "m", "version": "1",
    }  # fmt: skip
    assert answer({"y": one, "z": one}, simple=True)["prediction"] == {"y": [[0.5]], "z": [[0.5]]}


def test_floats_are_written_as_short_as_their_own_precision_allows() -> None:
    """FP32 0.1 is 0.1, also as a scalar; FP64's digits are its own."""

    def text(array: Array) -> bytes:
        return orjson.dumps(encode_tensor("y", array), option=orjson.OPT_SERIALIZE_NUMPY)

    assert text(np.array([0.1, 1e-45], np.float32)) == b"[0.1,1e-45]"
    assert text(np.array(0.1, np.float32)) == b"0.1"
    assert text(np.array([0.1 + 0.2])) == b"[0.30000000000000004]"


@pytest.mark.parametrize("datatype", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("count", [1, 5000])
def test_nan_and_infinity_are_refused(datatype: str, value: float, count: int) -> None:
    """NaN and infinity fail by the output's name and place, and are never null."""
    array = np.zeros((count, 2), BY_NAME[datatype].dtype)
    array[count - 1, 1] = value
    with pytest.raises(InferenceFailed, match=rf"'y' has .* at \[{count - 1}\]\[1\].* binary") as e:
        answer({"y": array})
    assert not e.value.blames_input


def test_large_finite_numbers_are_written() -> None:
    """Squares that overflow are not the numbers."""
    array: Array = np.array([3e38, -3e38], np.float32)
    assert answer({"y": array})["outputs"]["y"] == [3e38, -3e38]


def test_bytes_are_written_as_text_or_refused() -> None:
    """UTF-8 in a bytes element is text; what is none fails by name."""
    array = np.array([["a", b"\xc3\xa9"]], np.object_)
    assert answer({"y": array})["outputs"]["y"] == [["a", "é"]]
    for bad in (b"\xff", "\ud800"):
        with pytest.raises(InferenceFailed, match=r"'y' has bytes that are not UTF-8 at \[1\]"):
            answer({"y": np.array(["a", bad], np.object_)})


def test_any_layout_is_written_in_row_order() -> None:
    """Transposed, strided, reversed and byte-swapped arrays are written as they read."""
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    for array in (base.T, base[:, ::2], base[::-1], base.astype(">i4"), base.T.astype(">f8")):
        assert answer({"y": array})["outputs"]["y"] == array.tolist()


def test_text_counts_by_its_elements_and_its_length() -> None:
    """A text array is large if it has many elements or long ones; numbers count in bytes."""
    assert not are_large([np.empty((), np.object_), np.array(["text"] * 1000, np.object_)])
    assert are_large([np.array(["text"] * 4000, np.object_)])
    assert are_large([np.array(["x" * LARGE_BYTES, b""], np.object_)])
    assert not are_large([np.zeros(LARGE_BYTES, np.int8)])
    assert are_large([np.zeros(LARGE_BYTES, np.int8), np.zeros(1, np.int8)])
