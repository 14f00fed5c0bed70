"""Many texts are written in JSON some at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from cohort.codec.binary import TEXTS_AT_ONCE, to_bytes
from cohort.codec.json_outputs import LongParts, encode_parts
from cohort.codec.v1 import encode_predictions
from cohort.errors import DeadlineExceeded, InferenceFailed
from cohort.tensors import Array

MANY = 2 * TEXTS_AT_ONCE + 7


def texts(*shape: int) -> Array:
    count = int(np.prod(shape))
    return np.array([f"é{number}" for number in range(count)], np.object_).reshape(shape)


SHAPES = [(MANY,), (3, MANY), (MANY, 3), (2, 2, MANY), (MANY, 1, 1), (1, MANY, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_they_are_nested_lists(shape: tuple[int, ...]) -> None:
    """Long text arrays of any shape are written as nested lists."""
    array = texts(*shape)
    parts = LongParts()
    document = {"before": 1, "y": parts.put(encode_parts("y", array)), "after": 2}
    assert orjson.loads(parts.dump(document)) == {"before": 1, "y": array.tolist(), "after": 2}


def test_rows_of_v1_are_made_of_them() -> None:
    """They can be next to another output, and in base64."""
    outputs = {"a": texts(MANY), "b_bytes": texts(MANY), "c": np.arange(MANY)}
    body: Any = orjson.loads(encode_predictions(outputs, rows=True))
    assert body["predictions"][MANY - 1] == {
        "a": f"é{MANY - 1}",
        "b_bytes": {"b64": "w6k4MTk4"},
        "c": MANY - 1,
    }
    assert len(body["predictions"]) == MANY


def test_what_is_no_text_is_placed() -> None:
    """The error has its index in the whole array, far after the first portion."""
    array = texts(3, MANY)
    array[2, 5] = b"\xff"
    parts = LongParts()
    with pytest.raises(InferenceFailed, match=r"\[2\]\[5\]|\[2, 5\]"):
        parts.put(encode_parts("y", array))


@pytest.mark.parametrize("array", [texts(MANY), np.zeros(1 << 20)])
def test_writing_ends_at_the_deadline(array: Array) -> None:
    """A check between portions ends it, in JSON and in bytes."""
    asked = 0

    def check() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise DeadlineExceeded(1.0)

    with pytest.raises(DeadlineExceeded):
        LongParts(check).put(encode_parts("y", array))
    asked = 0
    if array.dtype.hasobject:
        with pytest.raises(DeadlineExceeded):
            to_bytes(array, check)
