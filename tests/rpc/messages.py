"""Bytes of gRPC messages, and what our reader and protobuf's own classes read from them."""

from __future__ import annotations

import numpy as np

from cohort.codec.varints import varint
from cohort.errors import InvalidInput
from cohort.open_inference import InferRequest
from cohort.open_inference.inference import decode_input
from cohort.rpc.calls import parse_message
from cohort.rpc.contents import read_request
from cohort.rpc.inference_pb2 import ModelInferRequest
from cohort.rpc.wire import InferMessage, read_whole
from cohort.tensors import Array, TensorSpec


def field(number: int, data: bytes) -> bytes:
    """Write a field whose wire type has a length."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(datatype: str, shape: list[int], contents: bytes) -> bytes:
    """Write an input of a request, with exactly these bytes as its contents."""
    head = ModelInferRequest.InferInputTensor(name="x", datatype=datatype, shape=shape)
    return field(5, head.SerializeToString() + contents)


def plainly(data: bytes) -> InferMessage:
    """Read a message with protobuf's own classes."""
    message = parse_message(ModelInferRequest, data)
    return InferMessage(message, message.raw_input_contents)


def understood(read: InferMessage) -> object:
    """Return the arrays and options of a message, or the error's text."""
    try:
        request = read_request(read)
        return [arrays_of(request), request.parameters, request.id, request.outputs]
    except InvalidInput as error:
        return str(error)


def arrays_of(request: InferRequest) -> list[object]:
    """Return each input's name, datatype, shape and elements."""
    found: list[object] = []
    for sent in request.inputs.values():
        array = decode_input(TensorSpec(sent.name, sent.datatype, None), sent)
        found.append((sent.name, str(array.dtype), array.shape, repr(array.ravel().tolist())))
    return found


def assert_same(data: bytes) -> None:
    """Assert that both readers read the same from `data`, or that both refuse it."""
    try:
        expected = understood(plainly(data))
    except InvalidInput:
        assert isinstance(read_or_refused(data), str)  # packed numbers when they become an array
    else:
        assert read_or_refused(data) == expected


def read_or_refused(data: bytes) -> object:
    """Read a message with our reader; return what it holds, or the error's text."""
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
