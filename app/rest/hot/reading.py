"""What is looked at in the headers of a request, and the error for one that cannot be read."""

from __future__ import annotations

from functools import lru_cache

import httptools
import structlog

from app.errors import CohortError, InferenceFailed, InvalidInput
from app.rest.compression import choose_coding

log = structlog.get_logger("cohort.rest")

MOST_HEADER_BYTES = 64 * 1024

HEADERS_TOO_LARGE = f"headers have at most {MOST_HEADER_BYTES} bytes"
LOOKED_AT = frozenset(
    {b"content-length", b"content-encoding", b"accept-encoding", b"expect", b"upgrade"}
)


@lru_cache(256)
def asks_for_compression(accept_encoding: bytes) -> bool:
    return choose_coding(accept_encoding.decode("latin-1")) is not None


def as_ours(error: httptools.HttpParserError) -> CohortError:
    """The error for a failure while reading: the caller's, unless it is a bug of the server."""
    cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
    if isinstance(cause, CohortError):
        return cause
    if isinstance(cause, httptools.HttpParserError | UnicodeError):
        return InvalidInput(f"this is not an HTTP request: {cause}")
    log.error("failed", exc_info=cause or error)
    return InferenceFailed("the server failed; its log says more")
