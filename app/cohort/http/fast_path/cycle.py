"""One request on the fast path, from the end of its headers to its response."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from cohort.codec import MAX_ROWS_BODY_BYTES
from cohort.connections.memory import SMALL_BYTES, MemoryHold
from cohort.errors import CohortError, Overloaded
from cohort.http.calls import JOINED_AT_ONCE, Encoded, FixedHeaders, join_parts, start
from cohort.http.compression import COMPRESS_AT_ONCE, MIN_COMPRESSED, pack_body, packed_headers
from cohort.http.errors import encoded_error, encoded_refusal, http_status, log_http_refusal
from cohort.http.fast_path.heads import NOWHERE, Head, RawHeaders
from cohort.http.fast_path.shared import Hot
from cohort.http.guards.limits import too_large
from cohort.observability.refusals import known_error
from cohort.observability.request_ids import new_request_id
from cohort.observability.tracing import RequestSpan
from cohort.serving import Exchange, Group, Lease, QueuedRun, RequestContext, WorkElsewhere

SMALL_PART_BYTES = 4096
"""Size below which parts of a body are joined, because one object each takes many times as much."""

MAX_JOINED_BYTES = 256 * 1024
"""Size above which joined parts no longer grow, to avoid copying more and more bytes."""


class Connection(Protocol):
    """The connection of a request.

    certificate: The names in its client certificate, or None if it has no certificate.
    """

    hot: Hot
    certificate: frozenset[str] | None

    def send(self, cycle: HotCycle, status: int, encoded: Encoded) -> None:
        """Write a response and start the next request."""

    def trace_id_of(self, cycle: HotCycle) -> str:
        """Return the trace id of a request; "" without one."""

    def try_send_success(
        self, cycle: HotCycle, body: bytes, headers: FixedHeaders, group: Group
    ) -> bool:
        """Write a successful response with a cached head, or return False if only `send` can."""


class _NoEvent:
    """Replaces the event that uvicorn uses to wake an ASGI application."""

    def set(self) -> None: ...


_NO_EVENT = _NoEvent()


class HotCycle(WorkElsewhere):
    """One request, from the end of its headers to its response.

    It replaces uvicorn's RequestResponseCycle. For the coalescer it is a SmallRequest, for an
    Exchange it is the reply.

    raw: Its head as received, if it shares `head` with requests whose heads differ; else empty.
    request_id: The request id sent by the client or a load balancer; empty if not sent.
    keep_alive: True if the connection stays open after the response.
    at_front: True if all earlier requests on the connection are answered.
    more_body: True until the whole body has arrived.
    response_complete: True if it was answered or no longer needs an answer.
    refusal: The error that its head causes, if any.
    group: The requests that it was answered with, or None if it was answered alone.
    run: The shared run that it waits for, or None.
    began: The time its head was read, in seconds on the monotonic clock; 0.0 if it is not logged.
    span: Its span, or None if it is not traced.
    """

    raw = b""
    request_id = b""
    at_front = False
    more_body = True
    response_complete = False
    refusal: CohortError | None = None
    group: Group | None = None
    run: QueuedRun | None = None
    began = 0.0
    span: RequestSpan | None = None
    message_event = _NO_EVENT
    disconnected = False  # set by uvicorn; here `leave` is used instead
    _parts: list[bytes | bytearray] | None = None
    _size = 0
    _uncounted_until = SMALL_BYTES  # size at which the budget is next updated
    _body = b""  # the whole body, while earlier requests are answered
    _exchange: Exchange[Encoded] | None = None  # None while it may be coalesced
    _answer: Encoded
    _early: tuple[int, Encoded] | None = None  # a response that waits for earlier ones
    _memory: MemoryHold | None = None  # its share of the budget; None if small

    protocol: Connection

    def __init__(self, protocol: Connection, head: Head) -> None:
        self.protocol = protocol
        self.head = head
        self.keep_alive = head.keep_alive

    def take(self, part: bytes) -> None:
        """Add a part of the body."""
        if self._early is not None or self.response_complete:
            return  # the rest of a refused body
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
        """Join the parts of the complete body and process it."""
        parts, self._parts = self._parts, None
        if parts is None:
            self.arrive(b"")
        elif self._size > JOINED_AT_ONCE:
            self.more_body = False
            self._run_in(None, join_parts, parts, then=self.arrive)
        else:
            self.arrive(bytes(parts[0]) if len(parts) == 1 else b"".join(parts))

    def _hold_body(self, size: int) -> bool:
        """Count the bytes of the body. Without room, refuse the request and return False."""
        try:
            self._its_memory().add_up_to(size)
        except Overloaded as error:
            self.head.plane.refused(self.head.route.model, error)
            self.break_off(error)
            return False
        self._uncounted_until = size + SMALL_BYTES  # a body may arrive in chunks of one byte
        return True

    def arrive(self, body: bytes) -> None:
        """Process the whole body, or keep it until all earlier requests are answered."""
        self.more_body = False
        if len(body) > self._uncounted_until and not self._hold_body(len(body)):
            return
        if self.at_front:
            self._go_on(body)
        else:
            self._body = body

    def _go_on(self, body: bytes) -> None:
        """Process the whole body. The coalescer receives small bodies, in chunks or not."""
        head = self.head
        if self.response_complete:
            return  # it was refused before its body was complete
        if head.intake is None or len(body) > MAX_ROWS_BODY_BYTES:
            self.proceed(body)
        else:
            head.plane.coalescer.add(self, head.intake, body)

    def reach_front(self) -> None:
        """Process the body, or send a finished response, once all earlier requests are answered."""
        self.at_front = True
        if self._early is not None:
            self.respond(*self._early)
        elif not self.more_body and not self.response_complete and self._work is None:
            body, self._body = self._body, b""
            self._go_on(body)

    def break_off(self, error: CohortError) -> None:
        """Refuse a request before all of it was read, and close the connection."""
        self._parts = None
        self.keep_alive = False
        if self._early is None:
            self.fail(error)

    def leave(self) -> None:
        """Cancel the request because the connection was lost."""
        self.response_complete = True
        self._stop_work()
        run, self.run = self.run, None
        if run is None:
            self.end_count()
        else:
            run.leave(self.end_count)
        if self._exchange is not None:
            self._exchange.leave()
            self._exchange = None
        self._release()
        self._parts = None
        self._body = b""

    def end_count(self) -> None:
        """Remove the request from its caller's quota. Does nothing here; see CountedCycle."""

    # -- from body to response

    @property
    def context(self) -> RequestContext:
        """Return the sender's address, headers, ids and caller."""
        head = self.head
        return RequestContext(
            id(self.protocol),
            RawHeaders(self.raw) if self.raw else head.headers,
            self.request_id.decode(),
            head.caller,
            self.began,
            None,
            self.span,
        )

    @property
    def lease(self) -> Lease | None:
        """Return its lease on a version until it is answered, or None if it shares one."""
        return None if self._exchange is None else self._exchange.lease

    def proceed(self, body: bytes) -> None:
        """Process the whole body, which is not parsed yet."""
        if not self.response_complete:
            start(self._open(), self.head.route, self.head.headers, self.head.read, body)

    def proceed_parsed(self, document: object, body: bytes) -> None:
        """Process a body that the coalescer has parsed into `document`."""
        form = self.head.rows
        if form is None:
            self.proceed(body)
        elif not self.response_complete:
            read = partial(form.call, document)
            self._open().read(read, body, model=self.head.route.model, short=True)

    def _open(self) -> Exchange[Encoded]:
        exchange = Exchange(self.head.plane, self.context, self, self._its_memory())
        self._exchange = exchange
        return exchange

    def refuse(self, error: CohortError) -> None:
        """Answer with an error that occurred before a version was chosen."""
        self.head.plane.refused(self.head.route.model, error)
        self.fail(error)

    def part(self, answer: Encoded) -> None:
        """Store the answer. It has one part."""
        self._answer = answer

    def end(self, error: CohortError | None) -> None:
        """Send the answer or the error."""
        if error is None:
            self._end_well(self._answer)
        else:
            self.fail(error)

    def succeed(self, body: bytes, headers: FixedHeaders, group: Group) -> None:
        """Answer with success. The request was already counted with its group."""
        if not self.protocol.try_send_success(self, body, headers, group):
            self.group = group
            self._end_well(Encoded(body, headers))

    def _end_well(self, encoded: Encoded) -> None:
        """Send a successful response, compressed if it is long and the client requested it."""
        coding, body = self.head.coding, encoded.body
        if coding is None or len(body) < MIN_COMPRESSED:
            self.respond(200, encoded)
            return

        def send(packed: bytes) -> None:
            self.respond(200, Encoded(packed, {**encoded.headers, **packed_headers(coding)}))

        if len(body) <= COMPRESS_AT_ONCE:
            send(pack_body(coding, body))
        else:
            self._run_in(None, pack_body, coding, body, then=send)

    def fail(self, error: Exception) -> None:
        """Answer with an error."""
        known = known_error(error)
        if self._exchange is not None:
            self._exchange.leave(known)  # no effect if the exchange itself failed
        self.request_id = self.request_id or new_request_id()
        if self.span is not None:
            self.span.set({"error.type": known.code})
        trace_id = self.protocol.trace_id_of(self)
        log_http_refusal(known, self.head.url, self.request_id.decode(), trace_id)
        encoded = encoded_error(known)
        if self.head.route is NOWHERE:
            encoded = encoded_refusal(known, self.protocol.hot.path_of(self.head.url))
        self.respond(http_status(known), encoded)

    def respond(self, status: int, encoded: Encoded) -> None:
        """Answer now, or after all earlier requests."""
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
        self._exchange = self.group = None  # they refer to it

    def _its_memory(self) -> MemoryHold:
        if self._memory is None:
            self._memory = self.protocol.hot.plane.memory.hold()
        return self._memory

    def _release(self) -> None:
        if self._memory is not None:
            self._memory.set(0)
            self._memory = None
