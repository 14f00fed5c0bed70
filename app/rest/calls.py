"""One inference call of any HTTP API, from request body to response body.

An API defines how a path and a body become a `Call`; every call then takes the same steps: parse,
pick a lease, decode with the version's specs, run, encode, and close the lease with the outcome.
FastAPI's routes take these steps in `run_call`, the hot protocol with callbacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from app.codec import LARGE_BYTES, RowRequest
from app.codec.codec_thread import codec_thread, decoding
from app.codec.compression import decompress
from app.data_plane import DataPlane, Lease, MemoryHold, Outputs, Sticky, count_bytes, sticky_key
from app.errors import Cancelled, CohortError, NotLoaded
from app.rest.compression import compress, packed_headers
from app.rest.credentials import priority_of, visible_to
from app.rest.log_lines import LEASE
from app.tensors import Arrays

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

T = TypeVar("T")

JOINED_AT_ONCE = 768 << 10
"""Bytes of a body whose parts are joined on the event loop: a quarter of a millisecond."""

SERVER_TIMING = "server_timing"
"""The parameter that asks for the header of that name; the fast path does not know it."""

HEADER_LENGTH = "inference-header-content-length"


class Headers(Protocol):
    """A request's headers by lower-case name."""

    def get(self, key: str, /) -> str | None:
        """The value of a header; None where it was not sent."""


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


class Call(Protocol):
    """A parsed inference request of one API.

    `decode` and `encode` use only the call and its lease, so they may run on any thread.

    model: The model's name; None where the request names none.
    version: The version that the request pins; None where it pins none.
    label: The variant that the request pins; None where it pins none.
    timeout: The caller's limit, in seconds; None where it gave none.
    """

    model: str | None
    version: str | None
    label: str | None
    timeout: float | None

    @property
    def parameters(self) -> Mapping[str, object]:
        """The request's parameters by name."""

    def decode_work(self, lease: Lease) -> int:
        """How long `decode` takes after a body that was not large, as bytes of JSON do."""

    def is_large(self, outputs: Outputs) -> bool:
        """Whether `encode` takes long."""

    def decode(self, lease: Lease) -> Arrays:
        """Turn the request's inputs into arrays. Raises InvalidInput."""

    def encode(self, lease: Lease, outputs: Outputs) -> Encoded:
        """Write the response. Raises InferenceFailed for an output that cannot be written."""


Read = Callable[[bytes], Call]
"""Parses a body. Raises InvalidInput."""


class RowForm(NamedTuple):
    """How small requests of rows are read, to be answered together.

    read: Parses a body: the document, None where it has to be parsed again, and the rows, None for
        any other body. Raises InvalidInput where the body is not JSON.
    call: Makes a call of a document and its body. Raises InvalidInput.
    """

    read: Callable[[bytes], tuple[Any, RowRequest | None]]
    call: Callable[[Any, bytes], Call]


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


def find_key(headers: Headers, call: Call, sticky: Sticky) -> str | None:
    """The key of a request, from the header or parameter that a rollout names; None for none."""
    return sticky_key(sticky, headers.get, call.parameters)


async def run_call(plane: DataPlane, request: Request, route: Route, body: bytes) -> Encoded:
    """Answer one call; cancel it when the caller disconnects first."""
    large = route.takes_long(request.headers, body)
    try:
        read = route.reader(request.headers)
        if large:
            plane.begin_reading(route.model, route.version)
            try:
                call = await _on_thread(codec_thread.first_stage, read, body)
            finally:
                plane.end_reading()
        else:
            call = read(body)
    except CohortError as error:
        plane.refused(route.model, error)
        raise

    def key_of(sticky: Sticky | None) -> str | None:
        return str(request.client) if sticky is None else find_key(request.headers, call, sticky)

    pick = partial(plane.pick, call.model, call.version, key_of=key_of, label=call.label)
    timeout = call.timeout
    try:
        lease = pick()
    except NotLoaded as error:
        waiting = plane.pick_loaded(error, pick, call.timeout)
        lease, timeout = await cancel_on_disconnect(request, waiting)
    request.scope[LEASE] = lease
    with lease:
        work = call.decode_work(lease)
        if large or work > LARGE_BYTES:
            lease.check_room()
            arrays = await _on_thread(decoding(work), call.decode, lease)
        else:
            arrays = call.decode(lease)
        hold: MemoryHold = request.state.memory
        hold.set(max(hold.size, count_bytes(arrays.values())))
        outputs = await cancel_on_disconnect(request, lease.infer(arrays, timeout=timeout))
        hold.set(count_bytes(outputs))
        if call.is_large(outputs):
            return await _on_thread(codec_thread.later_stage, call.encode, lease, outputs)
        return call.encode(lease, outputs)


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

    plane = plane.seen_by(visible_to(request.scope), priority_of(request.scope))
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


async def _on_thread(executor: Executor, work: Callable[..., T], *arguments: object) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, work, *arguments)


async def cancel_on_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Await `work`, and cancel it when the caller disconnects first. Raises Cancelled."""
    working = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({working, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Cancelled("the caller left")
        return await working
    finally:
        working.cancel()
        disconnected.cancel()
