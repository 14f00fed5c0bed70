"""The id by which a request is found in everybody's logs: `x-request-id`, in and out.

What a caller or a balancer sends comes back with the answer and stands in the log line, if there is
one. A request without one gets one when it is refused or fails, so that whoever saw the answer can
name it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count
from secrets import token_hex
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

NAME = b"x-request-id"
PLACE = "cohort.request_id"
"""Where a scope keeps it."""

_READABLE = re.compile(rb"[!-~]{1,128}")  # no spaces, no control characters: it goes into headers
_process = token_hex(4)
_numbers = count(1)


def readable(value: bytes | None) -> bytes:
    """The id somebody sent; b"" where there is none that can be passed on."""
    return value if value is not None and _READABLE.fullmatch(value) else b""


def synthetic() -> bytes:
    """An id that no other request has."""
    return b"%b-%x" % (_process.encode(), next(_numbers))


def id_of(scope: Mapping[str, Any]) -> str:
    """The id of a request that is refused; made up where it has none."""
    found: bytes = scope.get(PLACE) or b""
    if not found and isinstance(scope, dict):
        found = scope[PLACE] = synthetic()
    return found.decode()


class RequestIds:
    """Pure ASGI: keep the id in the scope, and send it with the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent = next((value for name, value in scope["headers"] if name == NAME), None)
        scope[PLACE] = readable(sent)

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start" and scope[PLACE]:
                message["headers"] = [*message.get("headers", []), (NAME, scope[PLACE])]
            await send(message)

        await self.app(scope, receive, tell)
