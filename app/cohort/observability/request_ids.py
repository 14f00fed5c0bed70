"""The id by which a request is found in every log: `x-request-id`, on every API.

What a caller or a balancer sends comes back with the response and stands in the log line, if there
is one. A request without an id gets one when it is refused or fails, so that whoever saw the error
can name it.
"""

from __future__ import annotations

import re
from itertools import count
from secrets import token_hex

REQUEST_ID = "x-request-id"
"""The header over HTTP, the metadata over gRPC."""

_READABLE = re.compile(rb"[!-~]{1,128}")  # no spaces, no control characters: it goes into headers
_process = token_hex(4)
_numbers = count(1)


def readable(value: bytes | None) -> bytes:
    """The id that was sent; b"" where there is none that can be passed on."""
    return value if value is not None and _READABLE.fullmatch(value) else b""


def new_request_id() -> bytes:
    """An id that no other request has."""
    return b"%b-%x" % (_process.encode(), next(_numbers))
