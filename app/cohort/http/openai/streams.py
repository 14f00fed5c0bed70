"""Answers of language models over HTTP: whole, or as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import orjson
from starlette.responses import Response

from cohort.codec.compression import decompress
from cohort.connections.memory import SMALL_BYTES, MemoryHold
from cohort.errors import Cancelled, CohortError, InvalidInput, NotReady, Overloaded
from cohort.http.calls import Encoded, read_body
from cohort.http.compression import compress, packed_headers
from cohort.http.credentials import caller_of, visible_to
from cohort.http.errors import log_scope_refusal
from cohort.http.guards.limits import too_large
from cohort.http.guards.log_lines import LEASE, LEFT
from cohort.http.guards.request_ids import PLACE, SPAN
from cohort.http.media import check_json
from cohort.http.openai.error_body import error_object
from cohort.serving import DataPlane, Generation, RequestContext, TextCall

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

MAX_BODY_BYTES = 8 << 20
"""Limit of a body of text: no model's context is as long."""

LONG_BODY_BYTES = 16 << 10
"""Size above which a body is read on a thread."""

MAX_UNREAD_BYTES = 1 << 20
"""Limit of a stream's events that wait for a client that does not read them."""


class StreamedCall(TextCall[Encoded], Protocol):
    """A call whose answer may be a stream.

    stream: True if it is one.
    names: The request's names of fields, where they differ from the engine's.
    """

    stream: bool
    names: Mapping[str, str]


Reader = Callable[[bytes, MemoryHold], StreamedCall]
"""Reads a body into a call, whose answer is counted in the hold. Raises InvalidInput."""


class TextReply:
    """Holds the parts of an answer until they are sent.

    hold: Counts the parts.
    """

    def __init__(self, hold: MemoryHold) -> None:
        self._hold = hold
        self._parts: list[Encoded] = []
        self._unread = 0
        self._over = False
        self._error: CohortError | None = None
        self._news = asyncio.Event()

    def part(self, answer: Encoded) -> None:
        """Hold a part. Raises Overloaded if the client does not read its stream."""
        size = self._unread + len(answer.body)
        if self._parts and size > MAX_UNREAD_BYTES:
            raise Overloaded("the client does not read its stream")
        if size > SMALL_BYTES:
            self._hold.add_up_to(size)
        self._unread = size
        self._parts.append(answer)
        self._news.set()

    def end(self, error: CohortError | None) -> None:
        """Hold the end."""
        self._over = True
        self._error = error
        self._news.set()

    async def next(self) -> Encoded | None:
        """Return all new parts in one; None at the end. Raises the error that ended it."""
        await self._news.wait()
        self._news.clear()
        if self._parts:
            parts, self._parts, self._unread = self._parts, [], 0
            self._hold.set(0)
            if self._over:
                self._news.set()
            if len(parts) == 1:
                return parts[0]
            return Encoded(b"".join([one.body for one in parts]), parts[0].headers)
        error, self._error = self._error, None
        if error is not None:
            raise error
        return None


class TextAnswer:
    """One request to a language model and its answer, over ASGI.

    plane: The data plane, as its caller sees it.
    request: The request, whose body was read.
    """

    def __init__(self, plane: DataPlane, request: Request) -> None:
        scope = request.scope
        self._scope = scope
        self._own, self._unsent = plane.memory.hold(), plane.memory.hold()
        context = RequestContext(
            request.client,
            request.headers,
            scope[PLACE].decode(),
            caller_of(scope),
            span=scope.get(SPAN),
        )
        self._reply = TextReply(self._unsent)
        self._exchange = Generation(plane, context, self._reply, request.state.memory)
        self._call: StreamedCall | None = None
        self._receiving = asyncio.ensure_future(request.receive())
        self._receiving.add_done_callback(self._disconnected)

    def _disconnected(self, receiving: asyncio.Future[Any]) -> None:
        if not receiving.cancelled():
            receiving.exception()  # nothing more arrives, whatever the message
            self._exchange.leave()
            self._reply.end(Cancelled("the client disconnected"))

    @property
    def streams(self) -> bool:
        """True if the answer is a stream."""
        return self._call is not None and self._call.stream

    async def begin(self, read: Reader, body: bytes) -> Encoded:
        """Return the first part, or the whole answer. Raises CohortError."""

        def make(body: bytes) -> StreamedCall:
            self._call = call = read(body, self._own)
            return call

        self._exchange.read_text(make, body, model=None, long=len(body) > LONG_BODY_BYTES)
        try:
            first = await self._reply.next()
        except InvalidInput as error:
            names: Mapping[str, str] = {} if self._call is None else self._call.names
            error.parameter = names.get(error.parameter, error.parameter)
            raise
        except asyncio.CancelledError:
            raise self.cut() from None
        if first is None:
            raise NotReady("the model gave no answer")
        return first

    async def next(self) -> Encoded | None:
        """Return the next part; None at the end. Raises CohortError."""
        try:
            return await self._reply.next()
        except asyncio.CancelledError:
            raise self.cut() from None

    def cut(self) -> NotReady:
        """Stop at the end of the time to drain, and return the error for the caller."""
        error = NotReady("the server is shutting down and cut the answer")
        self._exchange.leave(error)
        return error

    def close(self) -> None:
        """Release everything; a request in progress is cancelled."""
        self._receiving.cancel()
        self._scope[LEASE] = self._exchange.lease
        self._exchange.leave()
        self._own.set(0)
        self._unsent.set(0)


class EventStream(Response):
    """A stream of events: the first part, and those that follow."""

    def __init__(self, first: Encoded, answer: TextAnswer) -> None:
        super().__init__(headers=first.headers)
        del self.headers["content-length"]
        self._first = first
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. An error ends it as its last event."""
        answer = self._answer
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            await send(start)
            part: Encoded | None = self._first
            while part is not None:
                await send(_message(part.body))
                part = await answer.next()
        except Cancelled:
            scope[LEFT] = True
        except CohortError as error:
            log_scope_refusal(error, scope)
            await send(_message(b"data: %b\n\n" % orjson.dumps(error_object(error))))
        except asyncio.CancelledError:  # while the client does not read
            log_scope_refusal(answer.cut(), scope)
            raise
        finally:
            answer.close()
        await send(_message(b"", more=False))


def _message(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def respond_to_text(plane: DataPlane, request: Request, read: Reader) -> Response:
    """Answer a request to a language model. Raises CohortError before the first part."""
    plane = plane.limited_to(visible_to(request.scope))
    check_json(request.headers)
    body = await _read(request)
    answer = TextAnswer(plane, request)
    handed_over = False
    try:
        first = await answer.begin(read, body)
        if answer.streams:
            handed_over = True
            return EventStream(first, answer)
    finally:
        if not handed_over:
            answer.close()
    accept, headers = request.headers.get("accept-encoding"), dict(first.headers)
    packed, coding = await compress(accept, first.body)
    if coding is not None:
        headers |= packed_headers(coding)
    return Response(packed, headers=headers)


async def _read(request: Request) -> bytes:
    """Return the body, decompressed. Raises TooLarge or UnsupportedMedia."""
    sent, state = await read_body(request), request.state
    limit = min(MAX_BODY_BYTES, state.max_body)
    if len(sent) > limit:
        raise too_large(limit)
    return await decompress(request.headers.get("content-encoding"), sent, limit, state.memory.add)
