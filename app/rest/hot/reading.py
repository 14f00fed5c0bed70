"""Which headers the fast path reads, their limit, and the errors of malformed requests."""

from __future__ import annotations

from functools import lru_cache

import httptools
import structlog

from app.errors import CohortError, InferenceFailed, InvalidInput
from app.rest.compression import choose_coding

log = structlog.get_logger("cohort.rest")

MAX_HEADER_BYTES = 64 * 1024
"""The request line and all headers of a request at most, trailers included."""

LARGE_SEGMENT_BYTES = 16 * 1024
"""The size of headers is computed only where a segment was larger, or they came in many."""

HEADER_SECONDS = 30.0
"""How long the headers of a request may take to arrive."""

HEADERS_TOO_LARGE = f"headers have at most {MAX_HEADER_BYTES} bytes"
RELEVANT_HEADERS = frozenset(
    {b"content-length", b"content-encoding", b"accept-encoding", b"expect", b"upgrade"}
)
"""The headers that decide whether the fast path answers; all others are only kept."""


@lru_cache(256)
def asks_for_compression(accept_encoding: bytes) -> bool:
    """Whether a response may be compressed, by its request's `Accept-Encoding`."""
    return choose_coding(accept_encoding.decode("latin-1")) is not None


def to_cohort_error(error: httptools.HttpParserError) -> CohortError:
    """Convert a parser's error: InvalidInput, or InferenceFailed where it is the server's bug."""
    cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
    if isinstance(cause, CohortError):
        return cause
    if isinstance(cause, httptools.HttpParserError | UnicodeError):
        return InvalidInput(f"this is not an HTTP request: {cause}")
    log.error("failed", exc_info=cause or error)
    return InferenceFailed("the server failed; its log says more")
