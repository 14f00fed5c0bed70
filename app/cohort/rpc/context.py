"""A call that is served by a task: what its handler awaits, made of what its stream does."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import NoReturn

import structlog

from cohort.auth.authority import Caller
from cohort.connections.body_pace import BODY_TOO_SLOW, MIN_BYTES_PER_SECOND, WINDOW_SECONDS
from cohort.errors import CohortError, InvalidInput, NotReady
from cohort.http2 import SentMessage, Stream
from cohort.http2.frames import ErrorCode
from cohort.http2.heads import trailers
from cohort.http2.send_queue import Part
from cohort.rpc.errors import TrailingMetadata
from cohort.rpc.status import StatusCode
from cohort.rpc.transfers import OPEN_SECONDS, Aborted, CallMetadata, message_too_large

log = structlog.get_logger("cohort.rpc")

ServeCall = Callable[["TaskCall"], Awaitable[Sequence[Part] | None]]
"""Serves a call, and gives its only response; None where it has written all of them."""


class Arrival:
    """By when the message has to be there that a call waits for, or has to go on arriving."""

    __slots__ = ("_anyone", "_due", "_mark")

    def __init__(self, received: int, *, anyone: bool) -> None:
        self._anyone = anyone
        self._due = monotonic() + (OPEN_SECONDS if anyone else WINDOW_SECONDS)
        self._mark = received

    def late(self, now: float, received: int) -> InvalidInput | None:
        """Why the call ends, where its message is late; `received` are its bytes by now."""
        if now < self._due:
            return None
        if self._anyone:
            return InvalidInput(f"no message was there within {OPEN_SECONDS:g} s")
        if received - self._mark < MIN_BYTES_PER_SECOND * WINDOW_SECONDS:
            return InvalidInput(BODY_TOO_SLOW)
        self._due, self._mark = now + WINDOW_SECONDS, received
        return None


class StreamContext:
    """What a stream tells of its call."""

    parsed: object = None

    def __init__(self, stream: Stream, most_bytes: int) -> None:
        self.stream = stream
        self.most_bytes = most_bytes
        self.deadline = stream.deadline
        self.trailing: TrailingMetadata = ()

    @property
    def encoding(self) -> str:
        """How its compressed messages are compressed."""
        return self.stream.head.call.encoding

    @property
    def request_id(self) -> str:
        """The `x-request-id` that was sent; "" where there is none that can be passed on."""
        return self.stream.head.request_id

    def peer(self) -> str:
        """What tells its connection from others: an address, as gRPC writes it."""
        return self.stream.connection.peer

    def invocation_metadata(self) -> CallMetadata:
        """What the caller sent beside its messages."""
        return self.stream.head.metadata()

    def client_certificate(self) -> bytes | None:
        """The caller's certificate in PEM; None where it has none."""
        der = self.stream.connection.certificate
        return None if der is None else ssl.DER_cert_to_PEM_cert(der).encode()

    def time_remaining(self) -> float | None:
        """The seconds until its deadline; None where it has none."""
        return None if self.deadline is None else self.deadline - monotonic()

    def set_trailing_metadata(self, metadata: TrailingMetadata) -> None:
        """What its end carries."""
        self.trailing = metadata

    def end(self, code: StatusCode, details: str = "", metadata: TrailingMetadata = ()) -> None:
        """End the call by this status, after what waits to be sent."""
        self.stream.finish(code, details, metadata or self.trailing)


