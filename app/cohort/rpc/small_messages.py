"""Small inference messages, which are answered together in batches (decision 0043).

A normal call is a task that awaits its message and its response. A call with a small message needs
no task: function calls and callbacks serve it. If its message is not suitable, the call becomes a
task, with the same response.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from cohort.auth.authority import Caller
from cohort.codec import MAX_ROWS_BODY_BYTES
from cohort.errors import CohortError, DeadlineExceeded
from cohort.http2 import SHUTTING_DOWN, Stream
from cohort.http2.heads import OK_TRAILERS, trailers
from cohort.observability.refusals import known_error
from cohort.observability.request_ids import REQUEST_ID
from cohort.observability.tracing import RequestSpan
from cohort.rpc.calls import CallerGate, request_context, start_trace
from cohort.rpc.context import StreamContext, TaskCall
from cohort.rpc.errors import details_of, grpc_status, metadata_of
from cohort.rpc.message_rows import MessageRows
from cohort.rpc.status import StatusCode
from cohort.rpc.tracing import Trace, begin_span
from cohort.rpc.transfers import Transfers
from cohort.serving import DataPlane, Group, Intake, QueuedRun, RequestContext

MIN_TIMEOUT = 0.1
"""Minimum seconds until a deadline for batching here; a task's timer watches shorter ones."""

ARRIVAL_SECONDS = 1.0
"""Approximate time after which a call without a complete message becomes a task."""

_METHOD = "ModelInfer"


class SmallMessages:
    """The path of small messages to the coalescer, which combines messages of all callers.

    plane: Answers the messages.
    gate: Checks their callers.
    transfers: Has the access log and the maximum message size.
    """

    def __init__(self, plane: DataPlane, gate: CallerGate, transfers: Transfers) -> None:
        self._transfers = transfers
        self.most_bytes = transfers.most(anyone=False)
        self._plane = plane
        self._gate = gate
        self._unary = Intake(MessageRows(streamed=False))
        self._streamed = Intake(MessageRows(streamed=True))

    def add(self, message: SmallMessage, body: bytes, *, streamed: bool) -> None:
        """Pass a message to the coalescer, or refuse it."""
        plane, intake = self._plane, self._streamed if streamed else self._unary
        if self._gate.asks_callers:
            try:
                caller, counted = self._gate.admit(message.call)
            except CohortError as error:
                message.fail(error)
                return
            message.enter(caller, counted=counted)
            plane = plane.limited_to(caller.models)
            intake = intake._replace(priority=caller.priority)
        plane.coalescer.add(message, intake, body)

    def observe(self, call: SmallCall) -> Trace | None:
        """Decide whether a call is sampled; return None if only its failure would be logged."""
        transfers = self._transfers
        if transfers.tracer is not None:
            call.traced = begin_span(transfers.tracer, _METHOD, call.sent_headers())
        sampled = call.traced is not None and call.traced.span is not None
        logged = transfers.access_log is not None
        return self.trace(call, _METHOD) if sampled or logged else None

    def trace(self, context: StreamContext, method: str) -> Trace:
        """Start the trace of a message that arrives now."""
        return start_trace(context, self._transfers, method, context.request_id)


