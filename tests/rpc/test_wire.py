"""Messages taken apart as bytes: the same is read of them as by protobuf's own classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.codec.varints import varint
from app.errors import InvalidInput
from app.open_inference import InferRequest, InferResponse, OutputTensor
from app.open_inference.inference import decode_input
from app.rpc.calls import parse_message
from app.rpc.contents import FIELDS, read_request, write_response
from app.rpc.inference_pb2 import InferTensorContents, ModelInferRequest, ModelInferResponse
from app.rpc.wire import (
    MOST_FIELDS,
    MOST_FIELDS_OF_ALL,
    SHORT_MESSAGE,
    InferMessage,
    read_at_once,
    read_whole,
)
from app.tensors import Array, TensorSpec
from tests.rpc.client import arrays_of as arrays_of_answer
from tests.rpc.client import typed_request

NUMBERS = InferTensorContents.DESCRIPTOR.fields_by_name


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(datatype: str, shape: list[int], contents: bytes) -> bytes:
    """An input of a request, with these very bytes as its contents."""
    head = ModelInferRequest.InferInputTensor(name="x", datatype=datatype, shape=shape)
    return field(5, head.SerializeToString() + contents)


def plainly(data: bytes) -> InferMessage:
    message = parse_message(ModelInferRequest, data)
    return InferMessage(message, message.raw_input_contents)


def understood(read: InferMessage) -> object:
    """What becomes of a message: its arrays, or what is wrong with it."""
    try:
        request = read_request(read)
        return [arrays_of(request), request.parameters, request.id, request.outputs]
    except InvalidInput as error:
        return str(error)


def arrays_of(request: InferRequest) -> list[object]:
    found: list[object] = []
    for sent in request.inputs.values():
        array = decode_input(TensorSpec(sent.name, sent.datatype, None), sent)
        found.append((sent.name, str(array.dtype), array.shape, repr(array.ravel().tolist())))
    return found


def assert_same(data: bytes) -> None:
    try:
        expected = understood(plainly(data))
    except InvalidInput:
        assert isinstance(read_or_refused(data), str)  # packed numbers when they become an array
    else:
        assert read_or_refused(data) == expected


def read_or_refused(data: bytes) -> object:
    try:
        return understood(read_whole(data))
    except InvalidInput as error:
        return str(error)


ARRAYS: dict[str, Array] = {
    "BOOL": np.array([True, False, True]),
    "INT8": np.array([-128, 0, 127], np.int8),
    "INT16": np.array([-(2**15), 300, 2**15 - 1], np.int16),
    "INT32": np.array([-(2**31), -1, 2**31 - 1], np.int32),
    "INT64": np.array([-(2**63), -1, 0, 127, 128, 2**63 - 1]),
    "UINT8": np.array([0, 128, 255], np.uint8),
    "UINT16": np.array([0, 2**16 - 1], np.uint16),
    "UINT32": np.array([0, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 2**64 - 1], np.uint64),
    "FP32": np.array([0.1, -np.inf, 3e38], np.float32),
    "FP64": np.array([0.1, 1e300]),
    "BYTES": np.array(["", "é", "x" * 300], np.object_),
}


@pytest.mark.parametrize("datatype", FIELDS)
def test_every_datatype_is_read_as_protobuf_reads_it(datatype: str) -> None:
    """And with an element too many, one out of range, or in another datatype's field."""
    request = typed_request("m", {"x": ARRAYS[datatype]}, id="7")
    assert_same(request.SerializeToString())
    request.inputs[0].shape[0] += 1
    assert_same(request.SerializeToString())
    wrong = InferTensorContents(int_contents=[3, 2**31 - 1], uint_contents=[2**32 - 1])
    assert_same(tensor(datatype, [2], field(5, wrong.SerializeToString())))


@pytest.mark.parametrize("datatype", ["INT8", "UINT16"])
def test_value_out_of_range_is_named(datatype: str) -> None:
    """By its place, in the same words."""
    name = FIELDS[datatype]
    wrong = InferTensorContents(**{name: [1, 2**31 - 1]})  # type: ignore[arg-type]
    data = tensor(datatype, [2, 1], field(5, wrong.SerializeToString()))
    told = understood(read_whole(data))
    assert "got 2147483647 at [1][0], which is out of range" in str(told)
    assert_same(data)


def test_contents_may_come_in_several_places_and_unpacked() -> None:
    """Protobuf puts them together, in order."""
    number = NUMBERS["int64_contents"].number
    packed, single = field(number, b"\x01\x02"), varint(number << 3) + b"\x03"
    assert_same(tensor("INT64", [3], field(5, packed) + field(5, field(number, b"\x04"))))
    assert_same(tensor("INT64", [3], field(5, packed + single)))
    assert_same(tensor("INT64", [0], field(5, b"")))
    unknown = b"\x7b\x7c" + field(99, b"abc")  # a group, and a field
    assert_same(unknown + tensor("INT64", [2], unknown + field(5, unknown + packed)))


parts = st.one_of(
    st.binary(max_size=20),
    st.builds(field, st.integers(1, 9), st.binary(max_size=20)),
    st.builds(
        lambda datatype, shape, contents: tensor(datatype, shape, field(5, contents)),
        st.sampled_from(sorted(FIELDS)),
        st.lists(st.integers(0, 3), max_size=2),
        st.builds(field, st.integers(1, 9), st.binary(max_size=12)),
    ),
)


@given(st.lists(parts, max_size=4).map(b"".join))
def test_any_bytes_are_read_as_protobuf_reads_them(data: bytes) -> None:
    """Or refused as it refuses them."""
    assert_same(data)


def test_long_tensors_are_read_at_once_and_many_fields_are_not() -> None:
    """What takes time to read is left to `read_whole`; cutting out a tensor takes none."""
    long = np.zeros(SHORT_MESSAGE, np.float32)
    typed = typed_request("m", {"x": long})
    read = read_at_once(typed.SerializeToString())
    assert read is not None
    assert read.contents is not None
    raw = ModelInferRequest(raw_input_contents=[b"." * 10**6]).SerializeToString()
    assert read_at_once(raw) is not None
    texts = typed_request("m", {"x": np.array(["text"] * (MOST_FIELDS + 1), np.object_)})
    assert read_at_once(texts.SerializeToString()) is None
    assert_same(texts.SerializeToString())
    outputs = field(6, b"") * (MOST_FIELDS_OF_ALL + 1)
    assert_same(outputs)
    assert read_at_once(outputs) is None
    assert read_at_once(ModelInferRequest(id="." * 10**6).SerializeToString()) is None


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("datatype", FIELDS)
@pytest.mark.parametrize("copies", [1, SHORT_MESSAGE])
def test_responses_are_what_protobuf_reads(datatype: str, copies: int, typed: bool) -> None:
    """Short ones and long ones, with several outputs, one of them empty."""
    array = np.tile(ARRAYS[datatype], copies)
    empty = array[:0].reshape(0, 3)
    outputs = [
        OutputTensor(name, datatype, one, False) for name, one in (("y", array), ("z", empty))
    ]
    message, tail = write_response(InferResponse("m", "1", "7", "", outputs), typed=typed)
    answer = ModelInferResponse.FromString(b"".join([message.SerializeToString(), *tail]))
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "1", "7")
    found = arrays_of_answer(answer)
    assert np.array_equal(found["y"], array)
    assert found["z"].shape == (0, 3)
    assert bool(tail) == (copies > 1)
