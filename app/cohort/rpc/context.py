"""A call that a task serves, with awaitable operations for its handler."""

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
from cohort.http2 import SHUTTING_DOWN, SentMessage, Stream
from cohort.http2.frames import ErrorCode
from cohort.http2.heads import trailers
from cohort.http2.send_queue import Part
from cohort.observability.tracing import Carrier
from cohort.rpc.errors import TrailingMetadata
from cohort.rpc.status import StatusCode
from cohort.rpc.tracing import Traced
from cohort.rpc.transfers import OPEN_SECONDS, Aborted, CallMetadata, message_too_large

log = structlog.get_logger("cohort.rpc")

ServeCall = Callable[["TaskCall"], Awaitable[Sequence[Part] | None]]
"""A function that serves a call; returns its only response, or None if it has written them all."""


class Arrival:
    """The time limit of a message that a call waits for, and its minimum transfer rate."""

    __slots__ = ("_anyone", "_due", "_mark")

    def __init__(self, received: int, *, anyone: bool) -> None:
        self._anyone = anyone
        self._due = monotonic() + (OPEN_SECONDS if anyone else WINDOW_SECONDS)
        self._mark = received

    def late(self, now: float, received: int) -> InvalidInput | None:
        """Return the call's error if its message is late; `received` are its bytes so far."""
        if now < self._due:
            return None
        if self._anyone:
            return InvalidInput(f"no message arrived within {OPEN_SECONDS:g} s")
        if received - self._mark < MIN_BYTES_PER_SECOND * WINDOW_SECONDS:
            return InvalidInput(BODY_TOO_SLOW)
        self._due, self._mark = now + WINDOW_SECONDS, received
        return None


class StreamContext:
    """The metadata and deadline of a stream's call."""

    parsed: object = None
    traced: Traced | None = None

    def __init__(self, stream: Stream, most_bytes: int) -> None:
        self.stream = stream
        self.most_bytes = most_bytes
        self.deadline = stream.deadline
        self.trailing: TrailingMetadata = ()

    @property
    def encoding(self) -> str:
        """Return the compression of the call's compressed messages."""
        return self.stream.head.call.encoding

    @property
    def request_id(self) -> str:
        """Return the `x-request-id` that was sent, or "" if it is missing or invalid."""
        return self.stream.head.request_id

    def peer(self) -> str:
        """Return the client address in gRPC's format, which identifies the connection."""
        return self.stream.connection.peer

    def invocation_metadata(self) -> CallMetadata:
        """Return the metadata that the caller sent."""
        return self.stream.head.metadata()

    def sent_headers(self) -> Carrier:
        """Return the metadata that the caller sent, as it was sent."""
        return self.stream.head.rest

    def client_certificate(self) -> bytes | None:
        """Return the caller's certificate in PEM, or None."""
        der = self.stream.connection.certificate
        return None if der is None else ssl.DER_cert_to_PEM_cert(der).encode()

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline, or None without one."""
        return None if self.deadline is None else self.deadline - monotonic()

    def set_trailing_metadata(self, metadata: TrailingMetadata) -> None:
        """Set the trailing metadata."""
        self.trailing = metadata

    def end(self, code: StatusCode, details: str = "", metadata: TrailingMetadata = ()) -> None:
        """End the call with this status, after the messages in the send queue."""
        self.stream.finish(code, details, metadata or self.trailing)


class TaskCall(StreamContext):
    """A call that is served by a task.

    admitted: Its caller if that caller's quota already counts the call; default None.
    """

    admitted: Caller | None = None

    def __init__(self, stream: Stream, serve: ServeCall, most_bytes: int) -> None:
        super().__init__(stream, most_bytes)
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._refusal: CohortError | None = None
        self._has_read = False
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
        """Clean up after the task ended or was cancelled, perhaps before it began."""
        self._task = self._refusal = None  # errors reference this call through their frames
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
        """Call `then` when the task ends, on success or failure; call this just after it began."""
        if self._task is not None:
            self._task.add_done_callback(then)

    # -- for the handler

    async def read(self, *, due: bool, anyone: bool) -> SentMessage | None:
        """Return the next message, or None at the end. Raises the error given to `refuse`."""
        stream = self.stream
        if due:
            self._arrival = Arrival(stream.received, anyone=anyone)
        try:
            while True:
                message = stream.take() if self._refusal is None else None
                if message is not None:
                    self._has_read = True
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
        """Return True if more bytes have arrived after the message that was read."""
        return self.stream.has_more

    async def write(self, message: bytes) -> None:
        """Send a message, and wait until the send queue is empty."""
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
        """End the call with this status. Raises Aborted."""
        self.end(code, details, metadata)
        raise Aborted

    # -- for its stream

    @property
    def waits_for_caller(self) -> bool:
        """Return True if the handler waits for a message, or will once its task starts."""
        stream = self.stream
        whole = stream.has_more and not stream.partial
        return self._reader is not None or not (self._has_read or stream.ended or whole)

    def arrived(self) -> None:
        """Wake the handler: a message is complete, or the caller has ended its stream."""
        _wake(self._reader)

    def refuse(self, error: CohortError) -> None:
        """Make the handler's `read` raise an error."""
        self._refusal = self._refusal or error
        _wake(self._reader)

    def too_large(self, size: int) -> None:
        """Refuse a message that is too large."""
        self.refuse(message_too_large(size, self.most_bytes))

    def drained(self) -> None:
        """Wake a writer: the send queue is empty."""
        _wake(self._writer)

    def gone(self) -> None:
        """Cancel the task: the caller has disconnected."""
        if self._task is not None:
            self._task.cancel()

    # -- for the server

    def tick(self, now: float) -> None:
        """Refuse the call if the awaited message is late."""
        if self._reader is None:
            return
        if self._arrival is None and self.stream.partial:
            self._arrival = Arrival(self.stream.received, anyone=False)
        if self._arrival is not None:
            error = self._arrival.late(now, self.stream.received)
            if error is not None:
                self.refuse(error)

    def close(self, reason: str = SHUTTING_DOWN) -> None:
        """Do nothing: the handler ends on its own when the server stops."""

    def end_reading(self) -> None:
        """Refuse the call if it still waits for a message, because the server stops."""
        if self._reader is not None:
            self.refuse(NotReady("the server is stopping, and the message was not whole in time"))


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
