"""ModelStreamInfer for language models, with a parrot for one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpc import aio
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from cohort.errors import NotReady
from cohort.rpc.inference_pb2 import ModelStreamInferResponse
from tests.aviary import Aviary, listening, open_aviary
from tests.rpc.client import Client, Request, connected, told
from tests.waiting import until


@pytest.fixture
async def aviary(tmp_path: Path) -> AsyncIterator[Aviary]:
    """A server of one parrot."""
    async with open_aviary(tmp_path) as opened, listening(opened):
        yield opened


@pytest.fixture
async def client(aviary: Aviary) -> AsyncIterator[Client]:
    """A connection to it."""
    async with connected(aviary.grpc) as client:
        yield client


def asking(text: str, id: str = "", **parameters: Any) -> bytes:  # noqa: A002 - the protocol's word
    """Return a request for the continuation of `text`."""
    request = Request(model_name="m", id=id)
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(text.encode())
    fields = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    for name, value in parameters.items():
        setattr(request.parameters[name], fields[type(value)], value)
    return request.SerializeToString()


def text_of(response: ModelStreamInferResponse) -> str:
    """Return the new text of a response."""
    (raw,) = response.infer_response.raw_output_contents
    assert int.from_bytes(raw[:4], "little") == len(raw) - 4
    return raw[4:].decode()


def is_last(response: ModelStreamInferResponse) -> bool:
    """Return True if a response is the last one of its request."""
    return response.infer_response.parameters["triton_final_response"].bool_param


async def rest_of(
    stream: aio.StreamStreamCall[bytes, ModelStreamInferResponse],
) -> list[ModelStreamInferResponse]:
    """Return the responses until the end of the call."""
    found = []
    while isinstance(one := await stream.read(), ModelStreamInferResponse):
        found.append(one)
    return found


async def test_a_request_has_many_responses(client: Client) -> None:
    """Each has new text; the last one has the mark, no text, and the reason of the end."""
    stream = client.stream()
    await stream.write(asking("one two three", "a"))
    await stream.done_writing()
    found = await rest_of(stream)
    assert [text_of(one) for one in found] == ["one", " two", " three", ""]
    assert [is_last(one) for one in found] == [False, False, False, True]
    answer = found[-1].infer_response
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "1", "a")
    assert answer.parameters["finish_reason"].string_param == "stop"
    (output,) = answer.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("text_output", "BYTES", [1])


async def test_parameters_are_those_of_the_request(aviary: Aviary, client: Client) -> None:
    """`stream` false makes one response; `exclude_input_in_output` false repeats the prompt."""
    stream = client.stream()
    await stream.write(asking("a b c", max_tokens=2, temperature=0.5, top_k="3", stop='["x", "y"]'))
    await stream.write(asking("a b", stream=False))
    await stream.write(asking("a b", stream=False, exclude_input_in_output=False))
    await stream.write(asking("a b", stream=False, binary_data_output=False))
    await stream.done_writing()
    found = await rest_of(stream)
    assert [text_of(one) for one in found[:5]] == ["a", " b", "", "a b", "a ba b"]
    assert found[5].infer_response.outputs[0].contents.bytes_contents[0] == b"a b"
    assert [is_last(one) for one in found] == [False, False, True, True, True, True]
    request = aviary.parrot.said[0].request
    assert (request.sampling.temperature, request.sampling.top_k) == (0.5, 3)
    assert request.stop == ("x", "y")


async def test_responses_come_as_they_are_made_if_requests_have_ids(
    aviary: Aviary, client: Client
) -> None:
    """A long answer holds up no other; requests without an id are answered in order."""
    aviary.parrot.pauses_after = 1
    stream = client.stream()
    for request in (asking("a b", "1"), asking("c d", "2"), asking("e f"), asking("g h")):
        await stream.write(request)
    await until(lambda: len(aviary.parrot.said) == 4)
    begun = [await told(stream) for _ in range(3)]
    assert [(text_of(one), one.infer_response.id) for one in begun] == [
        ("a", "1"), ("c", "2"), ("e", ""),
    ]  # fmt: skip
    for number in (1, 3, 2, 0):
        aviary.parrot.said[number].resume()
    await stream.done_writing()
    rest = await rest_of(stream)
    by_id = {id_: "".join(text_of(one) for one in rest if one.infer_response.id == id_)
             for id_ in ("1", "2", "")}  # fmt: skip
    assert by_id == {"1": " b", "2": " d", "": " fg h"}
    assert sum(map(is_last, rest)) == 4
    assert aviary.parrot.leases.count == 0


async def test_an_error_ends_its_request_only(aviary: Aviary, client: Client) -> None:
    """It has the request's id, before the first text and after it."""
    stream = client.stream()
    await stream.write(asking("a", "1", temperature=-1))
    await stream.write(asking("a " * 64, "2"))
    refused = [await told(stream) for _ in range(2)]
    assert {one.infer_response.id: one.error_message.split(",")[0] for one in refused} == {
        "1": "InvalidInput: temperature must be a number from 0 to 2",
        "2": "InvalidInput: this model's maximum context length is 64 tokens; the prompt has 64",
    }
    aviary.parrot.pauses_after = 1
    await stream.write(asking("a b", "3"))
    assert text_of(await told(stream)) == "a"
    aviary.parrot.said[-1].fail(NotReady("this version is being unloaded"))
    failed = await told(stream)
    assert failed.error_message == "NotReady: this version is being unloaded"
    assert failed.infer_response.id == "3"
    aviary.parrot.pauses_after = None
    await stream.write(asking("a", "4"))
    assert text_of(await told(stream)) == "a"
    await stream.done_writing()


