"""Messages taken apart as bytes: the same is read of them as by protobuf's own classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.codec.varints import varint
from cohort.open_inference import InferResponse, OutputTensor
from cohort.rpc.contents import FIELDS, write_response
from cohort.rpc.inference_pb2 import InferTensorContents, ModelInferRequest, ModelInferResponse
from cohort.rpc.wire import MAX_FIELDS, MAX_FIELDS_OF_ALL, SHORT_MESSAGE, read_at_once, read_whole
from tests.rpc.client import arrays_of as arrays_of_answer
from tests.rpc.client import typed_request
from tests.rpc.messages import (
    ARRAYS,
    assert_same,
    field,
    tensor,
    understood,
)

NUMBERS = InferTensorContents.DESCRIPTOR.fields_by_name


@pytest.mark.parametrize("datatype", FIELDS)
def test_every_datatype_is_read_as_protobuf_reads_it(datatype: str) -> None:
    """Extra elements, values out of range, and other datatypes' fields are included."""
    request = typed_request("m", {"x": ARRAYS[datatype]}, id="7")
    assert_same(request.SerializeToString())
    request.inputs[0].shape[0] += 1
    assert_same(request.SerializeToString())
    wrong = InferTensorContents(int_contents=[3, 2**31 - 1], uint_contents=[2**32 - 1])
    assert_same(tensor(datatype, [2], field(5, wrong.SerializeToString())))


@pytest.mark.parametrize("datatype", ["INT8", "UINT16"])
def test_value_out_of_range_is_named(datatype: str) -> None:
    """The error names its place in the same words."""
    name = FIELDS[datatype]
    wrong = InferTensorContents(**{name: [1, 2**31 - 1]})  # type: ignore[arg-type]
    data = tensor(datatype, [2, 1], field(5, wrong.SerializeToString()))
    told = understood(read_whole(data))
    assert "got 2147483647 at [1][0], which is out of range" in str(told)
    assert_same(data)


def test_contents_may_come_in_several_places_and_unpacked() -> None:
    """Protobuf joins them in order."""
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
    """Bytes that protobuf refuses are refused."""
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
    texts = typed_request("m", {"x": np.array(["text"] * (MAX_FIELDS + 1), np.object_)})
    assert read_at_once(texts.SerializeToString()) is None
    assert_same(texts.SerializeToString())
    outputs = field(6, b"") * (MAX_FIELDS_OF_ALL + 1)
    assert_same(outputs)
    assert read_at_once(outputs) is None
    assert read_at_once(ModelInferRequest(id="." * 10**6).SerializeToString()) is None


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("datatype", FIELDS)
@pytest.mark.parametrize("copies", [1, SHORT_MESSAGE])
def test_responses_are_what_protobuf_reads(datatype: str, copies: int, typed: bool) -> None:
    """Short and long responses have several outputs, one of them empty."""
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
