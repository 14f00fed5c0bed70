"""The ingress: finds the model of a request, and repeats it if a replica dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

import grpc
from ray.exceptions import RayActorError, RaySystemError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from cohort.errors import CohortError, NotReady, Overloaded, TooLarge
from cohort.http.errors import body_of, headers_of, http_status
from cohort.ray_serve.grpc_methods import STREAM, UNARY, Raw, failed_message, model_in
from cohort.ray_serve.ordered import in_order
from cohort.ray_serve.wire import (
    ANSWERED_WHOLE,
    HttpRequest,
    RpcRequest,
    RpcResponse,
    model_of,
)
from cohort.rpc.errors import details_of, grpc_status

FIRST_WAIT, MAX_WAIT = 0.05, 2.0
"""Seconds before a request is repeated, doubled each time."""

NOT_PASSED = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"x-request-id"}
)
"""Response headers of the connection, and the request's id, which Ray's proxy adds as well."""

SEQUENCE = b"x-sequence-id"

Begun = tuple[Any, Any]
"""The first piece of an answer, and an asynchronous iterator of the others, or None."""

STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}


class Ingress:
    """Passes requests to the replicas.

    pool: A handle on the replicas of all models.
    dedicated: Handles on the replicas of single models.
    max_body: The largest body, in bytes.
    retries: The maximum repetitions of a request whose replica died.
    multiplexed: True if replicas of the pool hold some of the models only.
    """

    def __init__(
        self,
        pool: Any,
        dedicated: Mapping[str, Any],
        *,
        max_body: int,
        retries: int,
        multiplexed: bool,
    ) -> None:
        self._pool = pool
        self._dedicated = dedicated
        self._max_body = max_body
        self._retries = retries
        self._multiplexed = multiplexed

    async def __call__(self, request: Request) -> Response:
        """Answer an HTTP request."""
        try:
            passed = await self._read(request)
            model = model_of(passed) if self._multiplexed or self._dedicated else None
            again = all(name != SEQUENCE for name, _ in passed.headers)
            whole = ANSWERED_WHOLE.fullmatch(passed.path) is not None
            found, rest = await self._ask(
                lambda handle: (
                    _whole(handle.http, passed, model)
                    if whole
                    else _begin(handle.http_stream, passed, model)
                ),
                model,
                again=again,
            )
        except ClientDisconnect:
            return Response(status_code=499)
        except CohortError as error:
            headers = {"content-type": "application/json", **headers_of(error)}
            return Response(body_of(error), http_status(error), headers)
        response = (
            StreamingResponse(_pieces(found.body, rest), found.status)
            if found.more
            else Response(found.body, found.status)
        )
        response.raw_headers = [one for one in found.headers if one[0] not in NOT_PASSED]
        return response

    async def _read(self, request: Request) -> HttpRequest:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > self._max_body:
                raise TooLarge(f"the body is larger than the limit of {self._max_body} bytes")
        scope = request.scope
        client = scope.get("client")
        return HttpRequest(
            scope["method"],
            scope["path"],
            scope["query_string"],
            [(bytes(name), bytes(value)) for name, value in scope["headers"]],
            bytes(body),
            scope.get("scheme", "http"),
            None if client is None else (client[0], client[1]),
        )

    async def rpc(self, method: str, message: bytes, context: Any) -> Raw:
        """Answer a gRPC call."""
        metadata = [(name, value) for name, value in context.invocation_metadata()]
        request = RpcRequest(method, bytes(message), metadata)
        model = model_in(method, message) if self._multiplexed or self._dedicated else None
        try:
            found: RpcResponse = await self._ask(
                lambda handle: handle.rpc.remote(request, model), model, again=True
            )
        except CohortError as error:
            found = RpcResponse(b"", int(grpc_status(error)), details_of(error))
        return _raw(found, context)

    async def ModelStreamInfer(  # noqa: N802 - the method's name
        self, requests: AsyncIterator[bytes], grpc_context: Any
    ) -> AsyncGenerator[Raw]:
        """Answer the messages of a stream in their order; each may run on another replica."""
        metadata = [(name, value) for name, value in grpc_context.invocation_metadata()]

        def begin(message: bytes) -> Awaitable[Begun]:
            request = RpcRequest(STREAM, bytes(message), metadata)
            return self._begin_message(request)

        async with aclosing(in_order(requests, begin)) as begun:
            async for first, rest in begun:
                async with aclosing(_pieces(first, rest)) as pieces:
                    async for piece in pieces:
                        yield _raw(piece, grpc_context)

    async def _begin_message(self, request: RpcRequest) -> Begun:
        model = None
        if self._multiplexed or self._dedicated:
            model = model_in(STREAM, request.message)
        try:
            begun: Begun = await self._ask(
                lambda handle: _begin(handle.rpc_stream, request, model), model, again=True
            )
        except CohortError as error:
            return RpcResponse(failed_message(error, request.message)), None
        return begun

    async def _ask(
        self, send: Callable[[Any], Awaitable[Any]], model: str | None, *, again: bool
    ) -> Any:
        """Return the answer of a replica. Raises NotReady if replicas die, and Overloaded."""
        handle = self._dedicated.get(model or "", self._pool)
        if self._multiplexed and handle is self._pool and model:
            handle = handle.options(multiplexed_model_id=model)
        wait = FIRST_WAIT
        for left in range(self._retries if again else 0, -1, -1):
            try:
                return await send(handle)
            except BackPressureError as error:
                raise Overloaded("all replicas are busy", retry_after=1) from error
            except (RayActorError, RaySystemError, DeploymentUnavailableError) as error:
                if not left:
                    raise NotReady("the replica stopped", retry_after=1) from error
            await asyncio.sleep(wait)
            wait = min(2 * wait, MAX_WAIT)
        raise AssertionError("unreachable")


async def _begin(method: Any, request: HttpRequest | RpcRequest, model: str | None) -> Begun:
    """Call a method that answers in pieces; return the first, and an iterator of the others."""
    pieces = method.options(stream=True).remote(request, model)
    return await anext(pieces), pieces


async def _whole(method: Any, request: HttpRequest, model: str | None) -> Begun:
    return await method.remote(request, model), None


async def _pieces(first: Any, rest: Any | None) -> AsyncGenerator[Any]:
    try:
        yield first
        if rest is not None:
            async for piece in rest:
                yield piece
    finally:
        if rest is not None:
            rest.cancel()  # no effect at its end


def _raw(found: RpcResponse, context: Any) -> Raw:
    """Return a message. Raises RpcFailed, with the status in the call's context."""
    if found.code:
        context.set_code(STATUS_CODES[found.code])
        context.set_details(found.details)
        context.set_trailing_metadata(found.metadata)
        raise RpcFailed(found.details)
    return Raw(found.message)


class RpcFailed(Exception):
    """Ends a call whose status is set in its context."""


def _method(name: str) -> Callable[..., Awaitable[Raw]]:
    async def call(self: Ingress, request: bytes, grpc_context: Any) -> Raw:
        return await self.rpc(name, request, grpc_context)

    call.__name__ = name
    call.__doc__ = f"Answer a call of {name}."
    return call


for _name in UNARY:
    setattr(Ingress, _name, _method(_name))
