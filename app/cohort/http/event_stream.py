"""Answers of language models over HTTP: whole, or in parts as server-sent events.

A call decides by the parts that it returns. An `Encoded` part is the whole answer; bytes are one or
more events. The status is sent with the first event. A request that is refused before that gets an
error with a status, not a stream.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from starlette.responses import Response

from cohort.codec import LARGE_BYTES
from cohort.connections.memory import SMALL_BYTES, MemoryHold
from cohort.errors import Cancelled, CohortError, NotReady
from cohort.http.calls import Encoded, context_of, read_plain_body, response_of
from cohort.http.credentials import visible_to
from cohort.http.errors import log_scope_refusal
from cohort.http.guards.log_lines import LEASE, LEFT
from cohort.http.version_headers import version_headers
from cohort.serving import DataPlane, Generation, TextCall

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

EVENT_STREAM = "text/event-stream; charset=utf-8"

NOT_STORED: Mapping[str, str] = {"cache-control": "no-cache, no-store", "x-accel-buffering": "no"}
"""Headers that make proxies pass on each event at once; the second one is nginx's."""

EventPart = Encoded | bytes

WriteError = Callable[[CohortError], bytes]
"""Writes the events that end a stream with an error."""


def event(data: bytes) -> bytes:
    """Return one event; `data` has no line breaks, as JSON that orjson wrote."""
    return b"data: %b\n\n" % data


async def respond_with_text(
    plane: DataPlane,
    request: Request,
    read: Callable[[bytes], TextCall[EventPart]],
    *,
    write_error: WriteError,
    model: str | None = None,
    version: str | None = None,
    long_bytes: int = LARGE_BYTES,
) -> Response:
    """Answer one request to a language model.

    read: Makes the call of a body; on any thread. Raises InvalidInput.
    write_error: Writes the end of a stream that fails after its first event.
    model, version: The names in the path; default None: they are in the body.

    long_bytes: The size above which a body is read on a thread; default LARGE_BYTES.

    Raises the error of a request that fails before its first event.
    """
    plane = plane.limited_to(visible_to(request.scope))
    body = await read_plain_body(plane, request, model)
    hold: MemoryHold = request.state.memory
    reply = EventReply(hold)
    exchange = Generation[EventPart](plane, context_of(request), reply, hold)
    answering = _Answering(request, exchange, reply)
    try:
        long = len(body) > long_bytes
        exchange.read_text(read, body, model=model, version=version, long=long)
        whole = await reply.began
    except CancelledError:  # the time to drain has ended
        answering.end(cut := NotReady("the server is shutting down"))
        raise cut from None
    except BaseException:
        answering.close()
        reply.forget()
        raise
    if whole is None:
        return EventStream(answering, write_error)
    answering.close()
    return await response_of(request, whole)


class EventReply:
    """Receives an answer. Implements `ReplyTo[EventPart]`.

    Events that wait for a slow client are joined, and count in the memory budget.

    began: The whole answer, or None once the first event is there; raises the error without one.
    error: The error after the first event; None if there was none.

    hold: The request's share of the memory budget.
    """

    def __init__(self, hold: MemoryHold) -> None:
        self.began: asyncio.Future[Encoded | None] = asyncio.get_running_loop().create_future()
        self.error: CohortError | None = None
        self._hold = hold
        self._waiting: list[bytes] = []
        self._size = self._counted = 0
        self._whole: Encoded | None = None
        self._over = False
        self._more = asyncio.Event()

    def part(self, answer: EventPart) -> None:
        """Take the whole answer, or events. Raises Overloaded if too many bytes wait."""
        if isinstance(answer, Encoded):
            self._whole = answer
            return
        size = self._size + len(answer)
        if size > SMALL_BYTES:
            self._hold.add(size - self._counted)
            self._counted = size
        self._size = size
        self._waiting.append(answer)
        self._more.set()
        if not self.began.done():
            self.began.set_result(None)

    def end(self, error: CohortError | None) -> None:
        """End the answer, or refuse the request if it has no part yet."""
        if self._over:
            return
        self._over = True
        self._more.set()
        if self.began.done():
            self.error = error
        elif error is None:
            self.began.set_result(self._whole)
        else:
            self.began.set_exception(error)

    def forget(self) -> None:
        """Release the error of `began`, whose traceback refers to the whole request."""
        del self.began

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events until the end, as many at once as wait."""
        while True:
            await self._more.wait()
            self._more.clear()
            events, self._waiting = b"".join(self._waiting), []
            if events:
                yield events
                self._release()
            if self._over and not self._waiting:
                return

    def _release(self) -> None:
        left = sum(map(len, self._waiting))
        counted = left if left > SMALL_BYTES else 0
        self._hold.set(self._hold.size + counted - self._counted)
        self._size, self._counted = left, counted


class _Answering:
    """A request in progress, which ends if its client disconnects.

    lease: The lease that answers; None before a version is chosen.
    """

    def __init__(
        self, request: Request, exchange: Generation[EventPart], reply: EventReply
    ) -> None:
        self.reply = reply
        self.scope = request.scope
        self.exchange = exchange
        self._receiving = asyncio.ensure_future(request.receive())
        self._receiving.add_done_callback(self._left)

    def _left(self, receiving: asyncio.Future[Any]) -> None:
        if receiving.cancelled():
            return
        receiving.exception()  # nothing more arrives, whatever the message
        self.scope[LEFT] = True
        self.end(Cancelled("the client disconnected"))

    def end(self, error: CohortError) -> None:
        """End the request with an error, if it has not ended."""
        self.scope[LEASE] = self.exchange.lease
        self.exchange.leave(error)
        self.reply.end(error)

    def close(self) -> None:
        """Stop all work of the request."""
        self._receiving.cancel()
        self.scope[LEASE] = self.exchange.lease
        self.exchange.leave()


class EventStream(Response):
    """A response of events. Its first event is there."""

    media_type = EVENT_STREAM

    def __init__(self, answering: _Answering, write_error: WriteError) -> None:
        lease = answering.exchange.lease
        version, variant = (lease.version, lease.variant) if lease else ("", "")
        headers = {**version_headers(version, variant, EVENT_STREAM), **NOT_STORED}
        super().__init__(headers=headers)
        del self.headers["content-length"]  # the length is not known
        self._answering = answering
        self._write_error = write_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, and at the end the error if there is one."""
        del receive  # the request's own was taken before
        answering = self._answering
        more = partial(_body, more=True)
        try:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(cast("Any", start))
            async for events in answering.reply.events():
                await send(more(events))
        except CancelledError:
            # The time to drain has ended. The response ends here, so the cancellation does as well.
            # Events that the client did not read in time are lost.
            cut = NotReady("the server is shutting down")
            answering.end(cut)
            answering.reply.error = answering.reply.error or cut
        finally:
            answering.close()
        error, last = answering.reply.error, b""
        if error is not None and not scope.get(LEFT):
            log_scope_refusal(error, scope)
            last = self._write_error(error)
        await send(_body(last, more=False))


def _body(data: bytes, *, more: bool) -> Any:
    return {"type": "http.response.body", "body": data, "more_body": more}
