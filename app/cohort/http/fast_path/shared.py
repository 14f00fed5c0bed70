"""State shared by all connections of a process: routes, heads, limits, counts, the idle sweep."""

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
from cohort.serving import DataPlane

MAX_ROUTES = 1024
"""Cached routes at most; a full cache is cleared, because callers can make up URLs."""

MAX_ROUTE_BYTES = 512
"""The size of a cached route's URL at most, and of one with a query that the fast path reads.

A long query takes milliseconds to read: FastAPI does it once it knows who asks.
"""

MAX_LENGTHS = 1024
"""Cached response heads at most, one for each length of a body."""

LOOKED_AT = 100
"""How many connections the sweep looks at in one event-loop iteration: a look takes 2 us, so all of
10,000 at once would hold up everybody for 20 ms, every five seconds.
"""

MAX_READ_AHEAD_BYTES = 64 * 1024
"""Bytes of pipelined requests that are read while an earlier request is not answered yet.

Some are read because only reading shows that the caller disconnected.
"""

STATUS_LINE = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
NOSNIFF = b"x-content-type-options: nosniff\r\n"


GIVE_WAY_BYTES = 64 * 1024
"""The segment from which a connection gives way: libuv would read up to 32 of 250 KB in a row."""


class Flow(FlowControl):
    """uvicorn's flow control, which also limits how many bytes are read ahead.

    ahead: Bytes of pipelined requests read so far.
    """

    ahead = 0
    _rest = b""  # what was read and waits its turn to be parsed
    _giving_way = False  # whether it reads on as soon as all others have been looked at

    def pause_reading(self) -> None:
        """Read no more, until told to."""
        self._giving_way = False
        super().pause_reading()

    def resume_reading(self) -> None:
        """Resume, unless the caller does not read its responses or sent too much ahead of them."""
        if not self.write_paused and not self._rest and self.ahead <= MAX_READ_AHEAD_BYTES:
            super().resume_reading()

    def give_way(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        """After a segment of `size`, which may be large: read on once others had their turn."""
        if size >= GIVE_WAY_BYTES and not self.read_paused:
            self.pause_reading()
            self._giving_way = True
            loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._giving_way and not self._transport.is_closing():
            self.resume_reading()

    def wait(self, rest: bytes) -> None:
        """Read no more until the connection goes on with the `rest` of what was read."""
        self._rest = rest
        self.pause_reading()

    def go_on(self) -> bytes:
        """What was to wait."""
        rest, self._rest = self._rest, b""
        return rest


class Watched(Protocol):
    """A connection, as the idle sweep sees it."""

    transport: asyncio.Transport
    address: str | bytes

    @property
    def idle_since(self) -> float | None:
        """When it last did something; None while a request is read or answered on it."""

    def close_if_idle(self, now: float, /) -> None:
        """Close it where it is idle at `now`, in seconds on the event loop's clock."""


class Lifecycle(Protocol):
    """Whether the process has begun to stop, in `draining`."""

    draining: bool


class Hot:
    """State shared by all connections of a process.

    answered: The number of responses of the fast path.

    plane: Answers the requests.
    lifecycle: While it is draining, each response closes its connection.
    matches: Each returns the route of a path and its query, or None for a path that it does not
        handle.
    max_body: The largest body, in bytes.
    keep_alive: How long a connection may be idle, in seconds.
    max_connections: How many connections there may be; beyond, the oldest idle ones are closed.
    max_connections_per_address: How many there may be from one address; further ones are refused.
        Default None: any number.
    authority: Tells callers by their keys; None: callers need none.
    rules: What the head of every request must be; default: for any host.
    access_log: Takes a line for each response; default None: there is none.
    cors: Whether pages of other origins may call: requests with an Origin are left to FastAPI;
        default: not.
    root: A prefix that paths may have or not; default: none.
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
    ) -> None:
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
        self._root = root
        self._routes: dict[bytes, Route] = {}
        self._defaults: tuple[object, bytes] = (None, b"")
        self._success_heads: dict[tuple[int, bytes], bytes] = {}
        self._watching = False

    def heads_of(self, names: frozenset[str]) -> HeadCache:
        """The heads of the connections whose client certificate has these names, while there are
        any: from others the same bytes may be another caller's.
        """
        found = self._heads_by_names.get(names)
        if found is None:
            found = self._heads_by_names[names] = HeadCache()
        return found

    def forget_heads(self) -> None:
        """Have every head parsed again: who may send it may have changed."""
        for cache in (self.heads, *self._heads_by_names.values()):
            cache.known.clear()

    def route(self, url: bytes) -> Route | None:
        """The route of a URL that the fast path answers; None for all others."""
        return self._routes.get(url) or self._find(url)

    def _find(self, url: bytes) -> Route | None:
        path, _, text = url.decode("latin-1").partition("?")
        if self._root:
            path = within_root(path, self._root)
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
        """The head of a response; `defaults` are uvicorn's own headers, date and server."""
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()
        return b"%b%b%b\r\n" % (STATUS_LINE[status], self.default_headers(defaults), lines)

    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """uvicorn's own headers and NOSNIFF as bytes, cached until they change (once a second)."""
        if self._defaults[0] is not headers:
            lines = b"".join([name + b": " + value + b"\r\n" for name, value in headers]) + NOSNIFF
            self._defaults = (headers, lines)
            self._success_heads.clear()
        return self._defaults[1]

    def success_head(self, headers: list[tuple[bytes, bytes]], lines: bytes, length: int) -> bytes:
        """The head of a successful response with such `lines`, and a body of `length` bytes."""
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
        """Close the oldest idle of `connections`, the newest included, if there are too many.

        Those of the addresses that have the most go first. False where none is idle. A few are
        closed at once, so that a flood of new ones is not compared with all others each time.
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
        """Close idle connections: one timer for all, while there are any."""
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
            self._look(list(connections), connections, loop)

    def _look(
        self,
        left: list[Watched],
        connections: Collection[Watched],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Look at some of those that are left, and at the others in the next iterations."""
        now = loop.time()
        for connection in left[-LOOKED_AT:]:
            if connection in connections:  # or it has ended meanwhile
                connection.close_if_idle(now)
        del left[-LOOKED_AT:]
        if left:
            loop.call_soon(self._look, left, connections, loop)
