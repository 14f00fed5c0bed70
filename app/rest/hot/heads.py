"""Request heads, which are the request line and the headers, cached by their bytes.

A client sends the same head with each request, and a lookup takes a tenth of the time of parsing.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.auth import Caller
from app.codec import LONGEST_BODY
from app.data_plane import DataPlane
from app.errors import InvalidInput
from app.request_ids import readable
from app.rest.calls import Call, Read, Route
from app.rest.media import is_plain
from app.rest.request_ids import REQUEST_ID_HEADER

MAX_HEADS = 1024
"""Cached heads at most: a few MiB, parsed form included. A full cache is cleared."""

MAX_HEAD_BYTES = 2048
"""The size of a cached head at most; larger ones are parsed each time."""

ID_LINES = tuple(b"\r\n%b: " % name for name in (b"x-request-id", b"X-Request-ID", b"X-Request-Id"))
"""The start of the request id's line, in the spellings of clients and load balancers."""


class SentHeaders:
    """A request's headers, decoded when they are read.

    pairs: Names and values as the parser gives them; names are in lower case.
    """

    __slots__ = ("_pairs", "_read")

    def __init__(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self._pairs = pairs
        self._read: dict[str, str | None] = {}

    def get(self, key: str, /) -> str | None:
        """The first value of a header, by its name in lower case; None where it was not sent."""
        try:
            return self._read[key]
        except KeyError:
            name = key.encode()
            found = next((value for one, value in self._pairs if one == name), None)
            self._read[key] = value = None if found is None else found.decode("latin-1")
            return value


class Head:
    """A parsed request line and headers, shared by all requests that begin with the same bytes.

    route: How requests to its path are read.
    url: The request target as it was sent.
    headers: All headers but the request id, which each request has of its own. One that cannot be
        passed on is among them.
    length: The Content-Length in bytes; 0 where none was sent.
    plane: Answers its requests, as far as their caller may see it.
    caller: Whose requests they are; None where callers need no key.
    until: When the token that they carry expires, in seconds since the epoch; None: it is a key.
    coalescible: Whether its requests may be coalesced; False until `read` was called once.
    """

    __slots__ = (
        "_read", "caller", "coalescible", "headers", "length", "plane", "route", "until", "url",
    )  # fmt: skip

    def __init__(
        self,
        route: Route,
        url: bytes,
        headers: SentHeaders,
        length: int,
        *,
        plane: DataPlane,
        caller: Caller | None = None,
        until: float | None = None,
    ) -> None:
        self.route = route
        self.url = url
        self.headers = headers
        self.length = length
        self.plane = plane
        self.caller = caller
        self.until = until
        self.coalescible = False
        self._read: Read | None = None

    def read(self, body: bytes) -> Call:
        """Read a body. Raises what the route raises about the headers, or about the body."""
        read = self._read
        if read is None:
            read = self._read = self.route.reader(self.headers)
            small = self.length <= LONGEST_BODY
            coalescing = small and self.route.from_document is not None
            self.coalescible = coalescing and is_plain(self.headers)
        return read(body)


def _read_nothing(_: object) -> Read:
    raise InvalidInput("the request could not be parsed")


NOWHERE = Route(None, _read_nothing)
"""The route of what never became a request."""


class HeadCache:
    """Parsed heads by their bytes, in `known`; a request id is left out of the bytes.

    Only heads whose caller may send them are cached, until the callers' keys change.
    """

    def __init__(self) -> None:
        self.known: dict[bytes, Head] = {}

    @staticmethod
    def without_id(raw: bytes) -> tuple[bytes, bytes]:
        """Split a head into the head without its request id, and the id.

        Both are empty where it has no id, or one with characters that an id must not have.
        """
        for line in ID_LINES:
            start = raw.find(line)
            if start >= 0:
                end = raw.find(b"\r\n", start + 2)
                value = raw[start + len(line) : end]
                return (raw[:start] + raw[end:], value) if readable(value) else (b"", b"")
        return b"", b""

    def remember(self, raw: bytes, head: Head, names: Sequence[bytes]) -> None:
        """Cache a head, unless its bytes alone might not determine how a request is parsed.

        raw: Its bytes, with the empty line at the end.
        head: What they were parsed to.
        names: The names of its headers, in lower case.
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
