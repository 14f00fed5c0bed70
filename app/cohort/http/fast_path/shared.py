"""State shared by all connections of a process: routes, heads, limits, counts, idle sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Protocol
from urllib.parse import parse_qsl
from weakref import WeakValueDictionary

from uvicorn.protocols.http.flow_control import FlowControl

from cohort.auth.authority import Authority
from cohort.connections.address_counts import Addresses
from cohort.connections.turns import Turns
from cohort.http.calls import NO_QUERY, SERVER_TIMING, Match, Route
from cohort.http.fast_path.head_cache import HeadCache
from cohort.http.fast_path.reading import RELEVANT_HEADERS
from cohort.http.guards.heads import HeadRules
from cohort.http.route_path import within_root
from cohort.observability.access_log import AccessLog
from cohort.observability.tracing import Tracer
from cohort.serving import DataPlane

MAX_ROUTES = 1024
"""Maximum number of cached routes. A full cache is cleared, because URLs can be made up."""

MAX_ROUTE_BYTES = 512
"""Maximum size of a cached route's URL, and of a URL with a query on the fast path.

A long query takes milliseconds to parse. FastAPI parses it after authentication.
"""

MAX_LENGTHS = 1024
"""Maximum number of cached response heads, one for each length of a body."""

SWEPT_AT_ONCE = 100
"""Connections that the idle sweep checks in one event-loop iteration.

A check takes 2 µs. All of 10,000 connections at once would block the loop for 20 ms every 5 s.
"""

MAX_READ_AHEAD_BYTES = 64 * 1024
"""Bytes of pipelined requests that are read while an earlier request is unanswered.

