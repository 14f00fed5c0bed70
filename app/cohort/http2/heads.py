"""The headers of a gRPC call.

https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from cohort.http2.field_decoding import Header
from cohort.http2.frames import END_HEADERS, END_STREAM, HEADERS, ErrorCode, frame, rst_stream
from cohort.http2.header_blocks import MAX_HEADER_BYTES, encode
from cohort.observability.request_ids import REQUEST_ID, readable

_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}

_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_LENGTH = b"content-length"
_KEPT = _PSEUDO | {b"te", b"content-type", b"grpc-encoding", _LENGTH}
_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
TIMEOUT, REQUEST_ID_NAME = b"grpc-timeout", REQUEST_ID.encode()
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_DIGITS = re.compile(rb"[0-9]{1,18}")
_UNFIT = re.compile(rb"[\0\r\n]")

MAX_KNOWN_HEADS, MAX_KNOWN_HEAD, MAX_KNOWN_NAME = 1024, 1024, 64
"""Maximum number of cached heads and metadata names, and the maximum size of one in bytes."""

MetadataPair = tuple[str, str | bytes]

_ODD_PSEUDO = "invalid pseudo-headers"
_ODD_HEADERS = "headers that HTTP/2 forbids"


class CallHead:
    """The part of the headers that most calls of a client share.

    path: The method's path as it was sent.
    encoding: The compression of its compressed messages.
    length: The announced bytes of data, or None.
    has_pseudo: True if it has any pseudo-header.
    malformed: The reason why it is not a valid request, or "".
    refusal: The block that refuses a request that is not a gRPC call, or b"".
    """

    __slots__ = ("encoding", "has_pseudo", "length", "malformed", "path", "refusal")

    def __init__(self, headers: Sequence[Header]) -> None:
        found: dict[bytes, bytes] = {}
        self.malformed = ""
        for name, value in headers:
            if name in _PSEUDO and (name in found or not found.keys() <= _PSEUDO):
                self.malformed = _ODD_PSEUDO
            if _UNFIT.search(value):
                self.malformed = _ODD_HEADERS
            if name == _LENGTH and not (_DIGITS.fullmatch(value) and name not in found):
                self.malformed = _ODD_HEADERS
            found[name] = value
        self.has_pseudo = not found.keys().isdisjoint(_PSEUDO)
        length = found.get(_LENGTH)
        self.length = int(length) if length and self.malformed != _ODD_HEADERS else None
        if not (found.get(b":path") and b":method" in found and b":scheme" in found):
            self.malformed = self.malformed or "pseudo-headers are missing"
        if found.get(b"te", b"trailers") != b"trailers":
            self.malformed = self.malformed or "invalid te header"
        self.path = found.get(b":path", b"").decode("latin-1")
        self.refusal = b""
        if found.get(b":method") != b"POST":
            self.refusal = _NO_POST
        elif not _is_grpc(found.get(b"content-type", b"")):
            self.refusal = _NO_GRPC
        self.encoding = found.get(b"grpc-encoding", b"identity").decode("latin-1")


class StreamHead(NamedTuple):
    """The headers of one call.

    call: The part that it shares with other calls.
    malformed: The reason why it is not a valid request, or "".
    timeout: Seconds until its deadline, or None.
    bad_timeout: True if its deadline is invalid.
    request_id: The `x-request-id`, or "" if it was not sent or cannot be passed on.
    rest: All other headers.
    held: Approximate memory of the headers in bytes.
    """

    call: CallHead
    malformed: str
    timeout: float | None
    bad_timeout: bool
    request_id: str
    rest: tuple[Header, ...]
    held: int

    @property
    def no_trailers(self) -> bool:
        """Return True if these headers cannot end a call."""
        return self.call.has_pseudo or self.malformed == _ODD_HEADERS

    def metadata(self) -> list[MetadataPair]:
        """Return the caller's metadata. Names that end in -bin have bytes."""
        return [pair for name, value in self.rest for pair in _pairs(name, value)]


