"""One request in plain words, written for REST and for gRPC, and what came back in plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
from grpc import aio

from cohort.codec import from_bytes, to_bytes
from cohort.rpc import inference_pb2 as messages
from cohort.rpc.contents import FIELDS
from cohort.tensors import BY_NAME
from tests.rpc.client import Client

LENGTH = "inference-header-content-length"

Metadata = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Sent:
    """An input; `values` are flat."""

    name: str
    datatype: str
    shape: Sequence[int]
    values: Sequence[Any]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def raw(self) -> bytes:
        dtype = BY_NAME[self.datatype].dtype if self.datatype in BY_NAME else np.dtype("f4")
        array = np.empty(len(self.values), dtype)
        array[:] = self.values
        return bytes(to_bytes(array))


@dataclass(frozen=True)
class Asked:
    """A request; `outputs` are names with their parameters."""

    model: str
    inputs: Sequence[Sent]
    outputs: Sequence[tuple[str, Mapping[str, Any]]] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    version: str = ""

    @property
    def path(self) -> str:
        version = f"/versions/{quote(self.version)}" if self.version else ""
        return f"/v2/models/{quote(self.model)}{version}/infer"

    def body(self, *, binary: bool) -> tuple[bytes, dict[str, str]]:
        """Return the body over REST and its headers, with binary data or JSON's."""
        document: dict[str, Any] = {
            "inputs": [self._input(one, binary=binary) for one in self.inputs]
        }
        if self.id:
            document["id"] = self.id
        if self.outputs:
            document["outputs"] = [
                {"name": name, **({"parameters": parameters} if parameters else {})}
                for name, parameters in self.outputs
            ]
        if self.parameters:
            document["parameters"] = dict(self.parameters)
        head = json.dumps(document).encode()
        if not binary:
            return head, {}
        return b"".join([head, *(one.raw for one in self.inputs)]), {LENGTH: str(len(head))}

    def _input(self, sent: Sent, *, binary: bool) -> dict[str, Any]:
        parameters = dict(sent.parameters)
        written: dict[str, Any] = {
            "name": sent.name,
            "datatype": sent.datatype,
            "shape": list(sent.shape),
        }
        if binary:
            parameters["binary_data_size"] = len(sent.raw)
        else:
            written["data"] = list(sent.values)
        return {**written, "parameters": parameters} if parameters else written

    def message(self, *, raw: bool) -> messages.ModelInferRequest:
        """Return the message over gRPC, raw or with typed contents."""
        request = messages.ModelInferRequest(
            model_name=self.model, model_version=self.version, id=self.id
        )
        write_parameters(request.parameters, self.parameters)
        for sent in self.inputs:
            tensor = request.inputs.add(name=sent.name, datatype=sent.datatype, shape=sent.shape)
            write_parameters(tensor.parameters, sent.parameters)
            if raw:
                request.raw_input_contents.append(sent.raw)
            elif sent.datatype in FIELDS:
                values = sent.values
                if sent.datatype == "BYTES":
                    values = [value.encode() for value in values]
                getattr(tensor.contents, FIELDS[sent.datatype]).extend(values)
        for name, parameters in self.outputs:
            write_parameters(request.outputs.add(name=name).parameters, parameters)
        return request


def write_parameters(into: Any, parameters: Mapping[str, Any]) -> None:
    """Put each value into the field that fits it; None into none."""
    for name, value in parameters.items():
        into[name].Clear()
        if isinstance(value, bool):
            into[name].bool_param = value
        elif isinstance(value, int):
            setattr(into[name], "int64_param" if value < 2**63 else "uint64_param", value)
        elif isinstance(value, float):
            into[name].double_param = value
        elif value is not None:
            into[name].string_param = value


@dataclass(frozen=True)
class Output:
    """An output that came back; equal to another of the same bits."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: object


@dataclass(frozen=True)
class Answered:
    """A response."""

    model: str
    version: str
    id: str
    parameters: Mapping[str, Any]
    outputs: Sequence[Output]


@dataclass(frozen=True)
class Refused:
    """An error."""

    code: str
    sentence: str


def output(name: str, datatype: str, shape: Sequence[int], values: Any) -> Output:
    """Return an output of flat `values`, or of bytes as they travel."""
    if isinstance(values, bytes):
        array = from_bytes(values, datatype, shape)
    else:
        values = [one.decode() if isinstance(one, bytes) else one for one in values]
        array = np.array(values, BY_NAME[datatype].dtype)
    data = array.ravel().tolist() if datatype == "BYTES" else array.tobytes()
    return Output(name, datatype, tuple(shape), data)


async def by_rest(
    client: httpx.AsyncClient,
    asked: Asked,
    *,
    binary: bool,
    headers: Mapping[str, str] | None = None,
) -> tuple[Answered | Refused, Mapping[str, str]]:
    """Return the answer over REST, and its headers."""
    if binary:
        wanted = {"binary_data_output": True, **asked.parameters}
        asked = Asked(asked.model, asked.inputs, asked.outputs, wanted, asked.id, asked.version)
    body, own = asked.body(binary=binary)
    response = await client.post(asked.path, content=body, headers={**own, **(headers or {})})
    if not response.is_success:
        return refused(response), response.headers
    length = int(response.headers.get(LENGTH, len(response.content)))
    told, tail = json.loads(response.content[:length]), response.content[length:]
    outputs = []
    for one in told["outputs"]:
        values = one.get("data")
        if values is None:
            size = one["parameters"]["binary_data_size"]
            values, tail = tail[:size], tail[size:]
        outputs.append(output(one["name"], one["datatype"], one["shape"], values))
    answered = Answered(
        told["model_name"],
        told["model_version"],
        told.get("id", ""),
        told.get("parameters", {}),
        outputs,
    )
    return answered, response.headers


def refused(response: httpx.Response) -> Refused:
    """Return the error of a response over REST."""
    told = response.json()
    assert set(told) == {"error", "code"}
    return Refused(told["code"], told["error"])


async def by_grpc(
    client: Client, asked: Asked, *, raw: bool, metadata: Metadata = ()
) -> tuple[Answered | Refused, Mapping[str, str]]:
    """Return the answer over gRPC, and its trailing metadata."""
    call = client.call("ModelInfer", asked.message(raw=raw), metadata=metadata)
    try:
        told = await call
    except aio.AioRpcError as error:
        return refused_call(error), {key: str(value) for key, value in error.trailing_metadata()}
    outputs = []
    for position, one in enumerate(told.outputs):
        values: Any
        if told.raw_output_contents:
            values = told.raw_output_contents[position]
        else:
            values = list(getattr(one.contents, FIELDS[one.datatype]))
        outputs.append(output(one.name, one.datatype, one.shape, values))
    parameters = {name: one.string_param for name, one in told.parameters.items()}
    answered = Answered(told.model_name, told.model_version, told.id, parameters, outputs)
    return answered, {key: str(value) for key, value in await call.trailing_metadata()}


def refused_call(error: aio.AioRpcError) -> Refused:
    """Return the error of a call."""
    return Refused(str(dict(error.trailing_metadata())["error-code"]), error.details() or "")
