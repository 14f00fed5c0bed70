"""A plain client of the service: messages in, messages out, over a real connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import numpy as np
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc import aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from cohort.codec import from_bytes, to_bytes
from cohort.rpc import inference_pb2 as messages
from cohort.rpc.contents import FIELDS
from cohort.tensors import BY_NAME, Array, Arrays

SERVICE = messages.DESCRIPTOR.services_by_name["GRPCInferenceService"]
PATH = f"/{SERVICE.full_name}"

Request = messages.ModelInferRequest
Answer = messages.ModelInferResponse

Response = TypeVar("Response", bound=Message)
Told = aio.UnaryStreamCall[bytes, Response] | aio.StreamStreamCall[bytes, Response]


class Client:
    """Calls by name: `await client.call("ServerLive", messages.ServerLiveRequest())`."""

    def __init__(self, channel: aio.Channel) -> None:
        self.channel = channel

    def call(self, method: str, request: Message, **options: Any) -> aio.UnaryUnaryCall[bytes, Any]:
        """Start a call; its answer is a message."""
        answer = GetMessageClass(SERVICE.methods_by_name[method].output_type)
        return self.raw(method, request.SerializeToString(), answer.FromString, **options)

    def raw(
        self, method: str, data: bytes, read: Any = None, **options: Any
    ) -> aio.UnaryUnaryCall[bytes, Any]:
        """Start a call with these very bytes."""
        unary: aio.UnaryUnaryMultiCallable[bytes, Any] = self.channel.unary_unary(
            f"{PATH}/{method}", response_deserializer=read
        )
        return unary(data, **options)

    async def infer(self, model: str, arrays: Arrays, **fields: Any) -> Arrays:
        """Ask with raw contents, and read the raw answer."""
        return arrays_of(await self.call("ModelInfer", raw_request(model, arrays, **fields)))

    def stream(
        self, requests: AsyncIterator[bytes] | None = None, **options: Any
    ) -> aio.StreamStreamCall[bytes, messages.ModelStreamInferResponse]:
        """Open a stream of requests as bytes."""
        many: aio.StreamStreamMultiCallable[bytes, messages.ModelStreamInferResponse]
        many = self.channel.stream_stream(
            f"{PATH}/ModelStreamInfer",
            response_deserializer=messages.ModelStreamInferResponse.FromString,
        )
        return many(requests, **options)

    def check(self, service: str = "") -> aio.UnaryUnaryCall[bytes, HealthCheckResponse]:
        """Ask for the health of a service."""
        unary: aio.UnaryUnaryMultiCallable[bytes, HealthCheckResponse] = self.channel.unary_unary(
            "/grpc.health.v1.Health/Check", response_deserializer=HealthCheckResponse.FromString
        )
        return unary(HealthCheckRequest(service=service).SerializeToString())

    def watch(self, service: str = "") -> aio.UnaryStreamCall[bytes, HealthCheckResponse]:
        """Watch the health of a service, now and whenever it changes."""
        many: aio.UnaryStreamMultiCallable[bytes, HealthCheckResponse] = self.channel.unary_stream(
            "/grpc.health.v1.Health/Watch", response_deserializer=HealthCheckResponse.FromString
        )
        return many(HealthCheckRequest(service=service).SerializeToString())


async def told(call: Told[Response]) -> Response:
    """Return the next message of a call that continues."""
    message = await call.read()
    assert isinstance(message, Message), "the call ended"
    return cast("Response", message)


@asynccontextmanager
async def connected(address: str, **options: int) -> AsyncIterator[Client]:
    """Yield a client of the server at `address`; options are gRPC's, without `grpc.`."""
    limits = {"max_receive_message_length": -1, "max_send_message_length": -1}
    arguments = [(f"grpc.{name}", value) for name, value in {**limits, **options}.items()]
    async with aio.insecure_channel(address, options=arguments) as channel:
        yield Client(channel)


DATATYPES: Mapping[str, str] = {str(row.dtype): row.name for row in BY_NAME.values()}


def raw_request(model: str, arrays: Arrays, **fields: Any) -> Request:
    """Return a request with its tensors in raw_input_contents."""
    request = Request(model_name=model, **fields)
    for name, array in arrays.items():
        request.inputs.add(name=name, datatype=DATATYPES[str(array.dtype)], shape=array.shape)
        request.raw_input_contents.append(bytes(to_bytes(array)))
    return request


def typed_request(model: str, arrays: Arrays, **fields: Any) -> Request:
    """Return a request with its tensors in the fields of their datatypes."""
    request = Request(model_name=model, **fields)
    for name, array in arrays.items():
        datatype = DATATYPES[str(array.dtype)]
        tensor = request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        values = array.ravel().tolist()
        if datatype == "BYTES":
            values = [value.encode() for value in values]
        getattr(tensor.contents, FIELDS[datatype]).extend(values)
    return request


def arrays_of(answer: Answer) -> Arrays:
    """Return the tensors of an answer, raw or typed."""
    arrays: Arrays = {}
    for position, output in enumerate(answer.outputs):
        shape = list(output.shape)
        if answer.raw_output_contents:
            content = answer.raw_output_contents[position]
            arrays[output.name] = from_bytes(content, output.datatype, shape, name=output.name)
        else:
            arrays[output.name] = typed_array(output)
    return arrays


def typed_array(output: Answer.InferOutputTensor) -> Array:
    """Return the values of one typed output."""
    values: Iterable[Any] = getattr(output.contents, FIELDS[output.datatype])
    if output.datatype == "BYTES":
        values = [value.decode() for value in values]
    return np.array(list(values), BY_NAME[output.datatype].dtype).reshape(list(output.shape))


def named(outputs: Sequence[str]) -> list[Request.InferRequestedOutputTensor]:
    """Return a request for these outputs."""
    return [Request.InferRequestedOutputTensor(name=name) for name in outputs]
