"""Heads of requests: what stands before the body, parsed once and then looked up by its bytes.

A client sends the same head again and again, and looking it up takes a tenth of the time of parsing
it.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.codec import LONGEST_BODY
from app.errors import InvalidInput
from app.request_ids import readable
from app.rest.calls import Call, Read, Route
from app.rest.request_ids import REQUEST_ID_HEADER

MAX_HEADS = 1024
MAX_HEAD_BYTES = 2048
"""Heads that are remembered, and the bytes of each: a few MiB at most, parsed form included."""

ID_LINES = tuple(b"\r\n%b: " % name for name in (b"x-request-id", b"X-Request-ID", b"X-Request-Id"))
"""As clients and load balancers write it."""


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
    """Request line and headers, as parsed. `length` is the announced one of the body, or 0."""

    __slots__ = ("_read", "coalescible", "headers", "length", "route", "url")

    def __init__(self, route: Route, url: bytes, headers: SentHeaders, length: int) -> None:
        self.route = route
        self.url = url
        self.headers = headers
        self.length = length
        self.coalescible = False  # whether requests that begin so may be coalesced
        self._read: Read | None = None

    def read(self, body: bytes) -> Call:
        """Read a body. Raises what the route raises about the headers, or about the body."""
        read = self._read
        if read is None:
            read = self._read = self.route.reader(self.headers)
            small = self.length <= LONGEST_BODY
            self.coalescible = small and self.route.from_document is not None
        return read(body)


def _read_nothing(_: object) -> Read:
    raise InvalidInput("there is nothing to read")


NOWHERE = Route(None, _read_nothing)
"""The route of what never became a request."""


class HeadCache:
    """Heads that were parsed before, by their bytes, request id left out."""

    def __init__(self) -> None:
        self.known: dict[bytes, Head] = {}

    @staticmethod
    def without_id(raw: bytes) -> tuple[bytes, bytes]:
        """Split a head from its request id, which would make each a head of its own.

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
        """Keep what `raw` was parsed to, where it certainly says all of it, to the last byte.

        `names` are those of its headers.
        """
        lines = len(names) + 2  # with the request line and the empty one
        if (
            len(raw) <= MAX_HEAD_BYTES
            and raw.startswith(b"POST ")  # and no blank lines, which the parser skips
            and raw.count(b"\r\n") == raw.count(b"\n") == lines
            and b"transfer-encoding" not in names
        ):
            if REQUEST_ID_HEADER in names:
                raw, _ = self.without_id(raw)
                if not raw or names.count(REQUEST_ID_HEADER) > 1:
                    return
            if len(self.known) >= MAX_HEADS:
                self.known.clear()
            self.known[raw] = head
