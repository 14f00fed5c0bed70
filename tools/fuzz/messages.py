"""gRPC messages: our reader must read what protobuf's own classes read."""

from __future__ import annotations

import numpy as np

from cohort.codec.varints import varint
from cohort.errors import InvalidInput
from cohort.rpc.inference_pb2 import ModelInferRequest
from cohort.rpc.wire import read_at_once
from tests.rpc.client import raw_request, typed_request
from tests.rpc.messages import ARRAYS, assert_same, field, read_or_refused, tensor, understood

X = np.ones((2, 2), "f4")


def _full() -> ModelInferRequest:
    made = raw_request("m", {"x": X, "y": X}, model_version="1", id="7")
    made.outputs.add(name="z").parameters["classification"].int64_param = 2
    made.parameters["timeout"].int64_param = 5
    made.inputs[0].parameters["a"].string_param = "b"
    return made


SEEDS = [
    b"",
    _full().SerializeToString(),
    *(
        typed_request("m", {"x": array}, id="7").SerializeToString()
        for array in ARRAYS.values()
    ),
    tensor("INT64", [3], field(5, varint(3 << 3) + b"\x03") + field(5, field(3, b"\x01\x80\x01"))),
    tensor("INT8", [3], field(5, field(2, b"\x80" * 10 + b"\x01"))),
    tensor("UINT64", [5503, 8, 34, 6, 0], field(5, b"")),
    b"\x7b\x7c" + tensor("BYTES", [1], field(5, field(8, b"a")) + b"\x7b\x7c"),
]  # fmt: skip
TOKENS = (
    *(b"\x2a", b"\x32", b"\x3a", b"\x12\x04FP32", b"\x12\x05INT64", b"\x12\x05BYTES", b"\x7b\x7c"),
    *(b"\x80" * 9 + b"\x01", b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\x80" * 10 + b"\x01"),
    *(b"\x18\x01", b"\x1a\x02\x01\x02", b"\x2a\x04\x1a\x02\x01\x02", b"\xff\xff\xff\xff\x0f"),
)


def check(data: bytes) -> None:
    """Fail if the two differ, or if another error than ours is raised."""
    assert_same(data)
    try:
        quick = read_at_once(data)
    except InvalidInput:
        assert isinstance(read_or_refused(data), str)  # in other words: it has read less by then
    else:
        if quick is not None:
            assert understood(quick) == read_or_refused(data)
