"""Which headers the fast path reads, their limit, and the errors of malformed requests."""

from __future__ import annotations

import re
from collections.abc import Sequence

import httptools
import structlog

from cohort.errors import CohortError, InferenceFailed, InvalidInput, TooLarge

log = structlog.get_logger("cohort.rest")

MAX_HEADER_BYTES = 64 * 1024
"""The request line and all headers of a request at most, trailers included."""

LARGE_SEGMENT_BYTES = 16 * 1024
"""The size of headers is computed only where a segment was larger, or they came in many."""

PIECE_BYTES = 16 * 1024
"""What is parsed of a segment before it is known whether that takes long: a millisecond at most."""

SMALLEST_PART_BYTES = 64
"""Where parts of bodies are smaller on average, framing included, a connection waits its turn."""

HEADER_SECONDS = 30.0
"""How long the headers of a request may take to arrive."""

REFUSED_LINGER_SECONDS = 2.0
"""How long the rest of a refused request is read and discarded."""

HEADERS_TOO_LARGE = f"headers have at most {MAX_HEADER_BYTES} bytes"
RELEVANT_HEADERS = frozenset({b"content-length", b"content-encoding", b"expect", b"upgrade"})
"""The headers that decide whether the fast path answers; all others are only kept."""


def check_size(url: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raise TooLarge where a request's headers are longer than MAX_HEADER_BYTES."""
    if len(url) + sum([len(name) + len(value) + 4 for name, value in headers]) > MAX_HEADER_BYTES:
        raise TooLarge(HEADERS_TOO_LARGE)


def without_upgrade(
    parser: httptools.HttpRequestParser, url: bytes, headers: Sequence[tuple[bytes, bytes]]
) -> bytes:
    """The head that `parser` has read, as if it asked for no upgrade."""
    version = parser.get_http_version().encode()
    head = [b"%b %b HTTP/%b\r\n" % (parser.get_method(), url, version)]
    head += [b"%b: %b\r\n" % one for one in headers if one[0] != b"upgrade"]
    return b"".join([*head, b"\r\n"])


_CHUNKED = re.compile(rb"(^|\r\n)(transfer-encoding:[ \t]*chunked)[ \t]+(?=\r\n)", re.IGNORECASE)


def without_blanks(segment: bytes) -> bytes:
    """A segment that goes on with a head, without the blanks behind `chunked`.

    They are no part of the value (RFC 9110, 5.5), and the parser refuses tabs there. No other
    byte of a head decides where its request ends and has blanks behind it that the parser reads.
    """
    end = segment.find(b"\r\n\r\n") + 2
    if end == 1:  # it goes on
        end = len(segment)
    if segment.find(b"\t", 0, end) < 0:
        return segment
    return _CHUNKED.sub(rb"\1\2", segment[:end]) + segment[end:]


def to_cohort_error(error: httptools.HttpParserError | CohortError) -> CohortError:
    """Convert a parser's error: InvalidInput, or InferenceFailed where it is the server's bug."""
    cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
    if isinstance(cause, CohortError):
        return cause
    if isinstance(cause, httptools.HttpParserError | UnicodeError):
        return InvalidInput(f"this is not an HTTP request: {cause}")
    log.error("failed", exc_info=cause or error)
    return InferenceFailed("the server failed; its log says more")
