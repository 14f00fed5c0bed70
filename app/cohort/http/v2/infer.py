"""`POST /v2/models/{model}/infer` in the Open Inference Protocol's form."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cohort.codec import MAX_ROWS_BODY_BYTES, to_bytes
from cohort.codec.json_outputs import LongParts, encode_parts
from cohort.errors import InvalidInput
from cohort.http.calls import HEADER_LENGTH, JSON, NO_QUERY, Encoded, Read, Route, RowForm
from cohort.http.v2.message import infer_of_document, parse_header_length, parse_infer, raw_request
from cohort.http.v2.rows import read_binary_rows, read_infer_rows
from cohort.open_inference import (
    NO_REGIONS,
    Inference,
    InferRequest,
    OutputTensor,
    Regions,
    make_request,
)
from cohort.serving import Headers, Lease, Outputs
from cohort.tensors import BY_NAME, Arrays


class InferCall(Inference):
    """One inference call.

    request: The parsed body.
    model, version: The names in the path. The version is None if the path has no version.
    regions: The shared memory that callers have registered.
    """

    __slots__ = ("model", "timeout", "version")
    label: str | None = None

    def __init__(
        self,
        request: InferRequest,
        model: str,
        version: str | None,
        regions: Regions = NO_REGIONS,
    ) -> None:
        super().__init__(request, regions)
        self.model: str | None = model
        self.version = version
        self.timeout = request.timeout

    @property
    def parameters(self) -> Mapping[str, object]:
        """Return the request's parameters by name."""
        return self.request.parameters

    def encode(self, lease: Lease, outputs: Outputs) -> Encoded:
        """Write the response, with binary data behind its JSON if requested.

        Raises if an output cannot be written in the requested form.
        """
        response = self.respond(lease, outputs)
        document: dict[str, Any] = {
            "model_name": response.model,
            "model_version": response.version,
        }
        if response.id:
            document["id"] = response.id
        if response.variant:
            document["parameters"] = {"variant": response.variant}
        tail: list[bytes | memoryview] = []
        check = partial(lease.check_time, self.timeout)
        long = LongParts(check)
        document["outputs"] = [_output(tensor, tail, long, check) for tensor in response.outputs]
        head = long.dump(document)
        if not any(tensor.binary and tensor.shared is None for tensor in response.outputs):
            return Encoded(head, JSON)
        binary = {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(head))}
        return Encoded(b"".join([head, *tail]), binary)


class RawCall(InferCall):
    """A call whose body is only the data of the model's one input."""

    __slots__ = ("_body",)

    def __init__(self, body: bytes, model: str, version: str | None) -> None:
        super().__init__(make_request((), ()), model, version)  # until the inputs are known
        self._body = body

    def decode_work(self, lease: Lease) -> int:
        """Return 0 for numbers of whole bytes: the body becomes the array. Otherwise its length."""
        inputs = lease.inputs
        row = BY_NAME.get(inputs[0].datatype) if len(inputs) == 1 else None
        return 0 if row is None or row.bits >= 8 else len(self._body)

    def decode(self, lease: Lease) -> Arrays:
        """Make the array, with the shape that the version expects. Raises InvalidInput."""
        self.request = raw_request(lease.inputs, self._body)
        return super().decode(lease)


def _output(
    tensor: OutputTensor,
    tail: list[bytes | memoryview],
    long: LongParts,
    check: Callable[[], None],
) -> dict[str, Any]:
    array = tensor.array
    output: dict[str, Any] = {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": list(array.shape),
    }
    if tensor.shared is not None:
        output["parameters"] = tensor.shared
    elif tensor.binary:
        data = to_bytes(array, check)
        tail.append(data)
        output["parameters"] = {"binary_data_size": len(data)}
    else:
        output["data"] = long.put(encode_parts(tensor.name, array.reshape(-1)))
    return output


def infer_route(model: str, version: str | None = None, regions: Regions = NO_REGIONS) -> Route:
    """Return how bodies are read at the path of `model` and `version`.

    regions: The shared memory that callers have registered. Default: none.
    """

    def reader(headers: Headers) -> Read:
        header = headers.get(HEADER_LENGTH)

        def read(body: bytes) -> InferCall:
            length = parse_header_length(header, len(body))
            if length == 0:
                return RawCall(body, model, version)
            return InferCall(parse_infer(body, length), model, version, regions)

        return read

    def call(document: object, body: bytes) -> InferCall:
        request = infer_of_document(document, memoryview(body)[len(body) :])
        return InferCall(request, model, version, regions)

    def rows(headers: Headers) -> RowForm | None:
        header = headers.get(HEADER_LENGTH)
        if header is None:
            return RowForm(read_infer_rows, call)
        try:
            length = parse_header_length(header, MAX_ROWS_BODY_BYTES)
        except InvalidInput:
            return None  # reading the body raises the reason
        return RowForm(read_binary_rows(length), call) if length else None

    return Route(model, reader, rows, version)


def match_infer(
    path: str, query: Mapping[str, str] = NO_QUERY, *, regions: Regions = NO_REGIONS
) -> Route | None:
    """Return the route of an infer path without escapes, or None for any other.

    regions: The shared memory that callers have registered. Default: none.
    """
    del query  # the protocol has no query parameters
    found = INFER_PATH.fullmatch(path)
    return infer_route(found["model"], found["version"], regions) if found else None


INFER_PATH = re.compile(
    r"/v2/models/(?P<model>[\w.-]+)(?:/versions/(?P<version>\w+))?/infer", re.ASCII
)
