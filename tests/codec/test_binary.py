"""Tensors as bytes: written and read without a copy, and refused where they do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.codec import from_bytes, is_own_view, to_bytes
from cohort.errors import InvalidInput
from cohort.tensors import BY_NAME
from tests.codec.bodies import (
    arrays,
    same,
)
from tests.examples import examples


@pytest.mark.parametrize("datatype", sorted(BY_NAME))
@settings(max_examples=examples(40))
@given(data=st.data())
def test_bytes_round_trip_every_array(datatype: str, data: st.DataObject) -> None:
    """Written and read, an array of any datatype and shape is the same to the last bit."""
    array = data.draw(arrays(datatype))
    for source in (array, np.asfortranarray(array)):
        sent = to_bytes(source)
        assert same(from_bytes(sent, datatype, array.shape), array)
        assert same(from_bytes(bytearray(sent), datatype, array.shape), array)


def test_bytes_are_read_and_written_without_a_copy() -> None:
    """The array uses the memory of the received bytes, and the written view that of the array."""
    received = bytearray(np.arange(6, dtype="<f4").tobytes())
    array = from_bytes(memoryview(received), "FP32", [2, 3])
    received[0:4] = np.float32(7).tobytes()
    assert array[0, 0] == 7
    assert np.shares_memory(np.frombuffer(to_bytes(array), np.uint8), array)


def test_a_view_is_its_own_where_it_keeps_nothing_else() -> None:
    """A row of a batch would keep all rows; texts, and rows that lie apart, are copied anyway."""
    batch = np.zeros((8, 100), np.float32)
    assert is_own_view(batch)
    assert is_own_view(batch[:4])
    assert is_own_view(np.copy(batch[:1]))
    assert not is_own_view(batch[:1])
    assert not is_own_view(np.asfortranarray(batch))
    assert not is_own_view(np.array(["a"], object))
    assert not is_own_view(np.zeros(4, BY_NAME["INT4"].dtype))


def test_bytes_are_written_in_little_endian_order() -> None:
    """A big-endian array is converted."""
    assert bytes(to_bytes(np.array([1, 2], ">i2"))) == b"\x01\x00\x02\x00"


@pytest.mark.parametrize(
    ("buffer", "datatype", "shape", "said"),
    [
        (b"\0" * 7, "FP32", [2], "'x' of FP32 and shape [2] needs 8 bytes, got 7"),
        (b"", "FP32", [-1], "input 'x' must have a shape of whole numbers >= 0, got -1"),
        (b"", "FP32", [True], "a shape of whole numbers >= 0, got true"),
        (b"", "FP32", [1.0], "a shape of whole numbers >= 0, got 1.0"),
        (b"", "FP31", [1], "unknown datatype 'FP31'"),
        (b"", "INT8", [2**32, 2**32], "too many elements"),
        (b"", "INT8", [0, 2**62, 2**62], "too many elements"),
        (b"", "INT8", [2**40], "needs 1099511627776 bytes, got 0"),
        (b"", "INT8", [1] * 65, "65 dimensions"),
        (b"\0\1\2", "BOOL", [3], "must have only bytes 0 and 1, got 2 at byte 2"),
        (b"\1\0\0", "BYTES", [1], "needs at least 4 bytes, got 3"),
        (b"\2\0\0\0a", "BYTES", [1], "ends within its element number 0 of 1"),
        (b"\1\0\0\0a\0\0\0", "BYTES", [2], "ends within its element number 1 of 2"),
        (b"\1\0\0\0ab", "BYTES", [1], "1 bytes after its 1 elements"),
        (b"\1\0\0\0\xff\2\0\0\0ab", "BYTES", [2], "not UTF-8 and differ in length"),
        (b"\2\0\0\0\xff\xff\1\0\0\0a", "BYTES", [2], "not UTF-8 and differ in length"),
        (b"\1\0\0\0\xff\4\0\0\0a", "BYTES", [2], "ends within"),
        (b"\xff\xff\xff\xff", "BYTES", [1], "ends within"),
        (b"", "BYTES", [2**18], "needs at least"),
        (b"", "BYTES", [2**18 + 1], "more than the 262144 elements"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(
    buffer: bytes, datatype: str, shape: Any, said: str
) -> None:
    """Shapes, lengths and contents are checked before anything is made of them."""
    with pytest.raises(InvalidInput) as caught:
        from_bytes(buffer, datatype, shape, name="x")
    assert said in str(caught.value)


@given(
    buffer=st.binary(max_size=24),
    datatype=st.sampled_from(sorted(BY_NAME)),
    shape=st.lists(st.integers(-1, 4), max_size=4),
)
def test_any_bytes_become_an_array_or_invalid_input(
    buffer: bytes, datatype: str, shape: list[int]
) -> None:
    """No other error is raised, and the shape is the requested one."""
    try:
        array = from_bytes(buffer, datatype, shape)
    except InvalidInput:
        return
    assert array.shape == tuple(shape)
