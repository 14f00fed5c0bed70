"""Responses to HTTP/1.0 clients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cohort.http.fast_path.close_delimited import close_delimited


async def test_a_response_without_headers_ends_with_its_connection() -> None:
    """ASGI applications may omit the key of the headers."""
    scope: Any = {}
    receive: Any = None
    cycle = SimpleNamespace(chunked_encoding=None, expected_content_length=0)
    messages = [
        {"type": "http.response.start", "status": 200},
        {"type": "http.response.body", "body": b"hello"},
    ]
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    async def send(message: Any) -> None:
        sent.append(message)

    await close_delimited(app, cycle)(scope, receive, send)
    assert sent == messages
    assert (cycle.chunked_encoding, cycle.expected_content_length) == (False, 5)
