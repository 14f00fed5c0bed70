"""V2 bodies with Inference-Header-Content-Length: arrays must hold exactly the bytes sent.

An input is a byte that chooses a model, two bytes with the header's value, and a body.
"""

from __future__ import annotations

import json
from contextlib import suppress

import numpy as np
import orjson

from cohort.codec import to_bytes
from cohort.errors import InvalidInput
from cohort.http.v2.message import parse_header_length, parse_infer, raw_request
from cohort.open_inference import InputTensor
from cohort.open_inference.inference import decode_input
from cohort.tensors import BY_NAME, Array, TensorSpec

DATATYPES = sorted(BY_NAME)
SHAPES = (None, (), ("N",), ("N", 3), ("N", "M"), (2, "N", None))


def framed(document: object, tail: bytes, *, off: int = 0) -> bytes:
    head = json.dumps(document).encode()
    return b"\0" + (len(head) + off).to_bytes(2, "little") + head + tail


def tensor(datatype: str, shape: list[int], size: int | None, **more: object) -> dict[str, object]:
    parameters = {} if size is None else {"parameters": {"binary_data_size": size}}
    return {"name": "x", "datatype": datatype, "shape": shape, **parameters, **more}


SEEDS = [
    framed({"inputs": [tensor("FP32", [1, 3], 12)]}, b"\0\0\x80\x3f" * 3),
    framed({"inputs": [tensor("BYTES", [2], 10)]}, b"\1\0\0\0a\1\0\0\0b"),
    framed({"inputs": [tensor("BOOL", [2, 1], 2)]}, b"\0\1", off=1),
    framed({"inputs": [tensor("INT4", [3], 2), tensor("FP16", [1], 2, name="y")]}, b"\x21\3ab"),
    framed({"inputs": [tensor("UINT64", [1], 8)], "outputs": [{"name": "y"}]}, b"\xff" * 8),
    framed({"inputs": [tensor("INT64", [1], None, data=[5])], "id": "7"}, b""),
    framed({"inputs": [tensor("BYTES", [1, 2], None, data=[["a", "b"]])]}, b""),
    framed({"inputs": [tensor("FP32", [0, 3], 0)], "parameters": {"timeout": 5}}, b""),
    *(bytes([model, 0, 0]) + b"\0\1\2\3\4\5\6\7" * 3 for model in range(0, 120, 5)),
]
TOKENS = (
    *(b'{"inputs":[', b'"binary_data_size":', b'"parameters":{', b'"datatype":"BYTES"'),
    *(b'"datatype":"FP8E4M3FN"', b'"shape":[', b'"data":[', b'"name":"x"', b"4294967295"),
    *(b"18446744073709551616", b"-1", b"true", b"null", b"[]", b"\xff\xff\xff\xff", b"1e400"),
)


def check(data: bytes) -> None:
    """Fail if another error than ours is raised, or if an array differs from the body."""
    if len(data) < 3:
        return
    model, told, body = data[0], int.from_bytes(data[1:3], "little"), data[3:]
    with suppress(InvalidInput):
        length = parse_header_length(str(told), len(body))
        if length == 0:
            datatype, shape = DATATYPES[model % len(DATATYPES)], SHAPES[model % len(SHAPES)]
            for sent in raw_request([TensorSpec("x", datatype, shape)], body).inputs.values():
                check_raw(sent)
            return
        request = parse_infer(body, length)
        document = orjson.loads(body[:length])
        tail = b""
        for sent, one in zip(request.inputs.values(), document["inputs"], strict=True):
            assert (sent.name, sent.datatype) == (one["name"], one["datatype"])
            if sent.raw is None:
                with suppress(InvalidInput):
                    array = decode(sent)
                    assert list(array.shape) == one["shape"]
                continue
            tail += bytes(sent.raw)
            with suppress(InvalidInput):
                check_raw(sent)
        assert tail == body[length:], "no byte is left out or read twice"


def decode(sent: InputTensor) -> Array:
    return decode_input(TensorSpec(sent.name, sent.datatype, None), sent)


def check_raw(sent: InputTensor) -> None:
    array = decode(sent)
    assert list(array.shape) == list(sent.shape)
    assert sent.raw is not None
    if array.dtype.kind == "V" and sent.datatype == "BYTES":  # elements that are not text
        array = np.array([*array.ravel().tolist(), None], np.object_)[:-1]
    back = bytes(to_bytes(array))
    if BY_NAME[sent.datatype].packed:  # what is left of the last byte means nothing
        assert len(back) == len(bytes(sent.raw))
        assert back[:-1] == bytes(sent.raw)[:-1]
    else:
        assert back == bytes(sent.raw)
