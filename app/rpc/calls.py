"""Calls as gRPC sees them: bytes in, bytes out, and every error told as it should be.

Messages are parsed here and not by gRPC, which answers one it cannot parse with INTERNAL.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc import aio

from app.errors import InvalidInput
from app.rpc.errors import details_of, known, log_refusal, metadata_of, status_of

Context = aio.ServicerContext[bytes, bytes]
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"  # subscripts are for checkers
Request = TypeVar("Request", bound=Message)


def parse(kind: type[Request], data: bytes) -> Request:
    """Read a message. Raises InvalidInput."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidInput(f"this is no {kind.DESCRIPTOR.full_name}") from None


def unary(
    method: str, kind: type[Request], answer: Callable[[Request, Context], Awaitable[Message]]
) -> tuple[str, Handler]:
    """A call of one message and one answer, under its name."""

    async def call(data: bytes, context: Context) -> bytes:
        try:
            response = await answer(parse(kind, data), context)
            return response.SerializeToString()
        except Exception as error:
            await refuse(context, error, method)
            raise  # never comes here

    return method, grpc.unary_unary_rpc_method_handler(call)


async def refuse(context: Context, error: Exception, method: str) -> None:
    """End the call with what `error` is in gRPC. Always raises."""
    if isinstance(error, aio.AbortError):
        raise error
    ours = known(error)
    request_id = id_of(context)
    log_refusal(ours, method, request_id)
    told = metadata_of(ours)
    if request_id:
        told = (*told, ("x-request-id", request_id))
    await context.abort(status_of(ours), details_of(ours), told)


def id_of(context: Context) -> str:
    """The `x-request-id` of a call's metadata; "" where there is none that can be passed on."""
    sent = next((value for key, value in context.invocation_metadata() or () if key == NAME), "")
    value = sent if isinstance(sent, str) else ""
    return value if len(value) <= 128 and value.isprintable() and value.isascii() else ""


NAME = "x-request-id"