class TaskCall(StreamContext):
    """A call that is served by a task.

    admitted: Its caller, where the call is counted in that caller's quota already.
    """

    admitted: Caller | None = None

    def __init__(self, stream: Stream, serve: ServeCall, most_bytes: int) -> None:
        super().__init__(stream, most_bytes)
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._refusal: CohortError | None = None
        self._arrival: Arrival | None = None
        loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        if self.deadline is not None:
            self._timer = loop.call_later(max(0.0, self.deadline - monotonic()), self._time_over)
        self._task: asyncio.Task[None] | None = loop.create_task(self._serve(serve))
        self._task.add_done_callback(self._over)

    async def _serve(self, serve: ServeCall) -> None:
        try:
            response = await serve(self)
            if response is not None:
                self.stream.answer(response, trailers(0, "", self.trailing))
            else:
                self.end(StatusCode.OK)
        except Aborted:
            pass
        except Exception:
            log.exception("a call has failed")
            self.end(StatusCode.INTERNAL, "internal error")

    def _over(self, task: asyncio.Task[None]) -> None:
        """Its task has ended, or was cancelled, perhaps before it began."""
        self._task = self._refusal = None  # errors know this call by the frames they came through
        if self._timer is not None:
            self._timer.cancel()
        if not task.cancelled():
            return
        left = self.time_remaining()
        if left is not None and left <= 0:
            self.end(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        else:
            self.stream.reset(ErrorCode.CANCEL)

    def _time_over(self) -> None:
        self.deadline = monotonic()  # a timer may be a millisecond early
        self.gone()

    def when_over(self, then: Callable[[object], None]) -> None:
        """Call `then` once its task has ended, however it ends; it has just begun."""
        if self._task is not None:
            self._task.add_done_callback(then)

    # -- for who serves it

    async def read(self, *, due: bool, anyone: bool) -> SentMessage | None:
        """The next message; None where there are no more. Raises what `refuse` was given."""
        stream = self.stream
        if due:
            self._arrival = Arrival(stream.received, anyone=anyone)
        try:
            while True:
                message = stream.take() if self._refusal is None else None
                if message is not None:
                    return message
                if self._refusal is not None:
                    raise self._refusal
                if stream.ended or stream.closed:
                    if stream.partial:
                        raise InvalidInput("the call ends within a message")
                    return None
                if self._arrival is None and stream.partial:
                    self._arrival = Arrival(stream.received, anyone=anyone)
                self._reader = asyncio.get_running_loop().create_future()
                await self._reader
        finally:
            self._reader = self._arrival = None

    @property
    def has_more(self) -> bool:
        """Whether anything has come behind the message that was read."""
        return self.stream.has_more

    async def write(self, message: bytes) -> None:
        """Send a message, and wait until it is on its way."""
        self.stream.send((message,))
        while self.stream.waits and not self.stream.closed:
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None

    async def abort(
        self, code: StatusCode, details: str, metadata: TrailingMetadata = ()
    ) -> NoReturn:
        """End it by this status. Raises Aborted."""
        self.end(code, details, metadata)
        raise Aborted

    # -- for its stream

    @property
    def waits_for_caller(self) -> bool:
        """Whether what serves it waits for a message."""
        return self._reader is not None

    def arrived(self) -> None:
        """A message is whole, or the caller sends no more."""
        _wake(self._reader)

    def refuse(self, error: CohortError) -> None:
        """What arrives cannot be taken."""
        self._refusal = self._refusal or error
        _wake(self._reader)

    def too_large(self, size: int) -> None:
        """The message that begins is too large."""
        self.refuse(message_too_large(size, self.most_bytes))

    def drained(self) -> None:
        """All that was sent is on its way."""
        _wake(self._writer)

    def gone(self) -> None:
        """The caller has left."""
        if self._task is not None:
            self._task.cancel()

    # -- for the server

    def look(self, now: float) -> None:
        """See whether the message that is waited for comes in time."""
        if self._reader is None:
            return
        if self._arrival is None and self.stream.partial:
            self._arrival = Arrival(self.stream.received, anyone=False)
        if self._arrival is not None:
            error = self._arrival.late(now, self.stream.received)
            if error is not None:
                self.refuse(error)

    def close(self) -> None:
        """Go on: what serves it knows when the server stops."""

    def end_reading(self) -> None:
        """Refuse the call where its message is not whole: the server stops."""
        if self._reader is not None:
            self.refuse(NotReady("the server is stopping, and the message was not whole in time"))


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