class CallHeads:
    """A cache of heads, because clients send the same heads repeatedly.

    Deadlines and metadata, such as traces, may differ with each call. They are not part of a head.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Header, ...], CallHead] = {}
        self._names: set[bytes] = set()  # metadata names

    def read(self, headers: Sequence[Header], held: int = 0) -> StreamHead:
        """Interpret headers that take about `held` bytes of memory."""
        kept: list[Header] = []
        rest: list[Header] = []
        malformed, timeout, bad_timeout, request_id = "", None, False, ""
        for header in headers:
            name, value = header
            if name in _KEPT:
                if (rest or timeout is not None) and name in _PSEUDO:
                    malformed = _ODD_PSEUDO
                kept.append(header)
            elif name == TIMEOUT:
                match = _TIMEOUT.fullmatch(value)
                if match is None or timeout is not None:
                    bad_timeout = True
                else:
                    timeout = int(match[1]) * _UNITS[match[2]]
            else:
                if not (name in self._names or self._is_name(name)) or _UNFIT.search(value):
                    malformed = _ODD_HEADERS
                bare = value.strip(
                    b" \t"
                )  # blanks around a value are not part of it, as in HTTP/1.1
                if name == REQUEST_ID_NAME and not request_id:
                    request_id = readable(bare).decode()
                rest.append(header if bare is value else (name, bare))
        head = self._head_of(tuple(kept))
        malformed = malformed or head.malformed
        return StreamHead(head, malformed, timeout, bad_timeout, request_id, tuple(rest), held)

    def too_large(self) -> StreamHead:
        """Return the meaning of headers that are too large."""
        return _TOO_LARGE

    def _is_name(self, name: bytes) -> bool:
        if not _NAME.fullmatch(name) or name in _CONNECTION:
            return False
        if len(self._names) < MAX_KNOWN_HEADS and len(name) <= MAX_KNOWN_NAME:
            self._names.add(name)
        return True

    def _head_of(self, headers: tuple[Header, ...]) -> CallHead:
        head = self._known.get(headers)
        if head is None:
            head = CallHead(headers)
            if sum([len(name) + len(value) for name, value in headers]) <= MAX_KNOWN_HEAD:
                if len(self._known) >= MAX_KNOWN_HEADS:
                    self._known.clear()
                self._known[headers] = head
        return head


def _is_grpc(content_type: bytes) -> bool:
    kind = content_type.partition(b";")[0].strip().lower()
    return kind in (b"application/grpc", b"application/grpc+proto")


def _pairs(name: bytes, value: bytes) -> Iterable[MetadataPair]:
    text = name.decode("latin-1")
    if not name.endswith(b"-bin"):
        return ((text, value.decode("latin-1")),)
    parts = []
    for part in value.split(b","):
        with suppress(NotBase64):  # invalid base64 is dropped
            coded = part.strip()
            parts.append((text, b64decode(coded + b"=" * (-len(coded) % 4), validate=True)))
    return parts


RESPONSE_HEADERS = encode(
    [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"grpc-accept-encoding", b"identity,deflate,gzip"),
    ]
)
"""The headers before a call's messages."""

OK_TRAILERS = encode([(b"grpc-status", b"0")])


def trailers(
    code: int, details: str, metadata: Iterable[tuple[str, str]], *, only: bool = False
) -> bytes:
    """Return the block that ends a call. `only`: no block was sent before it."""
    named: list[Header] = []
    if only:
        named += [(b":status", b"200"), (b"content-type", b"application/grpc")]
    named.append((b"grpc-status", str(code).encode()))
    if details:
        named.append((b"grpc-message", percent_encoded(details)))
    named += [(name.encode(), _sent(name, value)) for name, value in metadata]
    return encode(named)


def _sent(name: str, value: str) -> bytes:
    text = value.encode("utf-8", "replace")
    if name.endswith("-bin"):
        return b64encode(text).rstrip(b"=")
    return _UNFIT.sub(b" ", text)


def refusal_of(number: int, head: StreamHead, *, ended: bool) -> bytes:
    """Return frames that end a stream that is not a valid call. `ended`: the peer sends no more."""
    if head.malformed:
        return rst_stream(number, ErrorCode.PROTOCOL_ERROR)
    sent = frame(HEADERS, END_HEADERS | END_STREAM, number, head.call.refusal)
    return sent if ended else sent + rst_stream(number, ErrorCode.NO_ERROR)


_NO_POST, _NO_GRPC = encode([(b":status", b"405")]), encode([(b":status", b"415")])
_PLAIN = frozenset(range(0x20, 0x7F)) - {0x25}


def percent_encoded(text: str) -> bytes:
    """Return a status message with all but printable ASCII percent-encoded as UTF-8."""
    data = text.encode("utf-8", "replace")
    if data.isascii() and data.isalnum():
        return data
    return b"".join([b"%c" % byte if byte in _PLAIN else b"%%%02X" % byte for byte in data])


_TOO_LARGE = CallHeads().read([(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/")])
_TOO_LARGE.call.refusal = trailers(
    8, f"the headers are larger than {MAX_HEADER_BYTES:,} bytes", (), only=True
)
