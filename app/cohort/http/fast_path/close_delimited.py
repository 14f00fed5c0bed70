"""Responses of unknown length to HTTP/1.0 clients, which do not know chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application


def close_delimited(app: ASGI3Application, cycle: Any) -> ASGI3Application:
    """Return an application whose responses of unknown length end with their connection.

    uvicorn would send them in chunks: https://www.rfc-editor.org/rfc/rfc9112#section-6.1

    cycle: uvicorn's request, which closes its connection after the response.
    """

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        unframed = False

        async def send_plain(message: Any) -> None:
            nonlocal unframed
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                unframed = all(name.lower() != b"content-length" for name, _ in headers)
                if unframed:
                    cycle.chunked_encoding = False
            elif unframed:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return answer
