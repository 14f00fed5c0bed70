"""uvicorn's HTTP protocol with the fast way in it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.data_plane import DataPlane
from app.errors import CohortError, InvalidInput, TooLarge
from app.rest.calls import JSON, Call, Encoded, Route
from app.rest.compression import choose
from app.rest.hot.cycle import HotCycle
from app.rest.limits import too_large

MOST_HEADER_BYTES = 64 * 1024
MOST_ROUTES = 1024
"""Addresses that are remembered; a caller who makes up more pays for the look-up each time."""

HEADER_SECONDS = 30.0
"""How long the headers of a request may take to arrive."""

Match = Callable[[str], Route | None]


@dataclass
class Hot:
    """What all connections of a process share. `answered` counts what went the fast way.

    `keep_alive` is how long, in seconds, a connection may do nothing.
    """

    plane: DataPlane
    matches: Sequence[Match]
    max_body: int
    keep_alive: float
    draining: Callable[[], bool] = lambda: False
    answered: int = 0
    _watching: bool = False
    _routes: dict[bytes, Route | None] = field(default_factory=dict)
    _defaults: tuple[object, bytes] = (None, b"")

    def route(self, url: bytes) -> Route | None:
        """The route of an address that goes the fast way; None for all others."""
        try:
            return self._routes[url]
        except KeyError:
            return self._find(url)

    def _find(self, url: bytes) -> Route | None:
        path = url.decode("latin-1")
        route = next((found for match in self.matches if (found := match(path))), None)
        if len(self._routes) < MOST_ROUTES:
            self._routes[url] = route
        return route

    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """uvicorn's own headers, put together anew only when it has new ones (once a second)."""
        if self._defaults[0] is not headers:
            lines = [name + b": " + value + b"\r\n" for name, value in headers]
            self._defaults = (headers, b"".join(lines))
        return self._defaults[1]

    def watch(self, connection: HotProtocol) -> None:
        """Have an eye on idle connections: one timer for all, while there are any."""
        if not self._watching:
            self._watching = True
            connection.loop.call_later(self._period, self._sweep, connection)

    @property
    def _period(self) -> float:
        return min(max(self.keep_alive / 4, 0.05), 5.0)

    def _sweep(self, any_connection: HotProtocol) -> None:
        connections = any_connection.connections
        now = any_connection.loop.time()
        for connection in list(connections):
            if isinstance(connection, HotProtocol):
                connection.close_if_idle(now)
        self._watching = bool(connections)
        if connections:
            any_connection.loop.call_later(self._period, self._sweep, any_connection)


def protocol(hot: Hot) -> Callable[..., HotProtocol]:
    """What uvicorn takes for `http=`."""
    return partial(HotProtocol, hot)


