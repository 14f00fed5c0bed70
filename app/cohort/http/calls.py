"""One inference call of any HTTP API, from request body to response body.

An API turns a path and a body into a `Call`; an `Exchange` does the rest. FastAPI's routes and the
fast path share this code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from cohort.codec import LARGE_BYTES, RowRequest
from cohort.codec.compression import decompress
from cohort.errors import Cancelled, CohortError
from cohort.http.compression import compress, packed_headers
from cohort.http.credentials import caller_of, visible_to
from cohort.http.guards.log_lines import LEASE
from cohort.http.guards.request_ids import PLACE, SPAN
from cohort.serving import AwaitedReply, Call, DataPlane, Exchange, Headers, Lease, RequestContext

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

JOINED_AT_ONCE = 768 << 10
"""Bytes of a body whose parts are joined on the event loop, in at most 0.25 ms."""

LONG_BODY_BYTES = 8192
"""Bytes up to which any body is decoded quickly."""

SERVER_TIMING = "server_timing"
"""Query parameter that asks for the header of that name. The fast path does not know it."""

HEADER_LENGTH = "inference-header-content-length"


class Encoded(NamedTuple):
    """A response body with the headers that describe it."""

    body: bytes
    headers: Mapping[str, str]


class FixedHeaders(dict[str, str]):
    """Headers that many responses share. They do not change.

    lines: The headers as they are sent over the wire.
    """

    __slots__ = ("lines",)

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__(headers)
        self.lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()


JSON = FixedHeaders({"content-type": "application/json"})


Read = Callable[[bytes], Call[Encoded]]
"""Parses a body. Raises InvalidInput."""


class RowForm(NamedTuple):
    """Functions that read small requests of rows, to answer many of them together.

    read: Parses a body. Returns the document, or None if it has to be parsed again, and the rows,
        or None for any other body. Raises InvalidInput if the body is not JSON.
    call: Makes a call of a document and its body. Raises InvalidInput.
    """

    read: Callable[[bytes], tuple[Any, RowRequest | None]]
    call: Callable[[Any, bytes], Call[Encoded]]


def is_large(headers: Headers, body: bytes) -> bool:
    """Return True if parsing `body` takes long. Only JSON counts, not binary data behind it."""
    if len(body) <= LARGE_BYTES:
        return False
    length = headers.get(HEADER_LENGTH)
    if length is None:
        return True
    return length.isdecimal() and len(length) < 19 and int(length) > LARGE_BYTES


class Route(NamedTuple):
    """A path, and the functions that read requests to it.

    model: The model in the path, or None.
    reader: Checks the headers and returns a reader for bodies sent with these headers.
    rows: Returns how small requests are read, for headers that `reader` has accepted. None means
        that they are never answered together; that is the default.
    version: The version in the path, or None.
    takes_long: Returns True if parsing a body with these headers takes long.
    short_bytes: Bytes up to which any body is decoded quickly.
    """

    model: str | None
    reader: Callable[[Headers], Read]
    rows: Callable[[Headers], RowForm | None] = lambda headers: None
    version: str | None = None
    takes_long: Callable[[Headers, bytes], bool] = is_large
    short_bytes: int = LONG_BODY_BYTES


NO_QUERY: Mapping[str, str] = MappingProxyType({})

Match = Callable[[str, Mapping[str, str]], Route | None]
"""Returns the route for a path without escapes and its query, or None if it is not this API's path.
"""


def start(
    exchange: Exchange[Encoded], route: Route, headers: Headers, read: Read, body: bytes
) -> None:
    """Answer a whole body. `read` parses it and may raise what the route raises."""
    short = len(body) <= route.short_bytes
    exchange.read(
        read,
        body,
        model=route.model,
        version=route.version,
        short=short,
        long=not short and route.takes_long(headers, body),
    )


async def run_call(plane: DataPlane, request: Request, route: Route, body: bytes) -> Encoded:
    """Answer one call, or cancel it if the client disconnects first."""
    headers, context = request.headers, context_of(request)
    reply = AwaitedReply[Encoded]()

    def read(body: bytes) -> Call[Encoded]:
        return route.reader(headers)(body)

    exchange = Exchange(plane, context, reply, request.state.memory)

    def disconnected(receiving: asyncio.Future[Any]) -> None:
        if not receiving.cancelled():
            receiving.exception()  # nothing more arrives, whatever the message
            reply.end(Cancelled("the client disconnected"))

    receiving = asyncio.ensure_future(request.receive())
    receiving.add_done_callback(disconnected)
    try:
        start(exchange, route, headers, read, body)
        return await reply.answer
    finally:
        receiving.cancel()
        request.scope[LEASE] = exchange.lease
        exchange.leave()
        reply.forget()


def context_of(request: Request) -> RequestContext:
    """Return the context of a request that FastAPI answers."""
    scope = request.scope
    request_id = scope[PLACE].decode()
    return RequestContext(
        request.client, request.headers, request_id, caller_of(scope), span=scope.get(SPAN)
    )


async def read_body(request: Request) -> bytes:
    """Read the whole body. Nothing may have read from it before."""
    parts = [part async for part in request.stream()]
    if sum(map(len, parts)) > JOINED_AT_ONCE:
        return await asyncio.to_thread(join_parts, parts)
    return b"".join(parts)


def join_parts(parts: Iterable[bytes | bytearray]) -> bytes:
    """Join the parts of a body. Other threads run during the join because all parts are bytes."""
    return b"".join(map(bytes, parts))


async def respond_to_call(plane: DataPlane, request: Request, route: Route) -> Response:
    """Answer one call. Decompress its body, and compress the response if requested."""
    plane = plane.limited_to(visible_to(request.scope))
    body = await read_plain_body(plane, request, route.model)
    encoded = await run_call(plane, request, route, body)
    more = server_timing(request.scope[LEASE]) if SERVER_TIMING in request.query_params else {}
    return await response_of(request, encoded, more)


async def read_plain_body(plane: DataPlane, request: Request, model: str | None) -> bytes:
    """Read the whole body, and decompress it. Raises InvalidInput or Overloaded.

    model: The model in the path, for the count of refused requests.
    """
    sent, state = await read_body(request), request.state
    coding = request.headers.get("content-encoding")
    try:
        return await decompress(coding, sent, state.max_body, state.memory.add)
    except CohortError as error:
        plane.refused(model, error)
        raise


async def response_of(
    request: Request, encoded: Encoded, more: Mapping[str, str] = NO_QUERY
) -> Response:
    """Return a successful response, compressed if requested, with `more` headers."""
    from starlette.responses import Response  # noqa: PLC0415 - the fast path starts without it

    headers = {**encoded.headers, **more}
    body, packed = await compress(request.headers.get("accept-encoding"), encoded.body)
    if packed is not None:
        headers |= packed_headers(packed)
    return Response(body, headers=headers)


def server_timing(lease: Lease) -> dict[str, str]:
    """Return the queue and run times in milliseconds. https://www.w3.org/TR/server-timing/"""
    if lease.times is None:
        return {}
    queue, run, _ = lease.times
    return {"server-timing": f"queue;dur={1000 * queue:.3f}, run;dur={1000 * run:.3f}"}
