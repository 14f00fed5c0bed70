"""What all connections of a process share: heads, limits, counts and the watch over them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from app.codec import LONGEST_BODY
from app.data_plane import DataPlane
from app.request_ids import readable
from app.rest.calls import Call, Read, Route
from app.rest.hot.together import Together
from app.rest.request_ids import REQUEST_ID_HEADER

MOST_ROUTES = 1024
"""Addresses that are remembered; callers make them up, so at some point they are forgotten."""
LONGEST_REMEMBERED = 512

READ_AHEAD = 64 * 1024
"""Bytes read of requests whose turn has not come. Reading on is how a leaving caller is noticed."""

MOST_HEADS = 1024
LONGEST_HEAD = 2048
"""Heads that are remembered, and the bytes of each: a few MiB at most with what they say."""

ID_LINES = tuple(b"\r\n%b: " % name for name in (b"x-request-id", b"X-Request-ID", b"X-Request-Id"))
"""As clients and balancers write it."""

STATUS_LINE = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
JSON_LINE = b"content-type: application/json\r\n"

Match = Callable[[str], Route | None]


class Flow(FlowControl):
    """Reading goes on while the caller reads its answers and sends little ahead of its turn."""

    ahead = 0  # bytes read while requests waited for their turn

    def resume_reading(self) -> None:
        if not self.write_paused and self.ahead <= READ_AHEAD:
            super().resume_reading()


class SentHeaders:
    """A request's headers as the parser gives them, read when asked for. Names are lower case."""

    __slots__ = ("_pairs", "_read")

    def __init__(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self._pairs = pairs
        self._read: dict[str, str | None] = {}

    def get(self, key: str, /) -> str | None:
        try:
            return self._read[key]
        except KeyError:
            name = key.encode()
            found = next((value for one, value in self._pairs if one == name), None)
            self._read[key] = value = None if found is None else found.decode("latin-1")
            return value


class Head:
    """What stands before a request's body; `length` is the body's as announced, 0 if it is not."""

    __slots__ = ("_read", "headers", "length", "route", "together", "url")

    def __init__(self, route: Route, url: bytes, headers: SentHeaders, length: int) -> None:
        self.route = route
        self.url = url
        self.headers = headers
        self.length = length
        self.together = False  # whether bodies behind it may be read with others
        self._read: Read | None = None

    def read(self, body: bytes) -> Call:
        """Read a body. Raises what the route raises about the headers, or about the body."""
        read = self._read
        if read is None:
            read = self._read = self.route.reader(self.headers)
            self.together = self.route.simple and self.length <= LONGEST_BODY
        return read(body)


class Watched(Protocol):
    """A connection, as the sweep sees it."""

    def close_if_idle(self, now: float, /) -> None: ...


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
    heads: dict[bytes, Head] = field(default_factory=dict)
    """What heads mean, by their bytes: a client sends the same one again and again, and looking it
    up takes a tenth of the time of parsing it."""
    together: Together = field(init=False)
    _watching: bool = False
    _routes: dict[bytes, Route] = field(default_factory=dict)
    _defaults: tuple[object, bytes] = (None, b"")
    _usual_heads: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.together = Together(self.plane, self.draining)

    def route(self, url: bytes) -> Route | None:
        """The route of an address that goes the fast way; None for all others."""
        return self._routes.get(url) or self._find(url)

    def _find(self, url: bytes) -> Route | None:
        path = url.decode("latin-1")
        route = next((found for match in self.matches if (found := match(path))), None)
        if route is not None and len(url) <= LONGEST_REMEMBERED:
            if len(self._routes) >= MOST_ROUTES:
                self._routes.clear()
            self._routes[url] = route
        return route

    def without_id(self, raw: bytes) -> tuple[bytes, bytes]:
        """Part a head from its request id, which would make each a head of its own.

        Both empty where it has none, or one that only a parser should look at.
        """
        for line in ID_LINES:
            start = raw.find(line)
            if start >= 0:
                end = raw.find(b"\r\n", start + 2)
                value = raw[start + len(line) : end]
                return (raw[:start] + raw[end:], value) if readable(value) else (b"", b"")
        return b"", b""

    def remember(self, raw: bytes, head: Head, names: Sequence[bytes]) -> None:
        """Keep what `raw` was parsed to, where it surely says all of it, to the last byte.

        `names` are those of its headers.
        """
        lines = len(names) + 2  # with the request line and the empty one
        if (
            len(raw) <= LONGEST_HEAD
            and raw.startswith(b"POST ")  # and no blank lines, which the parser skips
            and raw.count(b"\r\n") == raw.count(b"\n") == lines
            and b"transfer-encoding" not in names
        ):
            if REQUEST_ID_HEADER in names:
                raw, _ = self.without_id(raw)
                if not raw or names.count(REQUEST_ID_HEADER) > 1:
                    return
            if len(self.heads) >= MOST_HEADS:
                self.heads.clear()
            self.heads[raw] = head

    def head(
        self, status: int, headers: Mapping[str, str], defaults: list[tuple[bytes, bytes]]
    ) -> bytes:
        """The head of an answer; `defaults` are uvicorn's own headers."""
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()
        return b"%b%b%b\r\n" % (STATUS_LINE[status], self.default_headers(defaults), lines)

    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """uvicorn's own headers, put together anew only when it has new ones (once a second)."""
        if self._defaults[0] is not headers:
            lines = b"".join([name + b": " + value + b"\r\n" for name, value in headers])
            self._defaults = (headers, lines)
            self._usual_heads.clear()
        return self._defaults[1]

    def usual_head(self, headers: list[tuple[bytes, bytes]], length: int) -> bytes:
        """The head of an answer in JSON to a good request, of `length` bytes."""
        if self._defaults[0] is not headers:
            self.default_headers(headers)
        head = self._usual_heads.get(length)
        if head is None:
            head = b"%b%b%bcontent-length: %d\r\n\r\n" % (
                STATUS_LINE[200], self._defaults[1], JSON_LINE, length,
            )  # fmt: skip
            if len(self._usual_heads) < MOST_HEADS:
                self._usual_heads[length] = head
        return head

    def watch(self, connections: Iterable[Watched], loop: asyncio.AbstractEventLoop) -> None:
        """Have an eye on idle connections: one timer for all, while there are any."""
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
