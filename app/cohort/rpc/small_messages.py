"""Small inference messages on their way to others, with which they are answered (decision 0043).

A call of grpc's own kind is a task that awaits its message and its answer. One whose message is
small is served by calls and callbacks alone, unless it turns out to be another: then it is served
as all others are, with the same response.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from cohort.auth.authority import Caller
from cohort.codec import LONGEST_BODY
from cohort.errors import CohortError, DeadlineExceeded
from cohort.http2 import Stream
from cohort.http2.heads import OK_TRAILERS, trailers
from cohort.observability.refusals import known_error
from cohort.observability.request_ids import REQUEST_ID
from cohort.rpc.calls import CallerGate, request_context
from cohort.rpc.context import StreamContext, TaskCall
from cohort.rpc.errors import details_of, grpc_status, metadata_of
from cohort.rpc.message_rows import MessageRows
from cohort.rpc.status import StatusCode
from cohort.rpc.tracing import Trace
from cohort.rpc.transfers import Transfers
from cohort.serving import DataPlane, Group, Intake, QueuedRun, RequestContext

MIN_TIMEOUT = 0.1
"""Seconds until a deadline from which a call may wait for others; a timer watches shorter ones."""

ARRIVAL_SECONDS = 1.0
"""How long a message may take before its call is watched as all others are, about."""

_METHOD = "ModelInfer"


class SmallMessages:
    """Gives small messages to the coalescer that their callers share.

    plane: Answers them.
    gate: Lets them in.
    transfers: Has the access log, and says how large a message may be.
    """

    def __init__(self, plane: DataPlane, gate: CallerGate, transfers: Transfers) -> None:
        self.access_log = transfers.access_log
        self.most_bytes = transfers.most(anyone=False)
        self._plane = plane
        self._gate = gate
        self._unary = Intake(MessageRows(streamed=False))
        self._streamed = Intake(MessageRows(streamed=True))

    def add(self, message: SmallMessage, body: bytes, *, streamed: bool) -> None:
        """Have it answered with others, or refused."""
        plane, intake = self._plane, self._streamed if streamed else self._unary
        if self._gate.asks_callers:
            try:
                caller, counted = self._gate.admit(message.call)
            except CohortError as error:
                message.fail(error)
                return
            message.enter(caller, counted=counted)
            plane = plane.seen_by(caller.models)
            intake = intake._replace(priority=caller.priority)
        plane.coalescer.add(message, intake, body)

    def trace(self, context: StreamContext, method: str) -> Trace:
        """What the logs say of a message that arrives now."""
        return Trace(method, context.peer(), context.request_id, self.access_log)


class SmallMessage:
    """A message that may be answered with others.

    call: What it came on.
    trace: What the logs say of it; None: they say nothing, unless it fails.
    caller: Whose it is; None: callers need no key, or it is not known yet.
    response_complete: Whether nobody waits for its answer any more.
    """

    trace: Trace | None = None
    caller: Caller | None = None
    response_complete = False
    run: QueuedRun | None = None
    _counted = False

    @property
    def call(self) -> StreamContext:
        """What it came on."""
        raise NotImplementedError

    @property
    def context(self) -> RequestContext:
        """Who sends it."""
        return request_context(self.call, self.caller)

    def enter(self, caller: Caller, *, counted: bool) -> None:
        """Its caller is known, and counts it where there is a quota."""
        self.caller, self._counted = caller, counted
        if self.trace is not None:
            self.trace.caller = caller.name

    def leave(self) -> None:
        """It is over, and counted until no work is done for it."""
        self.response_complete = True
        run, self.run = self.run, None
        if run is None:
            self.end_count()
        else:
            run.leave(self.end_count)

    def end_count(self, *_: object) -> None:
        """Its caller counts it no more."""
        if self._counted and self.caller is not None:
            self._counted = False
            self.caller.leave()

    def proceed(self, body: bytes) -> None:
        """Have it served as all others are."""
        self.proceed_parsed(None, body)

    def proceed_parsed(self, document: object, body: bytes) -> None:
        """The same, with the message that the body was parsed to."""
        raise NotImplementedError

    def refuse(self, error: CohortError) -> None:
        """Answer with an error that was found before a version was chosen."""
        self.fail(error)

    def succeed(self, body: bytes, headers: object, group: Group) -> None:
        """Answer with the message of a successful response; there are no headers."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """Answer with an error."""
        raise NotImplementedError


class SmallCall(StreamContext, SmallMessage):
    """A call of one message, while that may be small.

    serve: Has its stream served as all others are.
    """

    def __init__(
        self, stream: Stream, messages: SmallMessages, serve: Callable[[Stream], TaskCall]
    ) -> None:
        super().__init__(stream, messages.most_bytes)
        self._messages = messages
        self._serve = serve
        self._since = monotonic()
        if messages.access_log is not None:
            self.trace = messages.trace(self, _METHOD)

    @property
    def call(self) -> StreamContext:
        """Itself."""
        return self

    # -- for its stream

    @property
    def waits_for_caller(self) -> bool:
        """Whether its message is not whole."""
        return not self.stream.ended

    def arrived(self) -> None:
        """Its message is whole, or its caller sends no more."""
        if self.response_complete:
            return
        body = self.stream.take_small(LONGEST_BODY)
        remaining = self.time_remaining()
        if body is None:
            self._hand_over().arrived()
        elif remaining is not None and remaining < MIN_TIMEOUT:
            self.proceed(body)
        else:
            self._messages.add(self, body, streamed=False)

    def refuse(self, error: CohortError) -> None:
        """What arrives cannot be taken, or what has arrived."""
        self.fail(error)

    def too_large(self, size: int) -> None:
        """The message that begins is too large."""
        self._hand_over().too_large(size)

    def drained(self) -> None:
        """All that was sent is on its way."""

    def gone(self) -> None:
        """The caller has left."""
        if self.trace is not None and not self.response_complete:
            self.trace.end(StatusCode.CANCELLED)
        self.leave()

    # -- for the server

    def look(self, now: float) -> None:
        """See whether its message, or its deadline, is late."""
        if not self.stream.ended:
            if now - self._since > ARRIVAL_SECONDS:
                self._hand_over()
        elif self.deadline is not None and now >= self.deadline:
            self.fail(DeadlineExceeded(self.deadline - self._since))

    def close(self) -> None:
        """Go on: it has one message only."""

    def end_reading(self) -> None:
        """The server stops, and waits for no message."""
        if not self.stream.ended:
            self._hand_over().end_reading()

    # -- for the coalescer

    def proceed_parsed(self, document: object, body: bytes) -> None:
        """The same, with the message that the body was parsed to."""
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
        if self.caller is not None:
            call.admitted = self.caller
            call.when_over(self.end_count)
        return call
