"""One request on the fast path, from the end of its headers to its response."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol, TypeVar

from app.codec import LARGE_BYTES, LONGEST_BODY
from app.codec.codec_thread import decoding
from app.data_plane import (
    SMALL_BYTES,
    Group,
    Lease,
    MemoryHold,
    Outputs,
    Sticky,
    count_bytes,
    sticky_key,
)
from app.errors import Cancelled, CohortError, InferenceFailed, NotLoaded, Overloaded
from app.refusals import known_error
from app.request_ids import REQUEST_ID, new_request_id
from app.rest.calls import JOINED_AT_ONCE, Call, Encoded, FixedHeaders, join_parts
from app.rest.compression import COMPRESS_AT_ONCE, SHORTEST_COMPRESSED, pack_body, packed_headers
from app.rest.errors import encoded_error, http_status, log_http_refusal
from app.rest.hot.heads import Head, RawHeaders
from app.rest.hot.shared import Hot
from app.rest.hot.work import WorkElsewhere
from app.rest.limits import too_large
from app.tensors import Arrays

T = TypeVar("T")

LONG_BODY_BYTES = 8192
"""Up to here no body takes long to decode, whatever is in it."""

SMALL_PART_BYTES = 4096
"""Smaller parts of a body are joined: an object for each would take many times its size."""

MAX_JOINED_BYTES = 256 * 1024
"""The size from which joined parts take no more: growing them would copy ever more bytes."""


class Connection(Protocol):
    """The connection of a request.

    certificate: The names in its client certificate; None: it has none.
    """

    hot: Hot
    loop: asyncio.AbstractEventLoop
    certificate: frozenset[str] | None

    def send(self, cycle: HotCycle, status: int, encoded: Encoded) -> None:
        """Write a response and continue with the next request."""

    def try_send_success(
        self, cycle: HotCycle, body: bytes, headers: FixedHeaders, group: Group
    ) -> bool:
        """Write a successful response with a cached head; False where only `send` can."""


class _NoEvent:
    """Takes the place of the event by which uvicorn wakes an ASGI application."""

    def set(self) -> None: ...


_NO_EVENT = _NoEvent()


class HotCycle(WorkElsewhere):
    """One request, from the end of its headers to its response.

    It takes the place of uvicorn's RequestResponseCycle, and is a SmallRequest of the data plane's
    coalescer.

    raw: Its head as it was received, where it shares `head` with others that differ; else empty.
    request_id: The request id that the caller or a load balancer sent; empty where none was.
    keep_alive: Whether the connection stays open after the response.
    at_front: Whether all earlier requests on its connection are answered.
    more_body: Whether parts of the body are still to come.
    response_complete: Whether it was answered, or needs no response any more.
    refusal: Why it is not answered otherwise, where that is known by its head.
    lease: Its hold on a version, until it is answered; None where it has none of its own.
    group: The requests that it was answered together with; None: it was answered alone.
    began: When its head was read, in seconds on the monotonic clock; 0.0 where nobody asks.
    """

    raw = b""
    request_id = b""
    at_front = False
    more_body = True
    response_complete = False
    refusal: CohortError | None = None
    group: Group | None = None
    began = 0.0
    message_event = _NO_EVENT
    _parts: list[bytes | bytearray] | None = None
    _size = 0
    _uncounted_until = SMALL_BYTES  # the size at which the budget is next told of the body
    _body = b""  # the whole body, while earlier requests are answered
    _call: Call | None = None
    lease: Lease | None = None
    _early: tuple[int, Encoded] | None = None  # a response that waits for earlier ones
    _left: float | None = None  # of the caller's time, once a model loaded on demand
    _memory: MemoryHold | None = None  # its part of the budget; None where that is little

    protocol: Connection

    def __init__(self, protocol: Connection, head: Head) -> None:
        self.protocol = protocol
        self.head = head
        self.keep_alive = head.keep_alive

    def take(self, part: bytes) -> None:
        """Take a part of the body."""
        if self._early is not None or self.response_complete:
            return  # the rest of a body that was refused
        self._size += len(part)
        parts = self._parts
        if self._size > self.protocol.hot.max_body:
            self.break_off(too_large(self.protocol.hot.max_body))
        elif self._size > self._uncounted_until and not self._hold_body(self._size):
            pass
        elif parts is None:
            self._parts = [part]
        elif len(part) >= SMALL_PART_BYTES:
            parts.append(part)
        elif len(parts[-1]) < MAX_JOINED_BYTES and isinstance(last := parts[-1], bytearray):
            last += part
        else:
            parts.append(bytearray(part))

    def read(self) -> None:
        """Join the parts of the body, which is complete, and go on with it."""
        parts, self._parts = self._parts, None
        if parts is None:
            self.arrive(b"")
        elif self._size > JOINED_AT_ONCE:
            self.more_body = False
            self._run_in(None, join_parts, parts, then=self.arrive)
        else:
            self.arrive(bytes(parts[0]) if len(parts) == 1 else b"".join(parts))

    def _hold_body(self, size: int) -> bool:
        """Count the bytes of the body; refuse the request, and return False, without room."""
        try:
            self._its_memory().add_up_to(size)
        except Overloaded as error:
            self.head.plane.refused(self.head.route.model, error)
            self.break_off(error)
            return False
        self._uncounted_until = size + SMALL_BYTES  # a body may come in chunks of one byte
        return True

    def arrive(self, body: bytes) -> None:
        """Go on with the whole body, or keep it until all earlier requests are answered."""
        self.more_body = False
        if len(body) > self._uncounted_until and not self._hold_body(len(body)):
            return
        if self.at_front:
            self._go_on(body)
        else:
            self._body = body

    def _go_on(self, body: bytes) -> None:
        """Go on with the whole body: together with others where it is small, however it came."""
        head = self.head
        if self.response_complete:
            return  # it was refused before its body was whole
        if head.rows is None or len(body) > LONGEST_BODY:
            self.proceed(body)
        else:
            head.plane.coalescer.add(self, head.rows, head.asked, body)

    def reach_front(self) -> None:
        """Go on, or send the response that is ready: all earlier requests are answered."""
        self.at_front = True
        if self._early is not None:
            self.end(*self._early)
        elif not self.more_body and not self.response_complete and self._work is None:
            body, self._body = self._body, b""
            self._go_on(body)

    def break_off(self, error: CohortError) -> None:
        """Refuse before the request was read to its end, and close the connection."""
        self._parts = None
        self.keep_alive = False
        if self._early is None:
            self.fail(error)

    def leave(self) -> None:
        """Cancel the request: the connection was lost."""
        self.disconnected = self.response_complete = True
        if self.lease is not None:
            self.lease.leave()
            self.lease.close(Cancelled("the caller left"))
        if self._work is not None:
            self._work.cancel()
        self._release()
        self._parts = None
        self._body = b""

    # -- from body to response

    def proceed(self, body: bytes) -> None:
        """Go on with the whole body, which is not parsed yet."""
        if self.response_complete:
            return
        head = self.head
        try:
            long = len(body) > LONG_BODY_BYTES
            if long and head.route.takes_long(head.headers, body):
                self._decode_on_thread(body)
                return
            try:
                call = head.read(body)
            except CohortError as error:
                self.refuse(error)
                return
            if long:
                self._submit_picked(call, (self._pick(call), None))
            else:
                self._submit(call)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a response
            self.fail(error)

    def proceed_parsed(self, document: object, body: bytes) -> None:
        """Go on with a body that the coalescer has parsed to `document`."""
        if self.response_complete:
            return
        form = self.head.rows
        if form is None:
            self.proceed(body)
            return
        try:
            try:
                call = form.call(document, body)
            except CohortError as error:
                self.refuse(error)
                return
            self._submit(call)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a response
            self.fail(error)

    def refuse(self, error: CohortError) -> None:
        """Answer with an error that was found before a version was chosen."""
        self.head.plane.refused(self.head.route.model, error)
        self.fail(error)

    def _submit(self, call: Call) -> None:
        lease = self._pick(call)
        self._submit_decoded(lease, call, call.decode(lease))

    def _submit_decoded(self, lease: Lease, call: Call, arrays: Arrays) -> None:
        if self._memory is not None:
            self._memory.set(max(self._memory.size, count_bytes(arrays.values())))
        lease.submit(arrays, self._reply, timeout=self._left or call.timeout)

    def _submit_picked(self, call: Call, picked: tuple[Lease, float | None]) -> None:
        """As `_submit`, on the codec thread where decoding takes long."""
        lease, self._left = picked
        if call.decode_work(lease) <= LARGE_BYTES:
            self._submit_decoded(lease, call, call.decode(lease))
        else:
            self._decode_later(call, lease)

    def _decode_later(self, call: Call, lease: Lease) -> None:
        lease.check_room()
        submit = partial(self._submit_decoded, lease, call)
        self._run_in(decoding(call.decode_work(lease)), call.decode, lease, then=submit)

    def _pick(self, call: Call) -> Lease:
        self._call = call
        lease = self.lease = self.head.plane.pick(
            call.model, call.version, key_of=self.key_of, label=call.label
        )
        return lease

    def key_of(self, sticky: Sticky | None) -> str | None:
        """Its value of what keeps its caller on a variant; for None, what tells its connection."""
        if sticky is None:
            return str(id(self.protocol))
        if self.request_id and sticky.header == REQUEST_ID:
            return self.request_id.decode()  # it is not among the headers
        headers = RawHeaders(self.raw) if self.raw else self.head.headers
        return sticky_key(sticky, headers.get, self._call.parameters if self._call else {})

    def _decode_on_thread(self, body: bytes) -> None:
        """Read a large body on the codec thread; choosing the version stays on the loop."""
        plane, route = self.head.plane, self.head.route
        try:
            plane.begin_reading(route.model, route.version)
        except CohortError as error:
            self.refuse(error)
            return

        def decode(call: Call) -> None:
            self._decode_later(call, self._pick(call))

        def failed(error: Exception) -> None:
            if isinstance(error, CohortError):
                self.refuse(error)
            else:
                self.fail(error)

        self._on_thread(self.head.read, body, then=decode, failed=failed, ends=plane.end_reading)

    def _reply(self, outputs: Outputs | None, error: CohortError | None) -> None:
        call, lease = self._call, self.lease
        if outputs is None or call is None or lease is None:
            self.fail(error or InferenceFailed("no answer"))
            return
        try:
            if call.is_large(outputs):
                self._its_memory().set(count_bytes(outputs))
                self._on_thread(call.encode, lease, outputs, then=self._succeed)
                return
            encoded = call.encode(lease, outputs)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the caller gets a response
            self.fail(failure)
        else:
            self._succeed(encoded)

    def succeed(self, body: bytes, headers: FixedHeaders, group: Group) -> None:
        """Answer with a successful response, whose request has been counted with its group's."""
        if not self.protocol.try_send_success(self, body, headers, group):
            self.group = group
            self._end_well(Encoded(body, headers))

    def _succeed(self, encoded: Encoded) -> None:
        if self.lease is not None:
            self.lease.close()
        self._end_well(encoded)

    def _end_well(self, encoded: Encoded) -> None:
        """Answer with a successful response, compressed where it is long and that was asked for."""
        coding, body = self.head.coding, encoded.body
        if coding is None or len(body) < SHORTEST_COMPRESSED:
            self.end(200, encoded)
            return

        def send(packed: bytes) -> None:
            self.end(200, Encoded(packed, {**encoded.headers, **packed_headers(coding)}))

        if len(body) <= COMPRESS_AT_ONCE:
            send(pack_body(coding, body))
        else:
            self._run_in(None, pack_body, coding, body, then=send)

    def fail(self, error: Exception) -> None:
        """Answer with an error, once it stays."""
        if isinstance(error, NotLoaded) and (call := self._call) is not None:
            picking = self.head.plane.pick_loaded(error, partial(self._pick, call), call.timeout)
            self._after(self.protocol.loop.create_task(picking), partial(self._submit_picked, call))
            return
        known = known_error(error)
        if self.lease is not None:
            self.lease.close(known)  # adds the model and version to it
        self.request_id = self.request_id or new_request_id()
        log_http_refusal(known, self.head.url, self.request_id.decode())
        self.end(http_status(known), encoded_error(known))

    def end(self, status: int, encoded: Encoded) -> None:
        """Answer, now or when all earlier requests are answered."""
        if self.response_complete:
            return
        if not self.at_front:
            self._early = (status, encoded)
            if len(encoded.body) > SMALL_BYTES:
                self._its_memory().set(len(encoded.body))
            return
        self.response_complete = True
        self._release()
        self.protocol.send(self, status, encoded)
        self._call = self.lease = None

    def _its_memory(self) -> MemoryHold:
        if self._memory is None:
            self._memory = self.protocol.hot.plane.memory.hold()
        return self._memory

    def _release(self) -> None:
        if self._memory is not None:
            self._memory.set(0)
            self._memory = None
