"""The headers that the fast path reads, their limits, and the errors of malformed requests."""

from __future__ import annotations

import re
from collections.abc import Sequence

import httptools
import structlog

from cohort.errors import CohortError, InferenceFailed, InvalidInput, TooLarge

log = structlog.get_logger("cohort.rest")

MAX_HEADER_BYTES = 64 * 1024
"""Maximum size of the request line and all headers of a request, trailers included."""

LARGE_SEGMENT_BYTES = 16 * 1024
"""Size of a segment above which the size of headers is computed. Many segments also cause this."""

PIECE_BYTES = 16 * 1024
"""Size of the first piece of a segment, before its cost is known. It takes at most 1 ms to parse.
"""

SMALLEST_PART_BYTES = 64
"""Average size of body parts, with framing, below which a connection waits for its next turn."""

HEADER_SECONDS = 30.0
"""Seconds within which the headers of a request must arrive."""

HEADERS_TOO_LARGE = f"headers are larger than {MAX_HEADER_BYTES} bytes"
RELEVANT_HEADERS = frozenset({b"content-length", b"content-encoding", b"expect", b"upgrade"})
"""Headers that decide if the fast path answers. It does not interpret any others."""


def check_size(url: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raise TooLarge if a request's headers are longer than MAX_HEADER_BYTES."""
    if len(url) + sum([len(name) + len(value) + 4 for name, value in headers]) > MAX_HEADER_BYTES:
        raise TooLarge(HEADERS_TOO_LARGE)


def without_upgrade(
    parser: httptools.HttpRequestParser, url: bytes, headers: Sequence[tuple[bytes, bytes]]
) -> bytes:
    """Return the head that `parser` has read, without the request for an upgrade."""
    version = parser.get_http_version().encode()
    head = [b"%b %b HTTP/%b\r\n" % (parser.get_method(), url, version)]
    head += [b"%b: %b\r\n" % one for one in headers if one[0] != b"upgrade"]
    return b"".join([*head, b"\r\n"])


_CHUNKED = re.compile(rb"(^|\r\n)(transfer-encoding:[ \t]*chunked)[ \t]+(?=\r\n)", re.IGNORECASE)


def without_blanks(segment: bytes) -> bytes:
    """Return a segment of a head without the blanks behind `chunked`.

    They are not part of the value (RFC 9110, 5.5), but the parser refuses tabs there. No other
    header that determines the end of a request has this problem.
    """
    end = segment.find(b"\r\n\r\n") + 2
    if end == 1:  # the head is incomplete
        end = len(segment)
    if segment.find(b"\t", 0, end) < 0:
        return segment
    return _CHUNKED.sub(rb"\1\2", segment[:end]) + segment[end:]


def to_cohort_error(error: httptools.HttpParserError | CohortError) -> CohortError:
    """Convert a parser's error to InvalidInput, or to InferenceFailed if it is the server's bug."""
    cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
    if isinstance(cause, CohortError):
        return cause
    if isinstance(cause, httptools.HttpParserError | UnicodeError):
        return InvalidInput(f"not a valid HTTP request: {cause}")
    log.error("failed", exc_info=cause or error)
    return InferenceFailed("internal server error; see the server's log")
