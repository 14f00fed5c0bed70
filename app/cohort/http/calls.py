"""One inference call of any HTTP API, from request body to response body.

An API defines how a path and a body become a `Call`; the rest is an `Exchange`, of FastAPI's routes
as of the hot protocol. `start` gives it a whole body.
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
from cohort.http.guards.request_ids import PLACE
from cohort.serving import AwaitedReply, Call, DataPlane, Exchange, Headers, Lease, RequestContext

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

JOINED_AT_ONCE = 768 << 10
"""Bytes of a body whose parts are joined on the event loop: a quarter of a millisecond."""

LONG_BODY_BYTES = 8192
"""Up to here no body takes long to decode, whatever is in it."""

SERVER_TIMING = "server_timing"
"""The parameter that asks for the header of that name; the fast path does not know it."""

HEADER_LENGTH = "inference-header-content-length"


class Encoded(NamedTuple):
    """A response: its body, and the headers that say how to read it."""

    body: bytes
    headers: Mapping[str, str]


class FixedHeaders(dict[str, str]):
    """Headers that many responses have, which do not change.

    lines: They as they go over the wire.
    """

    __slots__ = ("lines",)

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__(headers)
        self.lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()


JSON = FixedHeaders({"content-type": "application/json"})


Read = Callable[[bytes], Call[Encoded]]
"""Parses a body. Raises InvalidInput."""


class RowForm(NamedTuple):
    """How small requests of rows are read, to be answered together.

    read: Parses a body: the document, None where it has to be parsed again, and the rows, None for
        any other body. Raises InvalidInput where the body is not JSON.
    call: Makes a call of a document and its body. Raises InvalidInput.
    """

    read: Callable[[bytes], tuple[Any, RowRequest | None]]
    call: Callable[[Any, bytes], Call[Encoded]]


def is_large(headers: Headers, body: bytes) -> bool:
    """Whether parsing `body` takes long: its JSON does, tensors in binary behind it do not."""
    if len(body) <= LARGE_BYTES:
        return False
    length = headers.get(HEADER_LENGTH)
    if length is None:
        return True
    return length.isdecimal() and len(length) < 19 and int(length) > LARGE_BYTES


class Route(NamedTuple):
    """How requests to a path are read.

    model: The model that the path names; None where it names none.
    reader: Checks the headers, and returns what reads any body that comes with the same headers.
    rows: Gives how small requests with headers that `reader` has accepted are read; None for none.
        Default: those to this path are never answered together.
    version: The version that the path names; None where it names none.
    takes_long: Whether parsing a body takes long, by its headers.
    """

    model: str | None
    reader: Callable[[Headers], Read]
    rows: Callable[[Headers], RowForm | None] = lambda headers: None
    version: str | None = None
    takes_long: Callable[[Headers, bytes], bool] = is_large


NO_QUERY: Mapping[str, str] = MappingProxyType({})

Match = Callable[[str, Mapping[str, str]], Route | None]
"""Gives the route of a plainly written path, with a query; None for a path of others."""


def start(
    exchange: Exchange[Encoded], route: Route, headers: Headers, read: Read, body: bytes
) -> None:
    """Have a whole body answered; `read` parses it, and raises what the route does."""
    short = len(body) <= LONG_BODY_BYTES
    exchange.read(
        read,
        body,
        model=route.model,
        version=route.version,
        short=short,
        long=not short and route.takes_long(headers, body),
    )


async def run_call(plane: DataPlane, request: Request, route: Route, body: bytes) -> Encoded:
    """Answer one call; cancel it when the caller disconnects first."""
    headers, caller = request.headers, caller_of(request.scope)
    request_id = request.scope[PLACE].decode()
    context = RequestContext(request.client, headers, request_id, caller)
    reply = AwaitedReply[Encoded]()

    def read(body: bytes) -> Call[Encoded]:
        return route.reader(headers)(body)

    exchange = Exchange(plane, context, reply, request.state.memory)

    def disconnected(receiving: asyncio.Future[Any]) -> None:
        if not receiving.cancelled():
            receiving.exception()  # whatever it is, nothing more comes
            reply.end(Cancelled("the caller left"))

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


async def read_body(request: Request) -> bytes:
    """The whole body, which nobody read before."""
    parts = [part async for part in request.stream()]
    if sum(map(len, parts)) > JOINED_AT_ONCE:
        return await asyncio.to_thread(join_parts, parts)
    return b"".join(parts)


def join_parts(parts: Iterable[bytes | bytearray]) -> bytes:
    """Join the parts of a body. Other threads run meanwhile, as all of them are bytes."""
    return b"".join(map(bytes, parts))


async def respond_to_call(plane: DataPlane, request: Request, route: Route) -> Response:
    """Answer one call with a response; unpack its body, and pack the response where asked to."""
    from starlette.responses import Response  # noqa: PLC0415 - the fast path starts without it

    plane = plane.seen_by(visible_to(request.scope))
    sent, state = await read_body(request), request.state
    coding = request.headers.get("content-encoding")
    try:
        body = await decompress(coding, sent, state.max_body, state.memory.add)
    except CohortError as error:
        plane.refused(route.model, error)
        raise
    del sent
    encoded = await run_call(plane, request, route, body)
    headers = dict(encoded.headers)
    body, packed = await compress(request.headers.get("accept-encoding"), encoded.body)
    if packed is not None:
        headers |= packed_headers(packed)
    if SERVER_TIMING in request.query_params:
        headers |= server_timing(request.scope[LEASE])
    return Response(body, headers=headers)


def server_timing(lease: Lease) -> dict[str, str]:
    """What a request waited and ran, in milliseconds. https://www.w3.org/TR/server-timing/"""
    if lease.times is None:
        return {}
    queue, run = (1000 * seconds for seconds in lease.times)
    return {"server-timing": f"queue;dur={queue:.3f}, run;dur={run:.3f}"}