Some are read because only reading detects that the client disconnected.
"""

STATUS_LINE = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
NOSNIFF = b"x-content-type-options: nosniff\r\n"


GIVE_WAY_BYTES = 64 * 1024
"""Size of a segment after which others go first. libuv would read 32 of 250 KB in a row.
"""


class Flow(FlowControl):
    """uvicorn's flow control, which also limits how many bytes are read ahead.

    ahead: Bytes of pipelined requests read so far.
    """

    ahead = 0
    _rest = b""  # received bytes that wait to be parsed
    _giving_way = False  # True if reading resumes after all other connections

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`."""
        self._giving_way = False
        super().pause_reading()

    def resume_reading(self) -> None:
        """Resume reading, unless responses are unread or too many bytes were read ahead."""
        if not self.write_paused and not self._rest and self.ahead <= MAX_READ_AHEAD_BYTES:
            super().resume_reading()

    def give_way(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        """After a large segment of `size` bytes, pause reading until others had a turn."""
        if size >= GIVE_WAY_BYTES and not self.read_paused:
            self.pause_reading()
            self._giving_way = True
            loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._giving_way and not self._transport.is_closing():
            self.resume_reading()

    def wait(self, rest: bytes) -> None:
        """Stop reading until the connection has processed `rest`."""
        self._rest = rest
        self.pause_reading()

    def go_on(self) -> bytes:
        """Return the bytes that waited."""
        rest, self._rest = self._rest, b""
        return rest


class Watched(Protocol):
    """A connection as seen by the idle sweep."""

    transport: asyncio.Transport
    address: str | bytes

    @property
    def idle_since(self) -> float | None:
        """Return the time of the last activity, or None while a request is read or answered."""

    def close_if_idle(self, now: float, /) -> None:
        """Close the connection if it is idle at `now`, in seconds on the event loop's clock."""


class Lifecycle(Protocol):
    """The state of the process. `draining` is True once it has begun to stop."""

    draining: bool


class Hot:
    """State shared by all connections of a process.

    answered: The number of responses of the fast path.

    plane: Answers the requests.
    lifecycle: While it is draining, each response closes its connection.
    matches: Each returns the route of a path and its query, or None for a path that it does not
        handle.
    max_body: The largest body, in bytes.
    keep_alive: Seconds that a connection may be idle.
    max_connections: Connections above which the longest idle ones are closed.
    max_connections_per_address: Connections from one address above which more are refused. Default
        None: no limit.
    authority: Identifies callers by their keys. None: callers need no key.
    rules: Rules for the head of every request. Default: any host.
    access_log: Logs each response. Default None: no log.
    cors: True to leave requests with an Origin to FastAPI, for pages of other origins. Default:
        False.
    root: An optional prefix of paths. Default: none.
    tracer: Traces requests. Default None: nothing is traced.
    """

    def __init__(
        self,
        plane: DataPlane,
        lifecycle: Lifecycle,
        *,
        matches: Sequence[Match],
        max_body: int,
        keep_alive: float,
        max_connections: int,
        max_connections_per_address: int | None = None,
        authority: Authority | None = None,
        rules: HeadRules | None = None,
        access_log: AccessLog | None = None,
        cors: bool = False,
        root: str = "",
        tracer: Tracer | None = None,
    ) -> None:
        self.tracer = tracer
        self.plane = plane
        self.relevant_headers = RELEVANT_HEADERS | ({b"origin"} if cors else set())
        self.access_log = access_log
        self.authority = authority
        self.rules = rules or HeadRules()
        self.lifecycle = lifecycle
        self.max_body = max_body
        self.keep_alive = keep_alive
        self.max_connections = max_connections
        self.addresses = Addresses(max_connections_per_address)
        self.heads = HeadCache()
        self.turns = Turns()
        self._heads_by_names: WeakValueDictionary[frozenset[str], HeadCache] = WeakValueDictionary()
        self.answered = 0
        self.matches = matches
        self.root = root
        self._routes: dict[bytes, Route] = {}
        self._defaults: tuple[object, bytes] = (None, b"")
        self._success_heads: dict[tuple[int, bytes], bytes] = {}
        self._watching = False

    def heads_of(self, names: frozenset[str]) -> HeadCache:
        """Return the head cache for connections whose client certificate has these names.

        It exists while there are such connections. On others, the same bytes may be of another
        caller.
        """
        found = self._heads_by_names.get(names)
        if found is None:
            found = self._heads_by_names[names] = HeadCache()
        return found

    def forget_heads(self) -> None:
        """Have every head parsed again, because callers' permissions may have changed."""
        for cache in (self.heads, *self._heads_by_names.values()):
            cache.known.clear()

    def route(self, url: bytes) -> Route | None:
        """Return the route of a URL that the fast path answers, or None."""
        return self._routes.get(url) or self._find(url)

    def path_of(self, url: bytes) -> str:
        """Return the path of a URL, without the query and the prefix."""
        path = url.decode("latin-1").partition("?")[0]
        return within_root(path, self.root) if self.root else path

    def _find(self, url: bytes) -> Route | None:
        path, text = self.path_of(url), url.decode("latin-1").partition("?")[2]
        if text and len(url) > MAX_ROUTE_BYTES:
            return None
        text = text.partition("#")[0]
        query = dict(parse_qsl(text, keep_blank_values=True)) if text else NO_QUERY
        if SERVER_TIMING in query:
            return None
        route = next((found for match in self.matches if (found := match(path, query))), None)
        if route is not None and len(url) <= MAX_ROUTE_BYTES:
            if len(self._routes) >= MAX_ROUTES:
                self._routes.clear()
            self._routes[url] = route
        return route

    def head(
        self, status: int, headers: Mapping[str, str], defaults: list[tuple[bytes, bytes]]
    ) -> bytes:
        """Return the head of a response. `defaults` are uvicorn's headers, date and server."""
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()
        return b"%b%b%b\r\n" % (STATUS_LINE[status], self.default_headers(defaults), lines)

    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """Return uvicorn's headers and NOSNIFF as bytes, cached until they change every second."""
        if self._defaults[0] is not headers:
            lines = b"".join([name + b": " + value + b"\r\n" for name, value in headers]) + NOSNIFF
            self._defaults = (headers, lines)
            self._success_heads.clear()
        return self._defaults[1]

    def success_head(self, headers: list[tuple[bytes, bytes]], lines: bytes, length: int) -> bytes:
        """Return the head of a successful response with `lines` and `length` bytes of body."""
        if self._defaults[0] is not headers:
            self.default_headers(headers)
        head = self._success_heads.get((length, lines))
        if head is None:
            head = b"%b%b%bcontent-length: %d\r\n\r\n" % (
                STATUS_LINE[200], self._defaults[1], lines, length,
            )  # fmt: skip
            if len(self._success_heads) < MAX_LENGTHS:
                self._success_heads[length, lines] = head
        return head

    def make_room(self, connections: Collection[Watched]) -> bool:
        """Close the longest idle of `connections` if there are too many, including the newest one.

        Addresses with the most connections are first. Returns False if no connection is idle.
        Several are closed at once, so that a flood of new connections does not cause a search each
        time.
        """
        if len(connections) <= self.max_connections:
            return True
        open_now = [one for one in connections if not one.transport.is_closing()]
        if len(open_now) <= self.max_connections:
            return True
        count = self.addresses.count
        idle = [
            (-count(one.address), since, number, one)
            for number, one in enumerate(open_now)
            if (since := one.idle_since) is not None
        ]
        closing = sorted(idle)[: max(1, self.max_connections // 64)]
        for *_, connection in closing:
            connection.transport.close()
        return bool(closing)

    def watch(self, connections: Collection[Watched], loop: asyncio.AbstractEventLoop) -> None:
        """Close idle connections. One timer serves all, as long as there are any."""
        if not self._watching:
            self._watching = True
            loop.call_later(self._period, self._sweep, connections, loop)

    @property
    def _period(self) -> float:
        return min(max(self.keep_alive / 4, 0.05), 5.0)

    def _sweep(self, connections: Collection[Watched], loop: asyncio.AbstractEventLoop) -> None:
        self._watching = False
        if connections:
            self.watch(connections, loop)
            self._sweep_some(list(connections), connections, loop)

    def _sweep_some(
        self,
        left: list[Watched],
        connections: Collection[Watched],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Check some of the connections that are left, and the others in later iterations."""
        now = loop.time()
        for connection in left[-SWEPT_AT_ONCE:]:
            if connection in connections:  # otherwise it has ended since
                connection.close_if_idle(now)
        del left[-SWEPT_AT_ONCE:]
        if left:
            loop.call_soon(self._sweep_some, left, connections, loop)
