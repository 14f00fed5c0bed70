"""Answers of an ASGI application, in the pieces that it sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import ASGIApp, Message, Scope

from cohort.ray_serve.wire import HttpRequest, HttpResponse

PIECES_AHEAD = 16
"""Pieces that the application may send before the first of them is taken."""


async def answer(
    application: ASGIApp, request: HttpRequest
) -> AsyncGenerator[HttpResponse | bytes]:
    """Yield the response with the first piece of its body, then the other pieces.

    Close the generator to cancel the application. Raises the application's error.
    """
    sent = _Sent(request.body)
    running = asyncio.create_task(sent.run(application, scope_of(request)))
    try:
        response = HttpResponse()
        start = await sent.next()
        if start is not None:
            response.status = start["status"]
            response.headers = [(bytes(name), bytes(value)) for name, value in start["headers"]]
            response.body, response.more = await sent.body()
        more = response.more
        yield response
        while more:
            piece, more = await sent.body()
            yield piece
        await running
    finally:
        running.cancel()


def scope_of(request: HttpRequest) -> Scope:
    """Return the scope of a request."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.query,
        "root_path": "",
        "headers": request.headers,
        "client": request.client,
        "server": None,
    }


class _Sent:
    """The messages of an application. None is its end."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(PIECES_AHEAD - 1)

    async def run(self, application: ASGIApp, scope: Scope) -> None:
        try:
            await application(scope, self._receive, self._send)
        finally:
            self._messages.put_nowait(None)

    async def _send(self, message: Message) -> None:
        await self._room.acquire()
        self._messages.put_nowait(message)

    async def next(self) -> Message | None:
        self._room.release()
        return await self._messages.get()

    async def body(self) -> tuple[bytes, bool]:
        """Return the bytes that were sent, and whether more may follow."""
        pieces: list[bytes] = []
        while True:
            message = await self.next()
            if message is None:
                return b"".join(pieces), False
            pieces.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(pieces), False
            if self._messages.empty() and any(pieces):
                return b"".join(pieces), True

    async def _receive(self) -> Message:
        if self._body is None:
            await asyncio.Event().wait()  # a caller who leaves cancels the application
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}