class SmallMessage:
    """A message that may be answered in a batch.

    call: The message's call.
    trace: The message's log facts; None: it is logged only if it fails.
    caller: The message's caller; None if callers need no key, or before the check.
    response_complete: True if no client waits for its response.
    """

    trace: Trace | None = None
    caller: Caller | None = None
    response_complete = False
    run: QueuedRun | None = None
    _counted = False

    @property
    def call(self) -> StreamContext:
        """Return the message's call."""
        raise NotImplementedError

    @property
    def context(self) -> RequestContext:
        """Return the message's request context."""
        return request_context(self.call, self.caller, self.trace)

    @property
    def span(self) -> RequestSpan | None:
        """Return the message's span, or None if it is not traced."""
        return None if self.trace is None else self.trace.traced.span

    def enter(self, caller: Caller, *, counted: bool) -> None:
        """Set the caller; `counted` is True if the caller's quota counts the message."""
        self.caller, self._counted = caller, counted
        if self.trace is not None:
            self.trace.caller = caller.name

    def leave(self) -> None:
        """End the message; the quota counts it until its run no longer does work for it."""
        self.response_complete = True
        run, self.run = self.run, None
        if run is None:
            self.end_count()
        else:
            run.leave(self.end_count)

    def end_count(self, *_: object) -> None:
        """End the message's count in its caller's quota."""
        if self._counted and self.caller is not None:
            self._counted = False
            self.caller.leave()

    def proceed(self, body: bytes) -> None:
        """Serve the message outside the coalescer."""
        self.proceed_parsed(None, body)

    def proceed_parsed(self, document: object, body: bytes) -> None:
        """Serve it outside the coalescer, with the message parsed from the body."""
        raise NotImplementedError

    def refuse(self, error: CohortError) -> None:
        """Answer with an error that was found before a version was chosen."""
        self.fail(error)

    def succeed(self, body: bytes, headers: object, group: Group) -> None:
        """Answer with the message of a successful response; `headers` are unused."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """Answer with an error."""
        raise NotImplementedError


class SmallCall(StreamContext, SmallMessage):
    """A call of one message, as long as that may be small.

    serve: Serves the stream by a task.
    """

    def __init__(
        self, stream: Stream, messages: SmallMessages, serve: Callable[[Stream], TaskCall]
    ) -> None:
        super().__init__(stream, messages.most_bytes)
        self._messages = messages
        self._serve = serve
        self._since = monotonic()
        self.trace = messages.observe(self)

    @property
    def call(self) -> StreamContext:
        """Return this call."""
        return self

    # -- for its stream

    @property
    def waits_for_caller(self) -> bool:
        """Return True if the message is incomplete."""
        return not self.stream.ended

    def arrived(self) -> None:
        """Process the complete message, or the end of the caller's stream."""
        if self.response_complete:
            return
        body = self.stream.take_small(MAX_ROWS_BODY_BYTES)
        remaining = self.time_remaining()
        if body is None:
            self._hand_over().arrived()
        elif remaining is not None and remaining < MIN_TIMEOUT:
            self.proceed(body)
        else:
            self._messages.add(self, body, streamed=False)

    def refuse(self, error: CohortError) -> None:
        """End the call with an error from its stream or from the server."""
        self.fail(error)

    def too_large(self, size: int) -> None:
        """Refuse a message that is too large."""
        self._hand_over().too_large(size)

    def drained(self) -> None:
        """Do nothing: a call sends one response only."""

    def gone(self) -> None:
        """End the call: the caller has disconnected."""
        if self.trace is not None and not self.response_complete:
            self.trace.end(StatusCode.CANCELLED)
        self.leave()

    # -- for the server

    def tick(self, now: float) -> None:
        """Hand over the call if its message is late; fail it if its deadline has passed."""
        if not self.stream.ended:
            if now - self._since > ARRIVAL_SECONDS:
                self._hand_over()
        elif self.deadline is not None and now >= self.deadline:
            self.fail(DeadlineExceeded(self.deadline - self._since))

    def close(self, reason: str = SHUTTING_DOWN) -> None:
        """Do nothing: the call has one message only."""

    def end_reading(self) -> None:
        """Refuse the call if its message is incomplete, because the server stops."""
        if not self.stream.ended:
            self._hand_over().end_reading()

    # -- for the coalescer

    def proceed_parsed(self, document: object, body: bytes) -> None:
        """Serve the call by a task, with the message parsed from the body."""
        self.stream.put_back(body)
        call = self._hand_over()
        call.parsed = document
        call.arrived()

    def succeed(self, body: bytes, headers: object, group: Group) -> None:
        """Answer with the message of a successful response."""
        del headers
        if self.deadline is not None and monotonic() >= self.deadline:
            self.fail(DeadlineExceeded(self.deadline - self._since))
            return
        self.leave()
        if self.trace is not None:
            self.trace.end_shared(group, len(body))
        if self.request_id:
            block = trailers(0, "", ((REQUEST_ID, self.request_id),))
            self.stream.respond(body, block)
        else:
            self.stream.respond(body, OK_TRAILERS)

    def fail(self, error: Exception) -> None:
        """Answer with an error."""
        self.leave()
        trace = self.trace or self._messages.trace(self, _METHOD)
        ours = known_error(error)
        trace.refuse(ours)
        self.end(grpc_status(ours), details_of(ours), metadata_of(ours, trace.request_id))

    def _hand_over(self) -> TaskCall:
        self.response_complete = True
        call = self._serve(self.stream)
        call.traced = self.traced
        if self.caller is not None:
            call.admitted = self.caller
            call.when_over(self.end_count)
        return call
