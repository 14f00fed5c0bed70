"""Parsed request heads: the request line and the headers."""

from __future__ import annotations

from collections.abc import Container

from cohort.auth.authority import Caller
from cohort.codec import MAX_ROWS_BODY_BYTES
from cohort.errors import InvalidInput
from cohort.http.calls import Encoded, Read, Route, RowForm
from cohort.http.compression import choose_coding
from cohort.http.guards.heads import BLANKS
from cohort.http.guards.request_ids import REQUEST_ID_HEADER
from cohort.observability.request_ids import readable
from cohort.serving import Call, DataPlane, Intake


class SentHeaders:
    """The headers of a request, decoded on access.

    pairs: Names, in lower case, and values from the parser.
    """

    __slots__ = ("_read", "pairs")

    def __init__(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self.pairs = pairs
        self._read: dict[str, str | None] = {}

    def get(self, key: str, /) -> str | None:
        """Return the first value of a header, by its name in lower case, or None."""
        try:
            return self._read[key]
        except KeyError:
            name = key.encode()
            found = next((value for one, value in self.pairs if one == name), None)
            self._read[key] = value = None if found is None else found.decode("latin-1")
            return value

    def without(self, names: Container[bytes]) -> SentHeaders:
        """Return the headers without these names."""
        return SentHeaders([one for one in self.pairs if one[0] not in names])


def take_request_id(headers: list[tuple[bytes, bytes]]) -> bytes:
    """Remove the request id from headers that may be shared, and return it, or b"" without one.

    An id that cannot be passed on stays in the headers.
    """
    for place, (name, value) in enumerate(headers):
        if name == REQUEST_ID_HEADER:
            if request_id := readable(value):
                del headers[place]
            return request_id
    return b""


class RawHeaders:
    """The headers of one request as received, for reading one or two of them.

    raw: The head's bytes, which a parser has accepted.
    """

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def get(self, key: str, /) -> str | None:
        """Return the first value of a header, by its name in lower case, or None."""
        raw, line = self._raw, b"\r\n%b:" % key.encode()
        at = raw.lower().find(line)
        if at < 0:
            return None
        at += len(line)
        return raw[at : raw.find(b"\r\n", at)].strip(BLANKS).decode("latin-1")


class Head:
    """A parsed head, shared by all requests whose relevant lines are equal.

    route: Reads requests to its path.
    url: The request target as it was sent.
    headers: All headers except the request id, which belongs to each request. An id that cannot be
        passed on is included.
    length: The Content-Length in bytes; 0 if it was not sent.
    plane: Answers its requests, limited to the models that the caller may see.
    caller: The sender of its requests, or None if callers need no key.
    until: Expiry of the token in the head, in seconds since the epoch, or None for a key.
    keep_alive: True if the connection stays open after the response.
    states_keep_alive: True if the response must state this, as for HTTP/1.0.
    coding: The Content-Encoding for long responses, or None.
    shared: True if per-request headers were removed from this head.
    rows: Reads its requests for coalescing; None before `prepare`.
    intake: The coalescer's parameters for its requests, or None if `rows` is None.
    """

    __slots__ = (
        "_read",
        "caller",
        "coding",
        "headers",
        "intake",
        "keep_alive",
        "length",
        "plane",
        "route",
        "rows",
        "shared",
        "states_keep_alive",
        "until",
        "url",
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
        keep_alive: bool = True,
        states_keep_alive: bool = False,
    ) -> None:
        self.route = route
        self.url = url
        self.headers = headers
        self.length = length
        self.plane = plane
        self.caller = caller
        self.until = until
        self.keep_alive = keep_alive
        self.states_keep_alive = states_keep_alive
        accepts = headers.get("accept-encoding")
        self.coding = None if accepts is None else choose_coding(accepts)
        self.shared = False
        self.rows: RowForm | None = None
        self.intake: Intake | None = None
        self._read: Read | None = None

    def without(self, names: Container[bytes]) -> Head:
        """Return a copy that can be shared, without the headers of these names."""
        headers = self.headers.without(names)
        head = Head(
            self.route, self.url, headers, self.length,
            plane=self.plane, caller=self.caller, until=self.until,
            keep_alive=self.keep_alive, states_keep_alive=self.states_keep_alive,
        )  # fmt: skip
        head.shared = True
        return head

    def prepare(self) -> Read:
        """Check the headers once, and return the reader of bodies. Raises what the route raises."""
        if self._read is None:
            self._read = self.route.reader(self.headers)
            if self.length <= MAX_ROWS_BODY_BYTES:
                self._take_rows()
        return self._read

    def _take_rows(self) -> None:
        route, caller = self.route, self.caller
        self.rows = route.rows(self.headers)
        if self.rows is not None:
            asked = route.model if route.version is None else (route.model, route.version)
            self.intake = Intake(self.rows, asked, 0 if caller is None else caller.priority)

    def read(self, body: bytes) -> Call[Encoded]:
        """Read a body. Raises what the route raises for the headers or the body."""
        return self.prepare()(body)


def _read_nothing(_: object) -> Read:
    raise InvalidInput("the request could not be parsed")


NOWHERE = Route(None, _read_nothing)
"""The route of input that never became a request."""
