"""The id that identifies a request in every log: `x-request-id`, on every API.

An id from a client or a load balancer is returned with the response and appears in the request's
log line, if one is written. A request without an id gets one when it is refused or fails, so that
an error report can name it.
"""

from __future__ import annotations

import re
from itertools import count
from secrets import token_hex

REQUEST_ID = "x-request-id"
"""The name of the HTTP header and of the gRPC metadata key."""

_READABLE = re.compile(rb"[!-~]{1,128}")  # no spaces or control characters: sent in headers
_process = token_hex(4)
_numbers = count(1)


def readable(value: bytes | None) -> bytes:
    """Return the id that was sent, or b"" if it is missing or invalid."""
    return value if value is not None and _READABLE.fullmatch(value) else b""


def new_request_id() -> bytes:
    """Return a new unique id."""
    return b"%b-%x" % (_process.encode(), next(_numbers))