async def test_several_texts_in_one_request_are_refused(client: Client) -> None:
    """A stream's request has one text."""
    request = Request(model_name="m")
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[2])
    tensor.contents.bytes_contents.extend([b"a", b"b"])
    stream = client.stream()
    await stream.write(request.SerializeToString())
    assert (await told(stream)).error_message.startswith(
        "InvalidInput: text_input must have one element on a stream, got 2"
    )
    stream.cancel()


async def test_a_cancelled_call_ends_the_work(aviary: Aviary, client: Client) -> None:
    """All its answers are cancelled, and the versions are released."""
    aviary.parrot.pauses_after = 1
    stream = client.stream()
    await stream.write(asking("a b", "1"))
    await stream.write(asking("a b"))
    for _ in range(2):
        await told(stream)
    stream.cancel()
    await until(lambda: all(one.cancelled for one in aviary.parrot.said))
    await until(lambda: aviary.parrot.leases.count == 0)


async def test_a_caller_who_does_not_read_gets_all_later(aviary: Aviary, client: Client) -> None:
    """Responses wait, in the memory budget, until flow control allows them."""
    words = "abcdefgh" * 4096
    stream = client.stream()
    for number in range(8):
        await stream.write(asking(f"{words} {words}", str(number)))
    await until(lambda: len(aviary.parrot.said) == 8)
    await stream.done_writing()
    found = await rest_of(stream)
    assert len(found) == 24
    assert sum(len(text_of(one)) for one in found) == 8 * (2 * len(words) + 1)
    await until(lambda: aviary.plane.memory.used == 0)


async def test_a_unary_call_answers_the_whole_text(client: Client) -> None:
    """`ModelInfer` waits for the end."""
    answer = await client.call("ModelInfer", Request.FromString(asking("one two")))
    assert answer.raw_output_contents[0][4:] == b"one two"


async def test_tritons_client_reads_a_stream(aviary: Aviary) -> None:
    """`stream_infer` of tritonclient yields each response, and errors as errors."""
    text = InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"one two"], object))

    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "m", "inputs": [text], "request_id": "1"}
        await until(lambda: len(aviary.parrot.said) == 1 and not aviary.parrot.leases.count)
        yield {"model_name": "m", "inputs": [text], "parameters": {"top_k": "few"}}

    async with InferenceServerClient(aviary.grpc) as triton:
        found, errors = [], []
        async for result, error in triton.stream_infer(requests()):
            if error is None:
                found.append(result)
            else:
                errors.append(error)
    assert b"".join(one.as_numpy("text_output")[0] for one in found) == b"one two"
    last = [one.get_response().parameters["triton_final_response"].bool_param for one in found]
    assert last == [False, False, True]
    (error,) = errors
    assert isinstance(error, InferenceServerException)
    assert "top_k must be a whole number >= -1" in error.message()


async def test_tritons_clients_may_send_parameters_as_tensors(
    aviary: Aviary, client: Client
) -> None:
    """Those of Triton's backends do; other inputs that the model does not have are refused."""
    tensors = {
        "stream": np.array([False]),
        "sampling_parameters": np.array([b'{"max_tokens": 2, "temperature": 0.5}'], object),
        "top_k": np.array([[3]], np.uint32),
        "stop_words": np.array([b"x", b"y"], object),
    }
    inputs = []
    for name, array in tensors.items():
        inputs.append(InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    text = InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"one two three"], object))
    other = InferInput("depth", [1], "INT32")
    other.set_data_from_numpy(np.array([1], np.int32))

    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "m", "inputs": [text, *inputs]}
        yield {"model_name": "m", "inputs": [text, other]}

    async with InferenceServerClient(aviary.grpc) as triton:
        (whole, error), (_, refused) = [one async for one in triton.stream_infer(requests())]
    assert error is None
    assert whole.as_numpy("text_output").tolist() == [b"one two"]
    request = aviary.parrot.said[0].request
    assert (request.sampling.top_k, request.sampling.temperature) == (3, 0.5)
    assert request.stop == ("x", "y")
    assert "'depth'" in refused.message()


async def test_the_end_of_the_calls_time_ends_the_work(aviary: Aviary, client: Client) -> None:
    """A call whose deadline passes is DEADLINE_EXCEEDED, and frees its places."""
    aviary.parrot.pauses_after = 1
    stream = client.stream(timeout=0.5)
    await stream.write(asking("a b", "1"))
    await told(stream)
    with pytest.raises(aio.AioRpcError) as caught:
        await told(stream)
    assert caught.value.code().name == "DEADLINE_EXCEEDED"
    await until(lambda: aviary.parrot.leases.count == 0)
