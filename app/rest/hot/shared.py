"""What all connections of a process share: routes, heads, limits, counts and the idle sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from app.data_plane import DataPlane
from app.rest.calls import Route
from app.rest.hot.heads import HeadCache

MAX_ROUTES = 1024
"""Addresses that are remembered; callers make them up, so at some point they are forgotten."""
MAX_ROUTE_BYTES = 512

MAX_LENGTHS = 1024
"""Response heads that are remembered, one for each length of a body."""

READ_AHEAD = 64 * 1024
"""Bytes read of requests that wait for the ones before them on their connection to be answered.

Reading on is how a leaving caller is noticed.
"""

STATUS_LINE = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
JSON_LINE = b"content-type: application/json\r\n"

Match = Callable[[str], Route | None]


class Flow(FlowControl):
    """Reading goes on while the caller reads its responses and sends few bytes ahead of them."""

    ahead = 0  # bytes read while requests waited for those before them

    def resume_reading(self) -> None:
        if not self.write_paused and self.ahead <= READ_AHEAD:
            super().resume_reading()


class Watched(Protocol):
    """A connection, as the idle sweep sees it."""

    def close_if_idle(self, now: float, /) -> None: ...


class Lifecycle(Protocol):
    """Whether the process has begun to stop."""

    draining: bool


class Hot:
    """What all connections of a process share. `answered` counts the responses of the fast path.

    plane: Answers the requests.
    lifecycle: While it is draining, each response closes its connection.
    matches: Each gives the route of a path that it knows; the others go to the application.
    max_body: The largest body, in bytes.
    keep_alive: How long a connection may be idle, in seconds.
    """

    def __init__(
        self,
        plane: DataPlane,
        lifecycle: Lifecycle,
        *,
        matches: Sequence[Match],
        max_body: int,
        keep_alive: float,
    ) -> None:
        self.plane = plane
        self.lifecycle = lifecycle
        self.max_body = max_body
        self.keep_alive = keep_alive
        self.coalescer = plane.coalescer
        self.heads = HeadCache()
        self.answered = 0
        self._matches = matches
        self._routes: dict[bytes, Route] = {}
        self._defaults: tuple[object, bytes] = (None, b"")
        self._usual_heads: dict[int, bytes] = {}
        self._watching = False

    def route(self, url: bytes) -> Route | None:
        """The route of an address that the fast path answers; None for all others."""
        return self._routes.get(url) or self._find(url)

    def _find(self, url: bytes) -> Route | None:
        path = url.decode("latin-1")
        route = next((found for match in self._matches if (found := match(path))), None)
        if route is not None and len(url) <= MAX_ROUTE_BYTES:
            if len(self._routes) >= MAX_ROUTES:
                self._routes.clear()
            self._routes[url] = route
        return route

    def head(
        self, status: int, headers: Mapping[str, str], defaults: list[tuple[bytes, bytes]]
    ) -> bytes:
        """The head of a response; `defaults` are uvicorn's own headers."""
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()
        return b"%b%b%b\r\n" % (STATUS_LINE[status], self.default_headers(defaults), lines)

    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """uvicorn's own headers as bytes, made anew only when they change (once a second)."""
        if self._defaults[0] is not headers:
            lines = b"".join([name + b": " + value + b"\r\n" for name, value in headers])
            self._defaults = (headers, lines)
            self._usual_heads.clear()
        return self._defaults[1]

    def usual_head(self, headers: list[tuple[bytes, bytes]], length: int) -> bytes:
        """The head of a successful JSON response with a body of `length` bytes."""
        if self._defaults[0] is not headers:
            self.default_headers(headers)
        head = self._usual_heads.get(length)
        if head is None:
            head = b"%b%b%bcontent-length: %d\r\n\r\n" % (
                STATUS_LINE[200], self._defaults[1], JSON_LINE, length,
            )  # fmt: skip
            if len(self._usual_heads) < MAX_LENGTHS:
                self._usual_heads[length] = head
        return head

    def watch(self, connections: Iterable[Watched], loop: asyncio.AbstractEventLoop) -> None:
        """Close idle connections: one timer for all, while there are any."""
        if not self._watching:
            self._watching = True
            loop.call_later(self._period, self._sweep, connections, loop)

    @property
    def _period(self) -> float:
        return min(max(self.keep_alive / 4, 0.05), 5.0)

    def _sweep(self, connections: Iterable[Watched], loop: asyncio.AbstractEventLoop) -> None:
        self._watching = False
        now = loop.time()
        for connection in list(connections):
            self.watch(connections, loop)
            connection.close_if_idle(now)
