"""Limits on every request, as pure ASGI."""

from __future__ import annotations

from asyncio import timeout
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from cohort.connections.memory import SMALL_BYTES, MemoryBudget
from cohort.errors import CohortError, InvalidInput, Overloaded, TooLarge, forget_locals
from cohort.http.errors import log_scope_refusal, response_to

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BEHIND = "cohort.behind"
"""Scope key of the requests queued behind this one on its connection, if they are known."""

REFUSED_LINGER_SECONDS = 2.0
"""Seconds during which the rest of a refused request is read and discarded.

If bytes arrive after the close, the kernel answers with a reset. A client that is still sending
then never reads its response: https://www.rfc-editor.org/rfc/rfc9112#section-9.6
"""


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
            error = InvalidInput("content-length is not a number")
            await refuse_and_close(error, scope, receive, send)
            return
        if int(announced) > self.limit:
            await refuse_and_close(too_large(self.limit), scope, receive, send)
            return
        received = 0
        responding, respond = False, send
        refused: CohortError | None = None
        hold = self.memory.hold()
        scope.setdefault("state", {}).update(memory=hold, max_body=self.limit)

        async def count() -> Message:
            nonlocal received, refused, respond
            message = await receive()
            size = len(message.get("body", b""))
            received += size
            try:
                if received > self.limit:
                    raise too_large(self.limit)
                if received > SMALL_BYTES:
                    hold.add(size)
            except CohortError as error:
                refused = error
                respond = _closing(receive if message.get("more_body") else no_more_input, send)
                raise
            return message

        async def watch(message: Message) -> None:
            nonlocal refused, responding
            responding = True
            if refused is not None:
                forget_locals(refused)
                refused = None
                hold.set(0)
            await respond(message)

        try:
            await self.app(scope, count, watch)
        except (TooLarge, Overloaded) as error:
            if responding:
                raise
            log_scope_refusal(error, scope)
            await response_to(error, scope)(scope, no_more_input, watch)
        finally:
            hold.set(0)


async def refuse_and_close(error: CohortError, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a request, of which `receive` gives the rest, and close its connection."""
    log_scope_refusal(error, scope)
    await response_to(error, scope)(scope, no_more_input, _closing(receive, send))


def _closing(receive: Receive, send: Send) -> Send:
    """Return a `send` that closes the connection after it has discarded the rest of the body."""

    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", []), (b"connection", b"close")]
            await send({**message, "headers": headers})
            return
        await send({**message, "more_body": True})
        if message.get("more_body"):
            return
        with suppress(TimeoutError):
            async with timeout(REFUSED_LINGER_SECONDS):
                while (await receive()).get("more_body"):
                    pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return send_and_close


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
