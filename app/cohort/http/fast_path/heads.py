"""Request heads: the request line and the headers, parsed."""

from __future__ import annotations

from collections.abc import Container

from cohort.auth.authority import Caller
from cohort.codec import LONGEST_BODY
from cohort.errors import InvalidInput
from cohort.http.calls import Encoded, Read, Route, RowForm
from cohort.http.compression import choose_coding
from cohort.http.guards.heads import BLANKS
from cohort.http.guards.request_ids import REQUEST_ID_HEADER
from cohort.observability.request_ids import readable
from cohort.serving import Call, DataPlane, Intake


class SentHeaders:
    """A request's headers, decoded when they are read.

    pairs: Names and values as the parser gives them; names are in lower case.
    """

    __slots__ = ("_read", "pairs")

    def __init__(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self.pairs = pairs
        self._read: dict[str, str | None] = {}

    def get(self, key: str, /) -> str | None:
        """The first value of a header, by its name in lower case; None where it was not sent."""
        try:
            return self._read[key]
        except KeyError:
            name = key.encode()
            found = next((value for one, value in self.pairs if one == name), None)
            self._read[key] = value = None if found is None else found.decode("latin-1")
            return value

    def without(self, names: Container[bytes]) -> SentHeaders:
        """All but those of these names."""
        return SentHeaders([one for one in self.pairs if one[0] not in names])


def take_request_id(headers: list[tuple[bytes, bytes]]) -> bytes:
    """Take the request id out of the headers, since other requests may share them; b"" for none.

    One that cannot be passed on stays.
    """
    for place, (name, value) in enumerate(headers):
        if name == REQUEST_ID_HEADER:
            if request_id := readable(value):
                del headers[place]
            return request_id
    return b""


class RawHeaders:
    """The headers of one request as they were received, looked through for one or two of them.

    raw: The head's bytes, which a parser has accepted.
    """

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def get(self, key: str, /) -> str | None:
        """The first value of a header, by its name in lower case; None where it was not sent."""
        raw, line = self._raw, b"\r\n%b:" % key.encode()
        at = raw.lower().find(line)
        if at < 0:
            return None
        at += len(line)
        return raw[at : raw.find(b"\r\n", at)].strip(BLANKS).decode("latin-1")


class Head:
    """A parsed request line and headers, shared by all requests whose lines that matter are alike.

    route: How requests to its path are read.
    url: The request target as it was sent.
    headers: All headers but the request id, which each request has of its own. One that cannot be
        passed on is among them.
    length: The Content-Length in bytes; 0 where none was sent.
    plane: Answers its requests, as far as their caller may see it.
    caller: Whose requests they are; None where callers need no key.
    until: When the token that they carry expires, in seconds since the epoch; None: it is a key.
    keep_alive: Whether the connection stays open after the response.
    says_kept: Whether the response has to say so: that to HTTP/1.0.
    coding: The Content-Encoding that long responses are to have; None: none.
    shared: Whether headers that its requests differ in are left out: each has its own.
    rows: How its requests are read where they may be coalesced; None until `prepare` was called.
    intake: What the coalescer is told of each of them; None as `rows`.
    """

    __slots__ = (
        "_read", "caller", "coding", "headers", "intake", "keep_alive", "length", "plane", "route",
        "rows", "says_kept", "shared", "until", "url",
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
        says_kept: bool = False,
    ) -> None:
        self.route = route
        self.url = url
        self.headers = headers
        self.length = length
        self.plane = plane
        self.caller = caller
        self.until = until
        self.keep_alive = keep_alive
        self.says_kept = says_kept
        accepts = headers.get("accept-encoding")
        self.coding = None if accepts is None else choose_coding(accepts)
        self.shared = False
        self.rows: RowForm | None = None
        self.intake: Intake | None = None
        self._read: Read | None = None

    def without(self, names: Container[bytes]) -> Head:
        """The same head without the headers of these names, to be shared."""
        headers = self.headers.without(names)
        head = Head(
            self.route, self.url, headers, self.length,
            plane=self.plane, caller=self.caller, until=self.until,
            keep_alive=self.keep_alive, says_kept=self.says_kept,
        )  # fmt: skip
        head.shared = True
        return head

    def prepare(self) -> Read:
        """Check the headers, once, and give what reads bodies. Raises as the route does."""
        if self._read is None:
            self._read = self.route.reader(self.headers)
            if self.length <= LONGEST_BODY:
                self._take_rows()
        return self._read

    def _take_rows(self) -> None:
        route, caller = self.route, self.caller
        self.rows = route.rows(self.headers)
        if self.rows is not None:
            asked = route.model if route.version is None else (route.model, route.version)
            self.intake = Intake(self.rows, asked, 0 if caller is None else caller.priority)

    def read(self, body: bytes) -> Call[Encoded]:
        """Read a body. Raises what the route raises about the headers, or about the body."""
        return self.prepare()(body)


def _read_nothing(_: object) -> Read:
    raise InvalidInput("the request could not be parsed")


NOWHERE = Route(None, _read_nothing)
"""The route of what never became a request."""
