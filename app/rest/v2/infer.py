"""`POST /v2/models/{model}/infer`: the flow of every face, in the protocol's form."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from app.codec import classify, decode_tensor, encode_tensor, from_bytes, to_bytes
from app.data_plane import DataPlane, Lease, Outputs
from app.errors import CohortError, InvalidInput, quoted
from app.rest.calls import HEADER_LENGTH, JSON, Encoded, Headers, Read, Route, ask
from app.rest.compression import compress, decompress
from app.rest.v2.documents import INFER
from app.rest.v2.message import InferRequest, InputTensor, RequestedOutput, parse
from app.tensors import BY_NAME, Array, Arrays, TensorSpec, check_names


class InferCall:
    """One inference call."""

    __slots__ = ("_request", "_wanted", "model", "timeout", "version")
    label: str | None = None

    def __init__(self, request: InferRequest, model: str, version: str | None) -> None:
        self._request = request
        self._wanted: list[tuple[int, RequestedOutput]] = []
        self.model: str | None = model
        self.version = version
        self.timeout = request.timeout

    @property
    def parameters(self) -> Mapping[str, object]:
        return self._request.parameters

    def decode(self, lease: Lease) -> Arrays:
        """Make arrays as the version wants them. Raises InvalidInput."""
        self._wanted = _wanted(self._request, lease)
        return _decode(self._request, lease.inputs)

    def encode(self, lease: Lease, outputs: Outputs) -> Encoded:
        """Write the answer, with binary data behind its JSON where that was asked for.

        Raises where an output cannot be written as it was asked for.
        """
        document: dict[str, Any] = {"model_name": lease.model, "model_version": lease.version}
        if self._request.id is not None:
            document["id"] = self._request.id
        if lease.variant:
            document["parameters"] = {"variant": lease.variant}
        tail: list[bytes | memoryview] = []
        document["outputs"] = [
            _output(lease, position, outputs[position], wanted, tail)
            for position, wanted in self._wanted
        ]
        head = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
        if not any(wanted.binary for _, wanted in self._wanted):
            return Encoded(head, JSON)
        binary = {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(head))}
        return Encoded(b"".join([head, *tail]), binary)


def _output(
    lease: Lease,
    position: int,
    array: Array,
    wanted: RequestedOutput,
    tail: list[bytes | memoryview],
) -> dict[str, Any]:
    spec = lease.outputs[position]
    datatype = spec.datatype
    if wanted.classes:
        array = classify(spec, array, wanted.classes, lease.labels)
        datatype = "BYTES"
    output: dict[str, Any] = {"name": spec.name, "datatype": datatype, "shape": list(array.shape)}
    if wanted.binary:
        data = to_bytes(array)
        tail.append(data)
        output["parameters"] = {"binary_data_size": len(data)}
    else:
        output["data"] = encode_tensor(spec.name, array.reshape(-1))
    return output


def infer_route(model: str, version: str | None = None) -> Route:
    """How bodies are read at the path of `model` and `version`."""

    def reader(headers: Headers) -> Read:
        length = headers.get(HEADER_LENGTH)
        return lambda body: InferCall(parse(body, length), model, version)

    return Route(model, reader)


def match_infer(path: str) -> Route | None:
    """The route of a path to infer, written plainly; None for any other."""
    found = INFER_PATH.fullmatch(path)
    return infer_route(found["model"], found["version"]) if found else None


INFER_PATH = re.compile(
    r"/v2/models/(?P<model>[\w.-]+)(?:/versions/(?P<version>\w+))?/infer", re.ASCII
)


def _wanted(request: InferRequest, lease: Lease) -> list[tuple[int, RequestedOutput]]:
    outputs = request.outputs
    if outputs is not None:
        return list(zip(lease.select([one.name for one in outputs]), outputs, strict=True))
    return [
        (position, RequestedOutput(lease.outputs[position].name, request.binary))
        for position in lease.select(None)
    ]


def _decode(request: InferRequest, specs: Sequence[TensorSpec]) -> Arrays:
    if request.raw is not None:
        return _raw_input(specs, request.raw)
    sent = {one.name: one for one in request.inputs}
    check_names(specs, sent)
    return {spec.name: _array(spec, sent[spec.name]) for spec in specs}


def _array(spec: TensorSpec, sent: InputTensor) -> Array:
    spec.dtype  # noqa: B018 - raises for what cannot be sent
    if sent.datatype != spec.datatype:
        raise InvalidInput(
            f"input {quoted(spec.name)} is {spec.datatype}, "
            f"the request says datatype {quoted(sent.datatype)}"
        )
    if sent.raw is not None:
        return from_bytes(sent.raw, sent.datatype, sent.shape, name=sent.name)
    return decode_tensor(sent.name, sent.datatype, sent.shape, sent.data)


def _raw_input(specs: Sequence[TensorSpec], body: bytes) -> Arrays:
    """The whole body is the only input's data; its shape follows from its size.

    Where more than one dimension is open, the first is taken for one row. A BYTES input takes the
    body as its one element.
    """
    if len(specs) != 1:
        raise InvalidInput(
            "a body without JSON (Inference-Header-Content-Length: 0) is for a model with one "
            f"input; this one takes {', '.join(quoted(spec.name) for spec in specs) or 'none'}"
        )
    (spec,) = specs
    spec.dtype  # noqa: B018 - raises for what cannot be sent
    shape = [size if isinstance(size, int) else -1 for size in spec.shape or ()]
    if spec.datatype == "BYTES" and spec.shape is not None:
        shape = [1 if size < 0 else size for size in shape]
        body = len(body).to_bytes(4, "little") + body
    elif shape.count(-1) > 1 and shape[0] < 0:
        shape[0] = 1
    if spec.shape is None or shape.count(-1) > 1:
        raise InvalidInput(
            f"the shape of input {quoted(spec.name)}, {spec.shape_text}, does not follow from the "
            "body's size; send it in JSON"
        )
    if -1 in shape:
        row = prod(size for size in shape if size >= 0)
        bits = max(1, row * BY_NAME[spec.datatype].bits)
        shape[shape.index(-1)] = len(body) * 8 // bits
    return {spec.name: from_bytes(body, spec.datatype, shape, name=spec.name)}


async def respond(plane: DataPlane, request: Request, route: Route, limit: int) -> Response:
    """Answer one request; `limit` is the most bytes its body may have when unpacked."""
    sent = await request.body()
    try:
        body = await decompress(request.headers.get("content-encoding"), sent, limit)
    except CohortError as error:
        plane.refused(route.model, error)
        raise
    encoded = await ask(plane, request, route, body)
    told = dict(encoded.headers)
    body, encoding = await compress(request.headers.get("accept-encoding"), encoded.body)
    if encoding is not None:
        told |= {"content-encoding": encoding, "vary": "accept-encoding"}
    return Response(body, headers=told)


def infer_router(plane: DataPlane, *, limit: int) -> APIRouter:
    """The routes, answering from `plane`."""
    routes = APIRouter()

    @routes.post("/models/{model}/infer", summary="Ask a model", **INFER)
    async def infer(request: Request, model: str) -> Response:
        return await respond(plane, request, infer_route(model), limit)

    @routes.post("/models/{model}/versions/{version}/infer", summary="Ask this version", **INFER)
    async def infer_version(request: Request, model: str, version: str) -> Response:
        """A pinned version bypasses any rollout."""
        return await respond(plane, request, infer_route(model, version), limit)

    return routes
