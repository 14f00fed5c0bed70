"""Limits on every request, as pure ASGI."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cohort.connections.memory import SMALL_BYTES, MemoryBudget
from cohort.errors import CohortError, InvalidInput, Overloaded, TooLarge
from cohort.http.errors import log_scope_refusal, response_to

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BEHIND = "cohort.behind"
"""Scope key of the requests queued behind this one on its connection, if they are known."""


def too_large(limit: int) -> TooLarge:
    """Return the error for a body of more than `limit` bytes."""
    return TooLarge(f"the body is larger than this server's limit of {limit / 2**20:g} MiB")


class BodyLimit:
    """Refuse bodies over `limit` bytes, by their announced length or once they exceed it.

    A request holds memory for its body while it is answered: `request.state.memory`. It is refused
    if the memory budget is full. `request.state.max_body` limits the decompressed body.
    """

    def __init__(self, app: ASGIApp, limit: int, memory: MemoryBudget) -> None:
        self.app = app
        self.limit = limit
        self.memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit():
            await self._refuse(InvalidInput("content-length is not a number"), scope, send)
            return
        if int(announced) > self.limit:
            await self._refuse(too_large(self.limit), scope, send)
            return
        received = 0
        responding = False
        hold = self.memory.hold()
        scope.setdefault("state", {}).update(memory=hold, max_body=self.limit)

        async def count() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.limit:
                raise too_large(self.limit)
            if received > SMALL_BYTES:
                hold.add(len(message.get("body", b"")))
            return message

        async def watch(message: Message) -> None:
            nonlocal responding
            responding = True
            await send(message)

        try:
            await self.app(scope, count, watch)
        except (TooLarge, Overloaded) as error:
            if responding:
                raise
            await self._refuse(error, scope, send)
        finally:
            hold.set(0)

    async def _refuse(self, error: CohortError, scope: Scope, send: Send) -> None:
        # The client is still sending the body. Closing the connection is the only way to stop it.
        log_scope_refusal(error, scope)
        await response_to(error, scope, {"connection": "close"})(scope, no_more_input, send)


async def no_more_input() -> Message:
    """Return the message for a response that reads nothing of its request."""
    return {"type": "http.disconnect"}


class CloseWhenDraining:
    """While the process drains, close each connection after its last response."""

    def __init__(self, app: ASGIApp, draining: Callable[[], bool]) -> None:
        self.app = app
        self.draining = draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def close_after(message: Message) -> None:
            last = not scope.get(BEHIND)
            if message["type"] == "http.response.start" and last and self.draining():
                message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await send(message)

        await self.app(scope, receive, close_after)
