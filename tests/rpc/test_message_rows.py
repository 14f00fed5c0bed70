"""Small messages that share runs: read and answered as protobuf's own classes would."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.codec import MAX_ID, RunOutputs, Selection
from cohort.codec.labels import labellers_of
from cohort.open_inference import InferResponse, OutputTensor
from cohort.rpc import message_rows
from cohort.rpc.contents import FIELDS, write_response
from cohort.rpc.inference_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from cohort.rpc.message_rows import MAX_KNOWN_MESSAGES, MessageRows
from cohort.tensors import BY_NAME, TensorSpec
from tests.rpc.client import Request, raw_request, typed_request

datatypes = st.sampled_from(["FP32", "INT64", "UINT8", "FP64"])
texts = st.sampled_from(["", "a", "iris", "x" * 200])


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Most of them rows for one input; some almost."""
    datatype, rows, width = draw(datatypes), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    size = rows * width * BY_NAME[datatype].dtype.itemsize
    array = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), BY_NAME[datatype].dtype)
    array = np.nan_to_num(array).reshape(rows, width)
    make: Any = draw(st.sampled_from([raw_request, raw_request, typed_request]))
    request: Request = make(draw(texts), {draw(texts): array}, id=draw(texts))
    oddity = draw(st.integers(0, 20))
    if oddity == 1:
        request.model_version = "1"
    elif oddity == 2:
        request.parameters["timeout"].int64_param = 5
    elif oddity == 3:
        request.inputs[0].shape[:] = [rows * width]
    elif oddity == 4:
        request.inputs[0].datatype = "NO"
    elif oddity == 5:
        request.inputs.add(name="second")
    elif oddity == 6:
        request.raw_input_contents.append(b"more")
    elif oddity == 7:
        request.inputs[0].contents.int_contents.append(1)
    elif oddity == 8:
        request.inputs[0].shape[0] = 7
    elif oddity in (9, 10):
        request.outputs.add(name="a")
    elif oddity == 11:
        request.outputs.add(name="a").parameters["classification"].int64_param = 1
    elif oddity == 12:
        del request.raw_input_contents[:]
        request.inputs[0].ClearField("contents")
    elif oddity == 13:
        request.inputs[0].parameters["binary_data_size"].int64_param = 4
    return request


@given(st.lists(requests(), min_size=1, max_size=6))
def test_rows_are_read_as_protobuf_reads_them(messages: list[Request]) -> None:
    """Repeated reads of any message give the same values, or nothing at all."""
    rows = MessageRows(streamed=False)
    for message in messages * 3:
        body = message.SerializeToString()
        document, asked = rows.read(body)
        assert document in (None, message)
        if asked is None:
            continue
        named, values = asked.asked, asked.values
        model, version = named if isinstance(named, tuple) else (named, None)
        tensor = message.inputs[0]
        assert [model or "", asked.id or ""] == [message.model_name, message.id]
        assert (version or "") == message.model_version
        assert [asked.name, asked.datatype] == [tensor.name, tensor.datatype]
        assert asked.rows == tensor.shape[0]
        assert asked.template.outputs == (tuple(one.name for one in message.outputs) or None)
        assert not (message.parameters)
        assert not (tensor.parameters)
        assert len(message.inputs) == 1
        if isinstance(values, bytes):
            assert [*message.raw_input_contents] == [values]
            assert not tensor.contents.ListFields()
        else:
            assert values == [*getattr(tensor.contents, FIELDS[tensor.datatype])]
            assert not message.raw_input_contents


def test_what_a_client_sends_most_is_rows() -> None:
    """Otherwise a reader that reads nothing would pass the test above."""
    rows = MessageRows(streamed=False)
    for make in (raw_request, typed_request):
        for id_ in ("", "a"):
            request = make("iris", {"x": np.ones((2, 4), "f4")}, id=id_)
            for _ in range(2):
                asked = rows.read(request.SerializeToString())[1]
                assert asked is not None
                assert asked.rows == 2


@given(st.binary(min_size=1, max_size=12), st.data())
def test_other_bytes_before_a_tensor_are_another_message(raw: bytes, data: st.DataObject) -> None:
    """A known message is not confused with one that begins or continues in another way."""
    rows = MessageRows(streamed=False)
    request = Request(model_name="m", raw_input_contents=[raw])
    request.inputs.add(name="x", datatype="UINT8", shape=[1, len(raw)])
    body = bytearray(request.SerializeToString())
    assert rows.read(bytes(body))[1] is not None
    at = data.draw(st.integers(0, len(body)))
    body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    changed = bytes(body)
    again = MessageRows(streamed=False)
    assert rows.read(changed)[1] == again.read(changed)[1]


