"""`POST /v2/models/{model}/infer`: the flow of every face, in the protocol's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import orjson
from fastapi import APIRouter, Request, Response

from app.codec import classify, decode_tensor, encode_tensor, from_bytes, to_bytes
from app.data_plane import DataPlane, Lease, Outputs
from app.errors import CohortError, InvalidInput, quoted
from app.rest.compression import compress, decompress
from app.rest.predict import unless_gone
from app.rest.v2.documents import INFER
from app.rest.v2.message import InferRequest, InputTensor, RequestedOutput, parse
from app.tensors import BY_NAME, Array, Arrays, TensorSpec, check_names

HEADER_LENGTH = "inference-header-content-length"


class Answer(NamedTuple):
    """A body and, where binary data follows its JSON, the length of the JSON."""

    body: bytes
    header_length: int | None

    @property
    def headers(self) -> dict[str, str]:
        """What a client needs to read the body."""
        if self.header_length is None:
            return {"content-type": "application/json"}
        return {
            "content-type": "application/octet-stream",
            HEADER_LENGTH: str(self.header_length),
        }


@dataclass(slots=True)
class Inference:
    """One request from body to body, whoever carries the bytes."""

    request: InferRequest
    lease: Lease
    arrays: Arrays
    wanted: list[tuple[int, RequestedOutput]]

    def encode(self, outputs: Outputs) -> Answer:
        """Write the answer. Raises where an output cannot be written as it was asked for."""
        lease = self.lease
        document: dict[str, Any] = {"model_name": lease.model, "model_version": lease.version}
        if self.request.id is not None:
            document["id"] = self.request.id
        if lease.variant:
            document["parameters"] = {"variant": lease.variant}
        tail: list[bytes | memoryview] = []
        document["outputs"] = [
            self._output(lease.outputs[position], outputs[position], wanted, tail)
            for position, wanted in self.wanted
        ]
        head = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
        if not any(wanted.binary for _, wanted in self.wanted):
            return Answer(head, None)
        return Answer(b"".join([head, *tail]), len(head))

    def _output(
        self,
        spec: TensorSpec,
        array: Array,
        wanted: RequestedOutput,
        tail: list[bytes | memoryview],
    ) -> dict[str, Any]:
        datatype = spec.datatype
        if wanted.classes:
            array = classify(spec, array, wanted.classes, self.lease.labels)
            datatype = "BYTES"
        output: dict[str, Any] = {
            "name": spec.name,
            "datatype": datatype,
            "shape": list(array.shape),
        }
        if wanted.binary:
            data = to_bytes(array)
            tail.append(data)
            output["parameters"] = {"binary_data_size": len(data)}
        else:
            output["data"] = encode_tensor(spec.name, array.reshape(-1))
        return output


def begin(
    plane: DataPlane, model: str, version: str | None, header_length: str | None, body: bytes
) -> Inference:
    """Parse a body, choose who answers, decode its inputs. Nothing stays open where it raises.

    `header_length` is what Inference-Header-Content-Length says.
    """
    try:
        request = parse(body, header_length)
    except CohortError as error:
        plane.refused(model, error)
        raise
    lease = plane.pick(model, version)
    try:
        wanted = _wanted(request, lease)
        return Inference(request, lease, _decode(request, lease.inputs), wanted)
    except BaseException as error:
        lease.close(error)
        raise


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


async def answer(
    plane: DataPlane, request: Request, model: str, version: str | None, limit: int
) -> Response:
    """Answer one request; `limit` is the most bytes its body may have when unpacked."""
    headers: Mapping[str, str] = request.headers
    sent = await request.body()
    try:
        body = await decompress(headers.get("content-encoding"), sent, limit)
    except CohortError as error:
        plane.refused(model, error)
        raise
    inference = begin(plane, model, version, headers.get(HEADER_LENGTH), body)
    with inference.lease as lease:
        work = lease.infer(inference.arrays, timeout=inference.request.timeout)
        answered = inference.encode(await unless_gone(request, work))
    told = answered.headers
    body, encoding = await compress(headers.get("accept-encoding"), answered.body)
    if encoding is not None:
        told |= {"content-encoding": encoding, "vary": "accept-encoding"}
    return Response(body, headers=told)


def router(plane: DataPlane, *, limit: int) -> APIRouter:
    """The routes, answering from `plane`."""
    routes = APIRouter()

    @routes.post("/models/{model}/infer", summary="Ask a model", **INFER)
    async def infer(request: Request, model: str) -> Response:
        return await answer(plane, request, model, None, limit)

    @routes.post("/models/{model}/versions/{version}/infer", summary="Ask this version", **INFER)
    async def infer_version(request: Request, model: str, version: str) -> Response:
        """A pinned version bypasses any rollout."""
        return await answer(plane, request, model, version, limit)

    return routes
