"""A request means the same over REST and over gRPC, and so does what comes back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from grpc import aio

from cohort.errors import InvalidInput
from cohort.http.v2.message import parse_infer
from cohort.open_inference.inference import decode_input
from cohort.open_inference.request import InferRequest
from cohort.rpc import inference_pb2 as messages
from cohort.rpc.contents import FIELDS, read_request
from cohort.rpc.wire import InferMessage
from cohort.tensors import BY_NAME, TensorSpec
from tests.open_inference.conftest import IDENTITIES, TOKEN
from tests.open_inference.wires import (
    Answered,
    Asked,
    Refused,
    Sent,
    by_grpc,
    by_rest,
    refused,
    refused_call,
)
from tests.rpc.client import Client

X = Sent("x", "FP32", [1, 3], [3, 1, 2])
A, B = Sent("a", "FP32", [1, 2], [5, 7]), Sent("b", "FP32", [1, 2], [1, 2])
SLOW = Sent("x", "FP32", [1, 4], [1, 2, 3, 4])


def of_x(parameters: Mapping[str, Any], **more: Any) -> Asked:
    """Return a request of `same` with these parameters."""
    return Asked("same", [X], parameters=parameters, **more)


def y_with(parameters: Mapping[str, Any], model: str = "same") -> Asked:
    """Return a request of one output with these parameters."""
    return Asked(model, [X], [("y", parameters)])


def changed(**changes: Any) -> Asked:
    """Return a request whose input is not as it should be."""
    fields: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 3], "values": [3, 1, 2]}
    return Asked("same", [Sent(**{**fields, **changes})])


def of_datatype(datatype: str, *values: Any) -> Asked:
    """One row of three values to the identity of a datatype."""
    return Asked(f"same_{datatype.lower()}", [Sent("x", datatype, [1, 3], values)])


REQUESTS: dict[str, Asked] = {
    # Requests that are answered
    "plain": Asked("same", [X]),
    "an id": Asked("same", [X], id="a1"),
    "a version": Asked("same", [X], version="1"),
    "a version of two": Asked("digits", [Sent("pixels", "FP32", [1, 64], [0] * 64)], version="1"),
    "two inputs": Asked("pair", [A, B]),
    "two inputs the other way round": Asked("pair", [B, A]),
    "outputs in their own order": Asked("pair", [A, B], [("difference", {}), ("sum", {})]),
    "one output of two": Asked("pair", [A, B], [("sum", {})]),
    "no inputs": Asked("no_inputs", []),
    "a scalar": Asked("scalar", [Sent("x", "FP32", [], [3])]),
    "any rank": Asked("rank", [Sent("x", "FP32", [1, 2, 1], [3, 4])]),
    "no rows": changed(shape=[0, 3], values=[]),
    "many rows": changed(shape=[50, 3], values=list(range(150))),
    "BOOL": of_datatype("BOOL", True, False, True),
    "INT8": of_datatype("INT8", -128, 127, 0),
    "INT64": of_datatype("INT64", -(2**63), 2**63 - 1, 0),
    "UINT64": of_datatype("UINT64", 0, 2**64 - 1, 2**63),
    "FP16": of_datatype("FP16", 0.5, -2, 65504),
    "FP8": of_datatype("FP8E4M3FN", 0.5, -2, 448),
    "BYTES": of_datatype("BYTES", "", "na\u00efve \U0001f408", "x" * 300),
    # Parameters
    "a timeout that is long enough": of_x({"timeout": 30_000_000}),
    "a timeout that is too short": Asked("slow", [SLOW], parameters={"timeout": 1000}),
    "a timeout as a string": Asked("slow", [SLOW], parameters={"timeout": "1000"}),
    "a timeout of nothing": of_x({"timeout": 0}),
    "a timeout of nothing as a string": of_x({"timeout": "0"}),
    "a timeout of centuries": of_x({"timeout": 10**16}),
    "the longest timeout": of_x({"timeout": 2**64 - 1}),
    "the longest timeout as a string": of_x({"timeout": str(2**64 - 1)}),
    "a timeout without a value": of_x({"timeout": None}),
    "a timeout below 0": of_x({"timeout": -1}),
    "a timeout with a fraction": of_x({"timeout": 1.5}),
    "a timeout that is a whole float": of_x({"timeout": 1000.0}),
    "a timeout of true": of_x({"timeout": True}),
    "a timeout in words": of_x({"timeout": "soon"}),
    "a timeout as an empty string": of_x({"timeout": ""}),
    "a timeout in other digits": of_x({"timeout": "\u0663"}),
    "a timeout with a sign": of_x({"timeout": "+1"}),
    "a timeout as a string beyond any integer": of_x({"timeout": "9" * 21}),
    "a timeout as a very long string": of_x({"timeout": "9" * 5000}),
    "priority and a sequence": of_x(
        {"priority": 3, "sequence_id": 7, "sequence_start": True, "sequence_end": False}
    ),
    "parameters nobody knows": of_x({"mine": "a", "yours": 1.5, "ours": True, "theirs": None}),
    "binary_data_output that is no boolean": of_x({"binary_data_output": "yes"}),
    "shared memory for a request": of_x({"shared_memory_region": "r"}),
    "shared memory for an input": changed(parameters={"shared_memory_region": "r"}),
    "shared memory for an output": y_with({"shared_memory_region": "r"}),
    "a very long name in shared memory": y_with({"shared_memory_" + "r" * 5000: 1}),
    "an input's parameter nobody knows": changed(parameters={"mine": 1}),
    # Classes
    "the best class": y_with({"classification": 1}),
    "classes with labels": y_with({"classification": 2}, "labelled"),
    "classes as a string": y_with({"classification": "2"}),
    "more classes than there are": y_with({"classification": 9}),
    "no classes": y_with({"classification": 0}),
    "classes without a number": y_with({"classification": None}),
    "classes below 0": y_with({"classification": -1}),
    "classes of true": y_with({"classification": True}),
    "classes with a fraction": y_with({"classification": 1.5}),
    "classes of text": Asked(
        "same_bytes",
        [Sent("x", "BYTES", [1, 3], ["a", "b", "c"])],
        [("y", {"classification": 1})],
    ),
    "binary_data that is no boolean": y_with({"binary_data": 1}),
    # Requests that do not fit
    "an unknown model": Asked("nobody", [X]),
    "a model with a slip": Asked("sam", [X]),
    "a very long model": Asked("x" * 3000, [X]),
    "a model that failed": Asked("broken", [X]),
    "an unknown version": Asked("same", [X], version="7"),
    "a version with zeros": Asked("same", [X], version="01"),
    "a version that is no number": Asked("same", [X], version="one"),
    "a version below 0": Asked("same", [X], version="-1"),
    "an unknown input": changed(name="features"),
    "an input without a name": changed(name=""),
    "a very long input": changed(name="x" * 5000),
    "a missing input": Asked("pair", [A]),
    "no inputs where one is needed": Asked("same", []),
    "one input too many": Asked("same", [X, A]),
    "an input twice": Asked("same", [X, X]),
    "an unknown output": Asked("same", [X], [("z", {})]),
    "an output without a name": Asked("same", [X], [("", {})]),
    "an output twice": Asked("same", [X], [("y", {}), ("y", {})]),
    "a very long output": Asked("same", [X], [("y" * 5000, {})]),
    "an output that cannot be sent": Asked("sequence", [X], [("rows", {})]),
    "a model without outputs that can be sent": Asked("sequence", [X]),
    "another datatype": changed(datatype="FP64"),
    "no datatype at all": changed(datatype=""),
    "an unknown datatype": changed(datatype="FP33"),
    "a datatype in small letters": changed(datatype="fp32"),
    "another length": changed(shape=[1, 4], values=[1, 2, 3, 4]),
    "another rank": changed(shape=[3]),
    "a negative length": changed(shape=[-1, 3]),
    "too many dimensions": changed(shape=[1] * 80),
    "a shape too large for any machine": changed(shape=[2**62, 2**62]),
    "too few elements": changed(values=[1, 2]),
    "too many elements": changed(values=[1, 2, 3, 4]),
    "an index out of bounds": Asked("gather", [Sent("index", "INT64", [1], [99])]),
}

FORMS = {"JSON and typed": False, "binary and raw": True}

RAW_ONLY = {"FP16", "FP8E4M3FN"}

CASES = [
    pytest.param(name, binary, id=f"{name}, {form}")
    for name, asked in REQUESTS.items()
    for form, binary in FORMS.items()
    if binary or not any(one.datatype in RAW_ONLY for one in asked.inputs)
]


@pytest.mark.parametrize(("name", "binary"), CASES)
async def test_the_same_comes_back(
    rest_client: httpx.AsyncClient, grpc_client: Client, name: str, binary: bool
) -> None:
    """Tensors are equal bit by bit, with the same version; errors have the same name and text."""
    asked = REQUESTS[name]
    rest, _ = await by_rest(rest_client, asked, binary=binary)
    grpc, _ = await by_grpc(grpc_client, asked, raw=binary)
    assert rest == grpc
    if isinstance(rest, Refused):
        assert len(rest.sentence) < 500


def understood(request: InferRequest) -> object:
    """All there is in a request, its elements as arrays in place of how they were sent."""
    arrays = {
        name: decode_input(TensorSpec(name, sent.datatype, None), sent)
        for name, sent in request.inputs.items()
    }
    return (
        {
            name: (sent.datatype, list(sent.shape), dict(sent.parameters), arrays[name].tolist())
            for name, sent in request.inputs.items()
        },
        request.outputs,
        request.id,
        request.timeout,
        request.binary,
        dict(request.parameters),
    )


@pytest.mark.parametrize(("name", "binary"), CASES)
def test_the_same_is_understood(name: str, binary: bool) -> None:
    """Every field of the request, or the refusal, is the same before any model is read."""

    def rest() -> InferRequest:
        body, headers = REQUESTS[name].body(binary=binary)
        request = parse_infer(body, int(next(iter(headers.values()))) if headers else None)
        for sent in request.inputs.values():
            assert isinstance(sent.parameters, dict | Mapping)
        return request

    def grpc() -> InferRequest:
        message = REQUESTS[name].message(raw=binary)
        return read_request(InferMessage(message, message.raw_input_contents))

    results = []
    for read in (rest, grpc):
        try:
            results.append(understood(read()))
        except InvalidInput as error:
            results.append(str(error))
    for result in results:
        if isinstance(result, tuple):
            for _, _, parameters, _ in result[0].values():
                parameters.pop("binary_data_size", None)  # REST's own framing
    assert results[0] == results[1]


def test_all_kinds_are_among_them() -> None:
    """Every datatype has an identity model, and there are more than sixty requests."""
    sent = {one.datatype for asked in REQUESTS.values() for one in asked.inputs}
    assert sent >= set(IDENTITIES.values())
    assert len(REQUESTS) > 60
    assert {one for one in sent & set(BY_NAME) if one not in FIELDS} == RAW_ONLY


async def test_floats_that_json_lacks_go_in_binary(
    rest_client: httpx.AsyncClient, grpc_client: Client
) -> None:
    """NaN and infinities are equal bit by bit."""
    asked = changed(values=[np.nan, np.inf, -np.inf])
    rest, _ = await by_rest(rest_client, asked, binary=True)
    for raw in (True, False):
        grpc, _ = await by_grpc(grpc_client, asked, raw=raw)
        assert isinstance(rest, Answered)
        assert rest == grpc


# --- Request ids


async def test_an_id_comes_back_over_both(
    rest_client: httpx.AsyncClient, grpc_client: Client
) -> None:
    """`x-request-id` is in responses and in errors; an error without one gets one."""
    good, bad = Asked("same", [X]), Asked("nobody", [X])
    for asked, sent, back in (
        (good, "a1", "a1"),
        (bad, "a1", "a1"),
        (good, "", None),
        (bad, "", r"[0-9a-f]{8}-[0-9a-f]+"),
        (bad, "two words", r"[0-9a-f]{8}-[0-9a-f]+"),
    ):
        own = {"x-request-id": sent} if sent else {}
        _, headers = await by_rest(rest_client, asked, binary=False, headers=own)
        _, metadata = await by_grpc(grpc_client, asked, raw=False, metadata=tuple(own.items()))
        for told in (headers, metadata):
            found = told.get("x-request-id")
            assert found is None if back is None else re.fullmatch(back, found or ""), told


# --- Documents

NAMES = {
    "model": ["same", "digits", "labelled", "rank", "scalar", "sequence", "pair", *IDENTITIES],
    "nothing": ["nobody", "broken", "sam"],
}
PLACES = [
    *((name, "") for name in NAMES["model"] + NAMES["nothing"]),
    *(("digits", version) for version in ("1", "2", "3", "01", "x")),
    ("nobody", "1"),
]


async def grpc_document(
    client: Client, method: str, request: Message, **options: Any
) -> Message | Refused:
    """Return the answer of a call, or its error."""
    try:
        answer: Message = await client.call(method, request, **options)
    except aio.AioRpcError as error:
        return refused_call(error)
    return answer


def as_message(document: Any, message: Message) -> Message:
    """Return a document as the message of the same fields; those it has no field for are empty."""
    fields = {one.name for one in message.DESCRIPTOR.fields}
    assert not any(value for name, value in document.items() if name not in fields)
    return ParseDict(document, message, ignore_unknown_fields=True)


@pytest.mark.parametrize(("model", "version"), PLACES)
@pytest.mark.parametrize("part", ["", "/config", "/stats"])
async def test_documents_are_the_same(
    rest_client: httpx.AsyncClient, grpc_client: Client, part: str, model: str, version: str
) -> None:
    """They are metadata, settings and statistics of models and versions, and refusals."""
    method = {"": "ModelMetadata", "/config": "ModelConfig", "/stats": "ModelStatistics"}[part]
    place = f"/v2/models/{model}" + (f"/versions/{version}" if version else "")
    rest = await rest_client.get(place + part)
    request = getattr(messages, f"{method}Request")(name=model, version=version)
    grpc = await grpc_document(grpc_client, method, request)
    if isinstance(grpc, messages.ModelConfigResponse):
        grpc = grpc.config
    if isinstance(grpc, Refused):
        assert refused(rest) == grpc
    else:
        assert as_message(rest.json(), type(grpc)()) == grpc


@pytest.mark.parametrize(("model", "version"), PLACES)
async def test_readiness_is_the_same(
    rest_client: httpx.AsyncClient, grpc_client: Client, model: str, version: str
) -> None:
    """A model that is not ready is an error over REST, and false over gRPC."""
    place = f"/v2/models/{model}" + (f"/versions/{version}" if version else "")
    rest = await rest_client.get(f"{place}/ready")
    grpc = await grpc_client.call(
        "ModelReady", messages.ModelReadyRequest(name=model, version=version)
    )
    assert rest.is_success is grpc.ready


async def test_the_server_says_the_same_of_itself(
    rest_client: httpx.AsyncClient, grpc_client: Client
) -> None:
    """Name, version, extensions, liveness and readiness are equal."""
    for path, method in (
        ("/v2", "ServerMetadata"),
        ("/v2/health/live", "ServerLive"),
        ("/v2/health/ready", "ServerReady"),
        ("/v2/models/stats", "ModelStatistics"),
    ):
        rest = (await rest_client.get(path)).json()
        grpc = await grpc_client.call(method, getattr(messages, f"{method}Request")())
        assert as_message(rest, getattr(messages, f"{method}Response")()) == grpc


@pytest.mark.parametrize("ready", [True, False])
async def test_the_index_is_the_same(
    rest_client: httpx.AsyncClient, grpc_client: Client, ready: bool
) -> None:
    """The index is the same with and without versions that are not ready."""
    rest = (await rest_client.post("/v2/repository/index", json={"ready": ready})).json()
    grpc = await grpc_client.call("RepositoryIndex", messages.RepositoryIndexRequest(ready=ready))
    assert as_message({"models": rest}, messages.RepositoryIndexResponse()) == grpc
    assert ("broken" in {one["name"] for one in rest}) is not ready


# --- What only an operator may

RIGHT = f"Bearer {TOKEN}"


@pytest.mark.parametrize(
    ("model", "authorization", "parameters"),
    [
        ("same", None, {}),
        ("same", "", {}),
        ("same", "Bearer", {}),
        ("same", "Basic open-sesame", {}),
        ("same", "Bearer open", {}),
        ("nobody", None, {}),
        ("nobody", RIGHT, {}),
        ("same", RIGHT, {}),
        ("same", f"bearer  {TOKEN}", {}),
        ("same", RIGHT, {"unload_dependents": False}),
        ("same", RIGHT, {"config": "{}"}),
        ("same", RIGHT, {"file:1/model.onnx": "AA=="}),
        ("same", RIGHT, {"file:" + "x" * 5000: "AA=="}),
        ("broken", RIGHT, {}),
    ],
)
async def test_loading_is_the_same(
    rest_client: httpx.AsyncClient,
    grpc_client: Client,
    model: str,
    authorization: str | None,
    parameters: dict[str, Any],
) -> None:
    """Both agree on permission, on parameters and on the outcome."""
    headers = {} if authorization is None else {"authorization": authorization}
    rest = await rest_client.post(
        f"/v2/repository/models/{model}/load", json={"parameters": parameters}, headers=headers
    )
    request = messages.RepositoryModelLoadRequest(model_name=model)
    for name, value in parameters.items():
        field = "bool_param" if isinstance(value, bool) else "string_param"
        setattr(request.parameters[name], field, value)
    grpc = await grpc_document(
        grpc_client, "RepositoryModelLoad", request, metadata=tuple(headers.items())
    )
    if isinstance(grpc, Refused):
        assert refused(rest) == grpc
    else:
        assert rest.is_success
