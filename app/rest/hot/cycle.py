"""One request on the fast way, from the end of its headers to its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from app.data_plane import Lease, Outputs, Sticky
from app.errors import Cancelled, CohortError, InferenceFailed
from app.rest.calls import Call, Encoded, Route, are_large, codec_thread, find_key, is_large
from app.rest.errors import encoded_error, log_refusal, status_of
from app.rest.limits import too_large
from app.tensors import Arrays

if TYPE_CHECKING:
    from app.rest.hot.protocol import HotProtocol

log = structlog.get_logger("cohort.rest")

T = TypeVar("T")

SMALL_PART = 4096
ROOM = 256 * 1024
"""Small parts of a body are gathered: an object for each would take many times its size."""


class SentHeaders:
    """A request's headers as the parser gives them, read when asked for. Names are lower case."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self._pairs = pairs

    def get(self, key: str, /) -> str | None:
        name = key.encode()
        for one, value in self._pairs:
            if one == name:
                return value.decode("latin-1")
        return None


class _Nobody:
    """Stands where uvicorn wakes the ASGI application."""

    def set(self) -> None: ...


class HotCycle:
    """What uvicorn's protocol keeps of a request, with the whole way of its call.

    `turn` is whether all requests before it on its connection are answered.
    """

    __slots__ = (
        "_call",
        "_early",
        "_headers",
        "_lease",
        "_parts",
        "_protocol",
        "_route",
        "_size",
        "_url",
        "_work",
        "disconnected",
        "keep_alive",
        "message_event",
        "more_body",
        "response_complete",
        "turn",
    )

    def __init__(
        self,
        protocol: HotProtocol,
        route: Route,
        url: bytes,
        headers: list[tuple[bytes, bytes]],
        *,
        keep_alive: bool,
    ) -> None:
        self._protocol = protocol
        self._route = route
        self._url = url
        self._headers = SentHeaders(headers)
        self._parts: list[bytes | bytearray] = []
        self._size = 0
        self._call: Call | None = None
        self._lease: Lease | None = None
        self._early: tuple[int, Encoded] | None = None  # an answer that waits for its turn
        self._work: asyncio.Future[Any] | None = None  # what the codec's thread does for it
        self.keep_alive = keep_alive
        self.turn = False
        self.more_body = True
        self.response_complete = False
        self.disconnected = False
        self.message_event = _NOBODY

    def take(self, part: bytes) -> None:
        """A part of the body has come."""
        if self._early is not None or self.response_complete:
            return  # what still comes of a body that was refused
        self._size += len(part)
        parts = self._parts
        if self._size > self._protocol.hot.max_body:
            self.break_off(too_large(self._protocol.hot.max_body))
        elif not parts or len(part) >= SMALL_PART:
            parts.append(part)
        elif len(parts[-1]) < ROOM and isinstance(last := parts[-1], bytearray):
            last += part
        else:
            parts.append(bytearray(part))

    def break_off(self, error: CohortError) -> None:
        """Refuse before the request was read: only closing the connection ends what is to come."""
        self._parts.clear()
        self.keep_alive = False
        if self._early is None:
            self._fail(error)

    def go(self) -> None:
        """Set out, if the body is there and it is this request's turn."""
        if not self.turn or self.response_complete:
            return
        if self._early is not None:
            self._end(*self._early)
            return
        if self.more_body:
            return
        parts = self._parts
        body = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        self._parts = []
        try:
            if is_large(self._headers, body):
                self._decode_aside(body)
                return
            call = self._parse(body)
            self._submit(call, call.decode(self._pick(call)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an answer
            self._fail(error)

    def leave(self) -> None:
        """The connection is gone."""
        self.disconnected = self.response_complete = True
        if self._lease is not None:
            self._lease.leave()
            self._lease.close(Cancelled("the caller left"))
        if self._work is not None:
            self._work.cancel()
        self._parts.clear()

    @property
    def path(self) -> str:
        """The address asked for, as far as a log line shows it."""
        return self._url.decode("latin-1")[:200]

    # -- the way

    def _parse(self, body: bytes) -> Call:
        try:
            return self._route.parse(self._headers, body)
        except CohortError as error:
            self._protocol.hot.plane.refused(self._route.model, error)
            raise

    def _pick(self, call: Call) -> Lease:
        self._call = call
        self._lease = self._protocol.hot.plane.pick(
            call.model, call.version, key_of=self._key_of, label=call.label
        )
        return self._lease

    def _key_of(self, sticky: Sticky) -> str | None:
        call = self._call
        return None if call is None else find_key(self._headers, call, sticky)

    def _submit(self, call: Call, arrays: Arrays) -> None:
        if self._lease is not None:
            self._lease.submit(arrays, self._reply, timeout=call.timeout)

    def _decode_aside(self, body: bytes) -> None:
        """Read a large body on the codec's thread; choosing who answers stays on the loop."""

        def decode(call: Call) -> None:
            self._aside(
                call.decode, self._pick(call), then=lambda arrays: self._submit(call, arrays)
            )

        def refuse(error: Exception) -> None:
            if isinstance(error, CohortError):
                self._protocol.hot.plane.refused(self._route.model, error)
            self._fail(error)

        self._aside(self._route.parse, self._headers, body, then=decode, failed=refuse)

    def _aside(
        self,
        work: Callable[..., T],
        *arguments: object,
        then: Callable[[T], None],
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        def done(future: asyncio.Future[T]) -> None:
            self._work = None
            if self.disconnected:
                return
            error = future.exception()
            if isinstance(error, Exception):
                (failed or self._fail)(error)
                return
            try:
                then(future.result())
            except Exception as bug:  # noqa: BLE001 - whatever it is, the caller gets an answer
                self._fail(bug)

        work_there = self._protocol.loop.run_in_executor(codec_thread, work, *arguments)
        work_there.add_done_callback(done)
        self._work = work_there

    def _reply(self, outputs: Outputs | None, error: CohortError | None) -> None:
        call, lease = self._call, self._lease
        if outputs is None or call is None or lease is None:
            self._fail(error or InferenceFailed("no answer"))
            return
        if are_large(outputs):
            self._aside(call.encode, lease, outputs, then=self._succeed)
            return
        try:
            encoded = call.encode(lease, outputs)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the caller gets an answer
            self._fail(failure)
        else:
            self._succeed(encoded)

    def _succeed(self, encoded: Encoded) -> None:
        if self._lease is not None:
            self._lease.close()
        self._end(200, encoded)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, CohortError):
            log.error("failed", path=self.path, exc_info=error)
            error = InferenceFailed("the server failed; its log says more")
        else:
            log_refusal(error, self.path)
        if self._lease is not None:
            self._lease.close(error)
        self._end(status_of(error), encoded_error(error))

    def _end(self, status: int, encoded: Encoded) -> None:
        if self.response_complete:
            return
        if not self.turn:
            self._early = (status, encoded)
            return
        self.response_complete = True
        self._call = self._lease = None
        self._protocol.send(self, status, encoded)


_NOBODY = _Nobody()