def test_a_tensor_must_be_what_ends_a_message() -> None:
    """Bytes that only look like one, within another field, are not taken for it."""
    rows = MessageRows(streamed=False)
    request = Request(model_name="m", raw_input_contents=[b"abcd"])
    request.inputs.add(name="x", datatype="UINT8", shape=[1, 4])
    front = request.SerializeToString()
    lies = Request.FromString(front)
    tail = b"\x82\x7d\x06\x3a\x04abcd"  # an unknown field that ends as the tensor does
    lies.MergeFromString(tail)
    body = front + tail
    assert rows.read(body)[1] is not None
    other = body[:-4] + b"wxyz"
    asked = rows.read(other)[1]
    assert asked is not None
    assert asked.values == b"abcd"


def test_so_many_messages_are_known() -> None:
    """Callers who make up names do not fill the memory."""
    rows = MessageRows(streamed=False)
    for number in range(MAX_KNOWN_MESSAGES + 10):
        request = raw_request(f"m{number}", {"x": np.ones((1, 4), "f4")})
        rows.read(request.SerializeToString())
        assert len(rows._starts) <= MAX_KNOWN_MESSAGES
    assert len(rows._starts) == 10
    assert len(rows._lengths) == 1


@pytest.mark.parametrize("others", [0, 3, MAX_KNOWN_MESSAGES])
def test_a_message_that_begins_as_another_is_not_parsed(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds whatever came in between and whatever its rows; another length is parsed."""
    rows = MessageRows(streamed=False)
    first, second, longer = [
        raw_request("iris", {"x": np.full((count, 4), value, "f4")}).SerializeToString()
        for count, value in ((2, 1), (2, 7), (3, 7))
    ]
    for number in range(others):
        rows.read(raw_request(f"m{number}", {"x": np.ones((1, 4), "f4")}).SerializeToString())
    rows.read(first)
    monkeypatch.setattr(message_rows, "ModelInferRequest", None)
    _, asked = rows.read(second)
    assert asked is not None
    assert (asked.asked, asked.name, asked.datatype) == ("iris", "x", "FP32")
    assert asked.values == np.full((2, 4), 7, "f4").tobytes()
    assert asked.rows == 2
    with pytest.raises(AttributeError):
        rows.read(longer)


def _changed(name: str) -> Request:
    request: Request = raw_request("iris", {"x": np.ones((2, 4), "u1")}, id="a" * MAX_ID)
    tensor = request.inputs[0]
    if name == "a version":
        request.model_version = "1"
    elif name == "parameters":
        request.parameters["timeout"].int64_param = 5
    elif name == "two inputs":
        request.inputs.add(name="second")
    elif name == "an input's parameters":
        tensor.parameters["binary_data_size"].int64_param = 8
    elif name == "no datatype":
        tensor.datatype = "NO"
    elif name == "one axis":
        tensor.shape[:] = [8]
    elif name in ("no rows", "no columns"):
        tensor.shape[:] = [0, 4] if name == "no rows" else [2, 0]
        request.raw_input_contents[0] = b""
    elif name == "fewer bytes":
        request.raw_input_contents[0] = b"1234567"
    elif name == "a longer id":
        request.id += "a"
    elif name == "typed and raw":
        tensor.contents.uint_contents.append(1)
    elif name == "two tensors":
        request.raw_input_contents.append(b"12345678")
    elif name == "no values":
        del request.raw_input_contents[:]
    elif name == "values of another type":
        del request.raw_input_contents[:]
        tensor.contents.int_contents.extend(range(8))
    elif name == "values of two types":
        del request.raw_input_contents[:]
        tensor.contents.uint_contents.extend(range(8))
        tensor.contents.fp32_contents.append(1)
    elif name == "an output twice":
        request.outputs.add(name="y")
        request.outputs.add(name="y")
    elif name == "an output's parameters":
        request.outputs.add(name="y").parameters["classification"].int64_param = 1
    else:
        request.outputs.add(name="y")
    return request


@pytest.mark.parametrize(
    "name",
    [
        *("a version", "parameters", "two inputs", "an input's parameters", "no datatype"),
        *("one axis", "no rows", "no columns", "fewer bytes", "a longer id", "typed and raw"),
        *("two tensors", "no values", "values of another type", "values of two types"),
        *("an output twice", "an output's parameters", "an output"),
    ],
)
def test_what_is_more_than_rows_is_left_to_others(name: str) -> None:
    """An output by name, and a version, are not more."""
    asked = MessageRows(streamed=False).read(_changed(name).SerializeToString())[1]
    assert (asked is not None) == (name in ("an output", "a version"))


def test_a_message_that_ends_with_more_than_its_tensor_is_read_whole() -> None:
    """A known message of its length, or one with the same beginning, does not change that."""
    rows = MessageRows(streamed=False)
    longer = raw_request("ab", {"x": np.ones((1, 40), "u1")}).SerializeToString()
    shorter = raw_request("ab", {"x": np.ones((1, 30), "u1")}).SerializeToString()
    rows.read(longer)
    rows.read(shorter)
    sent = shorter + b"\x82\x7d\x07abcdefg"  # an unknown field
    assert len(sent) == len(longer)
    assert rows.read(sent)[1] == MessageRows(streamed=False).read(sent)[1]


def test_a_message_without_values_is_learned_by_nobody() -> None:
    """Messages whose tensor does not end them, or with an id, are not learned either."""
    rows = MessageRows(streamed=False)
    request = raw_request("iris", {"x": np.ones((1, 4), "f4")})
    tail = b"\x82\x7d\x01a"  # an unknown field
    rows.read(request.SerializeToString() + tail)
    request.id = "a"
    rows.read(request.SerializeToString())
    rows.read(raw_request("iris", {"x": np.ones((0, 4), "f4")}).SerializeToString())
    assert not rows._starts
    assert not rows._lengths


outputs = st.lists(
    st.tuples(datatypes, st.lists(st.integers(1, 3), max_size=2)), min_size=1, max_size=3
)


@given(
    outputs,
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    texts,
    texts,
    st.booleans(),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([None, 0, 2]),
)
def test_answers_are_what_each_would_get_alone(
    outputs: list[tuple[str, list[int]]],
    counts: list[int],
    variant: str,
    id_: str,
    streamed: bool,
    top: int,
    named: int | None,
) -> None:
    """The response messages are equal."""
    datatypes = tuple(datatype for datatype, _ in outputs)
    names = tuple(f"out{place}" for place, _ in enumerate(outputs))
    arrays = [
        np.arange(sum(counts) * int(np.prod(shape)))
        .reshape(sum(counts), *shape)
        .astype(BY_NAME[datatype].dtype)
        for datatype, shape in outputs
    ]
    specs = [
        TensorSpec(
            name, datatype, ("N", *shape), classes=("a", "Größe", "c")[: shape[-1]], named=named
        )
        if shape
        else TensorSpec(name, datatype, ("N",))
        for name, (datatype, shape) in zip(names, outputs, strict=True)
    ]
    labellers = labellers_of(specs, ())
    request = raw_request("m", {"x": np.ones((1, 4), "f4")}, id=id_)
    if top:
        request.parameters["top"].int64_param = top
    asked = MessageRows(streamed=streamed).read(request.SerializeToString())[1]
    assert asked is not None
    run = RunOutputs(
        Selection("m", "3", variant, range(len(names)), names, datatypes, labellers),
        arrays,
        0.001,
        counts,
        [id_ or None] * len(counts),
    )
    written = asked.template.write(run)
    assert written is not None
    at = 0
    for count, (body, _) in zip(counts, written, strict=True):
        part = slice(at, at := at + count)
        tensors = [
            OutputTensor(name, datatype, array[part], binary=True)
            for name, datatype, array in zip(names, datatypes, arrays, strict=True)
        ]
        tensors += [
            OutputTensor(one.output, "BYTES", one.names(array[part], top), binary=True)
            for one, array in zip(labellers, arrays, strict=True)
            if one is not None and (top or one.named is not None)
        ]
        expected, tail = write_response(InferResponse("m", "3", id_, variant, tensors), typed=False)
        got = ModelInferResponse()
        if streamed:
            told = ModelStreamInferResponse.FromString(body)
            assert not told.error_message
            got = told.infer_response
            expected.parameters["triton_final_response"].bool_param = True
        else:
            got.ParseFromString(body)
        whole = ModelInferResponse.FromString(b"".join([expected.SerializeToString(), *tail]))
        assert got == whole


def test_a_message_that_is_none_is_left_to_others() -> None:
    """The next reader reports the fault."""
    assert MessageRows(streamed=False).read(b"\xff\xff") == (None, None)
    assert ModelInferRequest.FromString(b"") == ModelInferRequest()
