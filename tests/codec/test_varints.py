"""Packed fields of protobuf, to arrays and back."""

from __future__ import annotations

import numpy as np
import pytest

from cohort.codec import pack_values, unpack_values
from cohort.codec.varints import PACKED_AT_ONCE
from cohort.errors import InvalidInput
from cohort.rpc.contents import FIELDS
from cohort.rpc.inference_pb2 import InferTensorContents
from cohort.tensors import BY_NAME, Array
from tests.rpc.messages import field

NUMBERS = [name for name in FIELDS if name != "BYTES"]


def many(datatype: str, count: int = PACKED_AT_ONCE) -> Array:
    """Numbers of every size that there is."""
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**63, count, np.uint64) << random.integers(0, 2, count, np.uint64)
    words = bits >> random.integers(0, 64, count, np.uint64)
    words[random.random(count) < 0.2] = 2**64 - 1
    array: Array = words.astype(BY_NAME[datatype].dtype)
    return array


@pytest.mark.parametrize("datatype", NUMBERS)
def test_packed_values_are_protobufs_own(datatype: str) -> None:
    """Packing and unpacking agree with protobuf, for an array of several parts."""
    array = many(datatype)
    name = FIELDS[datatype]
    contents = InferTensorContents(**{name: array.tolist()})
    packed = pack_values(array, datatype)
    number = InferTensorContents.DESCRIPTOR.fields_by_name[name].number
    assert field(number, packed) == contents.SerializeToString()
    assert np.array_equal(unpack_values(packed, datatype), array)


@pytest.mark.parametrize("datatype", NUMBERS)
def test_no_values_are_packed_as_nothing(datatype: str) -> None:
    """An empty text unpacks to an empty array."""
    empty = np.empty(0, BY_NAME[datatype].dtype)
    assert pack_values(empty, datatype) == b""
    assert unpack_values(b"", datatype).size == 0


@pytest.mark.parametrize(
    ("datatype", "data"),
    [("INT64", b"\x01\x80"), ("BOOL", b"\x80" * 11), ("INT32", b"\x80" * 10 + b"\x01"),
     ("UINT64", b"\x80" * 2 * PACKED_AT_ONCE + b"\x01"), ("FP32", b"123"), ("FP64", b"1234")],
)  # fmt: skip
def test_what_is_not_packed_is_refused(datatype: str, data: bytes) -> None:
    """Values that are cut short, or longer than any number, are refused."""
    with pytest.raises(InvalidInput, match=f"packed values of {datatype}"):
        unpack_values(data, datatype)
