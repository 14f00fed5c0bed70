"""Request ids as pure ASGI: stored in the scope, sent with the response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cohort.observability.request_ids import REQUEST_ID, new_request_id, readable

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID_HEADER = REQUEST_ID.encode()
PLACE = "cohort.request_id"
"""Scope key of the request id."""

SPAN, TRACE_ID = "cohort.span", "cohort.trace_id"
"""Scope keys of the request's span, None if it is not sampled, and of its trace id."""


def id_of_refused(scope: Mapping[str, Any]) -> str:
    """Return the id of a refused request. Create it if it is missing."""
    found: bytes = scope.get(PLACE) or b""
    if not found and isinstance(scope, dict):
        found = scope[PLACE] = new_request_id()
    return found.decode()


class RequestIds:
    """Pure ASGI: store the request id in the scope and send it with the response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent = next((value for name, value in scope["headers"] if name == REQUEST_ID_HEADER), None)
        scope[PLACE] = readable(sent)

        async def add_id(message: Message) -> None:
            if message["type"] == "http.response.start" and scope[PLACE]:
                message["headers"] = [
                    *message.get("headers", []),
                    (REQUEST_ID_HEADER, scope[PLACE]),
                ]
            await send(message)

        await self.app(scope, receive, add_id)