class HotProtocol(HttpToolsProtocol):
    """One connection. Requests to the infer paths become a HotCycle, all others uvicorn's own."""

    cycle: Any  # the request read last: a HotCycle, or a RequestResponseCycle of uvicorn's
    pipeline: deque[tuple[Any, Any]]  # those whose turn has not come, the next one last
    _answering: HotCycle | None = None  # whose turn it is, where it is a HotCycle's

    def __init__(self, hot: Hot, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hot = hot
        self._since = self.loop.time()  # when the connection last did something
        self._in_headers = False
        self._headers_since = 0.0
        self._header_bytes = 0
        self._length = 0  # what Content-Length says
        self._usual = True  # whether the headers so far hold nothing that only FastAPI knows
        self._broken = False

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.hot.watch(self)

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in (self._answering, *(cycle for cycle, _ in self.pipeline), self.cycle):
            if isinstance(cycle, HotCycle) and not cycle.response_complete:
                cycle.leave()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._broken:
            return
        self._since = self.loop.time()
        super().data_received(data)
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > MOST_HEADER_BYTES:
                self._refuse(TooLarge(f"headers have at most {MOST_HEADER_BYTES} bytes"))

    def pause_writing(self) -> None:
        """The caller does not read its answers: read no more of its requests."""
        super().pause_writing()
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.pipeline:
            self.flow.resume_reading()

    def close_if_idle(self, now: float) -> None:
        """Close a connection that does nothing, or whose headers do not come to an end."""
        cycle = self.cycle
        waits = cycle is None or cycle.response_complete or cycle.more_body
        slow = self._in_headers and now - self._headers_since > HEADER_SECONDS
        if slow or (waits and now - self._since > self.hot.keep_alive):
            self.transport.close()

    # -- what the parser tells

    def on_message_begin(self) -> None:
        self._in_headers = True
        self._headers_since = self._since
        self._header_bytes = self._length = 0
        self._usual = True
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in LOOKED_AT:
            if name == b"content-length":
                self._length = int(value)
            elif name != b"accept-encoding" or choose(value.decode("latin-1")) is not None:
                self._usual = False
                self.expect_100_continue |= name == b"expect" and value.lower() == b"100-continue"
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_headers = False
        parser = self.parser
        route = self.hot.route(self.url) if self._usual else None
        if (
            route is None
            or parser.get_method() != b"POST"
            or parser.get_http_version() != "1.1"
            or parser.should_upgrade()
        ):
            self._leave_to_asgi()
            return
        keep_alive = parser.should_keep_alive()
        cycle = HotCycle(self, route, self.url, self.headers, keep_alive=keep_alive)
        self._queue(cycle)
        if self._length > self.hot.max_body:
            cycle.break_off(too_large(self.hot.max_body))

    def _leave_to_asgi(self) -> None:
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()  # makes the scope
        self.url, self.expect_100_continue = url, expect
        self.headers.extend(headers)
        existing = self.cycle
        super().on_headers_complete()
        if existing is None or existing.response_complete:
            self._answering = None

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if isinstance(cycle, HotCycle):
            cycle.take(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        cycle = self.cycle
        if isinstance(cycle, HotCycle):
            cycle.more_body = False
            cycle.go()
        else:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls this for what is no HTTP."""
        self._refuse(InvalidInput(f"this is no HTTP request: {msg}"))

    def _refuse(self, error: CohortError) -> None:
        """Answer what cannot be read on, after all that came before it, and close."""
        self._broken = True
        cycle = self.cycle
        if isinstance(cycle, HotCycle) and cycle.more_body and not cycle.response_complete:
            cycle.break_off(error)
        elif cycle is None or cycle.response_complete or isinstance(cycle, HotCycle):
            refusal = HotCycle(self, NOWHERE, self.url or b"", [], keep_alive=False)
            self._queue(refusal)
            refusal.break_off(error)
        else:
            self.transport.close()  # uvicorn's own cycle waits for a body that will not come

    # -- answering in order

    def _queue(self, cycle: HotCycle) -> None:
        existing = self.cycle
        self.cycle = cycle
        if existing is None or existing.response_complete:
            cycle.turn = True
            self._answering = cycle
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, None))

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """uvicorn calls this when it is a queued request's turn."""
        if not isinstance(cycle, HotCycle):
            self._answering = None
            super()._start_asgi_task(cycle, app)
            return
        self._answering = cycle
        cycle.turn = True
        if cycle.more_body:
            self.flow.resume_reading()
        cycle.go()

    def send(self, cycle: HotCycle, status: int, encoded: Encoded) -> None:
        """Write an answer and turn to the next request."""
        hot, transport = self.hot, self.transport
        hot.answered += 1
        self.server_state.total_requests += 1
        self._answering = None
        if transport.is_closing():
            return
        body, pipeline = encoded.body, self.pipeline
        closing = not cycle.keep_alive or (not pipeline and hot.draining())
        head = b"%b%b%bcontent-length: %d\r\n%b\r\n" % (
            STATUS_LINE[status],
            hot.default_headers(self.server_state.default_headers),
            JSON_LINE if encoded.headers is JSON else _lines(encoded.headers),
            len(body),
            b"connection: close\r\n" if closing else b"",
        )
        if len(body) < 65536:
            transport.write(head + body)
        else:
            transport.writelines((head, body))
        if closing:
            transport.close()
            return
        self._since = self.loop.time()
        if pipeline:
            self.loop.call_soon(self._next)
        elif not self.flow.write_paused:
            self.flow.resume_reading()

    def _next(self) -> None:
        if self.pipeline and not self.transport.is_closing():
            self._start_asgi_task(*self.pipeline.pop())


LOOKED_AT = frozenset(
    {b"content-length", b"content-encoding", b"accept-encoding", b"expect", b"upgrade"}
)
STATUS_LINE = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
JSON_LINE = b"content-type: application/json\r\n"


def _lines(headers: Mapping[str, str]) -> bytes:
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()


def _nothing(_: object, __: bytes) -> Call:
    raise InvalidInput("there is nothing to read")


NOWHERE = Route(None, _nothing)
"""For what never became a request."""
