"""Calls at the level of gRPC: request bytes, response bytes, and a status for every error.

Messages are parsed here because gRPC reports INTERNAL for a message that it cannot parse.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from cohort.auth.authority import Authority, Caller, Credentials, sent_keys
from cohort.connections.memory import MemoryHold
from cohort.errors import InvalidInput, forget_locals
from cohort.http2.send_queue import Part
from cohort.observability.refusals import known_error
from cohort.observability.request_ids import REQUEST_ID, new_request_id
from cohort.rpc.certificates import names_in_pem
from cohort.rpc.errors import details_of, grpc_status, metadata_of
from cohort.rpc.status import StatusCode
from cohort.rpc.tracing import ADMIN_METHODS, Trace, begin_span
from cohort.rpc.transfers import Aborted, CallFacts, Context, Transfers
from cohort.serving import RequestContext

Handler = Callable[[Context], Awaitable[Sequence[Part] | None]]
"""A function that serves a call; returns its only response, or None if it has written them all."""

Request = TypeVar("Request", bound=Message)


def parse_message(kind: type[Request], data: bytes | bytearray) -> Request:
    """Read a message. Raises InvalidInput."""
    try:
        return kind.FromString(data)  # type: ignore[arg-type]  # it accepts both
    except (DecodeError, UnicodeDecodeError):  # the pure Python protobuf raises the latter
        raise InvalidInput(f"the message is not a valid {kind.DESCRIPTOR.full_name}") from None


class RpcCall(NamedTuple):
    """An admitted call.

    context: The call itself.
    trace: The call's log facts.
    hold: The call's share of the memory budget.
    caller: The call's caller; default None: callers need no key.
    """

    context: CallFacts
    trace: Trace
    hold: MemoryHold
    caller: Caller | None = None

    @property
    def models(self) -> frozenset[str] | None:
        """Return the models that the caller may use; None: all models."""
        return None if self.caller is None else self.caller.models


class CallerGate:
    """The check of callers' keys or certificates, if callers need one."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    @property
    def asks_callers(self) -> bool:
        """Return True if callers need a key or a certificate."""
        return self._authority.asks_callers

    def check(self, context: CallFacts) -> None:
        """Return if a call's caller is known. Raises Unauthorized or NotReady."""
        if self._authority.asks_callers:
            self._authority.caller(credentials_of(context))

    def admit(self, context: CallFacts) -> tuple[Caller, bool]:
        """Return a request's caller, and True if its quota counts the request until `Caller.leave`.

        Raises Unauthorized, NotReady, or Overloaded if the caller's quota is used up.
        """
        caller = self._authority.caller(credentials_of(context))
        return caller, caller.enter()

    @contextmanager
    def enter(
        self, context: CallFacts, trace: Trace, hold: MemoryHold, admitted: Caller | None = None
    ) -> Iterator[RpcCall]:
        """Admit a request, and count it in its caller's quota until it ends.

        admitted: The caller if `admit` has already counted the request; the code that called
            `admit` then ends the count. Default None.

        Raises Unauthorized, NotReady, or Overloaded if the quota is used up.
        """
        if not self._authority.asks_callers:
            yield RpcCall(context, trace, hold)
            return
        caller, counted = admitted, False
        if caller is None:
            caller = self._authority.caller(credentials_of(context))
        trace.caller = caller.name
        if admitted is None:
            counted = caller.enter()
        try:
            yield RpcCall(context, trace, hold, caller)
        finally:
            if counted:
                caller.leave()


def credentials_of(context: CallFacts) -> Credentials:
    """Return the keys and certificate names of a call."""
    pairs = context.invocation_metadata()
    keys = sent_keys((name, value) for name, value in pairs if isinstance(value, str))
    pem = context.client_certificate()
    return Credentials(keys, None if pem is None else names_in_pem(pem))


def unary(
    method: str,
    kind: type[Request],
    respond: Callable[[Request, RpcCall], Awaitable[Message]],
    *,
    transfers: Transfers,
    gate: CallerGate | None,
) -> tuple[str, Handler]:
    """Return the name and handler of a unary call. `gate` None: callers need no key."""

    async def respond_in_bytes(data: bytes | bytearray, entered: RpcCall) -> Sequence[Part]:
        response = await respond(parse_message(kind, data), entered)
        return (response.SerializeToString(),)

    return unary_bytes(method, respond_in_bytes, transfers=transfers, gate=gate)


def unary_bytes(
    method: str,
    respond: Callable[[bytes | bytearray, RpcCall], Awaitable[Sequence[Part]]],
    *,
    transfers: Transfers,
    gate: CallerGate | None,
) -> tuple[str, Handler]:
    """Return the same as `unary`, for a `respond` that handles bytes itself."""

    async def call(context: Context) -> Sequence[Part]:
        trace = begin_call(context, transfers, method)
        try:
            with transfers.memory.hold() as hold:
                if gate is None:
                    with transfers.enter_open():
                        response = await serve(context, RpcCall(context, trace, hold))
                else:
                    with gate.enter(context, trace, hold, context.admitted) as entered:
                        response = await serve(context, entered)
        except CancelledError as error:
            trace.end(left(context))
            forget_locals(error)
            raise
        except Exception as error:
            await refuse(context, error, trace)
            raise  # never reached
        trace.end(StatusCode.OK, sum(map(len, response)))
        return response

    async def serve(context: Context, entered: RpcCall) -> Sequence[Part]:
        anyone = gate is None
        message = await transfers.receive(context, due=True, anyone=anyone)
        if message is None:
            raise InvalidInput("the call ended without a message")
        if context.has_more:
            raise InvalidInput("the call must have one message, but has more than one")
        data = await transfers.unpack(context, message, entered.hold, anyone=anyone)
        return await respond(data, entered)

    return method, call


def begin_call(context: CallFacts, transfers: Transfers, method: str) -> Trace:
    """Start a call's trace, and return its `x-request-id` in the trailing metadata."""
    request_id = context.request_id
    if not request_id and method in ADMIN_METHODS:
        request_id = new_request_id().decode()  # so that its log line identifies the call
    if request_id:
        context.set_trailing_metadata(((REQUEST_ID, request_id),))
    return start_trace(context, transfers, method, request_id)


def start_trace(context: CallFacts, transfers: Transfers, method: str, request_id: str) -> Trace:
    """Start the trace of a call; whether it is sampled is drawn once."""
    access_log, tracer = transfers.access_log, transfers.tracer
    if tracer is None:
        return Trace(method, context.peer(), request_id, access_log)
    traced = context.traced or begin_span(tracer, method, context.sent_headers())
    return Trace(method, context.peer(), request_id, access_log, traced)


def left(context: CallFacts) -> StatusCode:
    """Return the status of a cancelled call: past its deadline, or cancelled by its caller."""
    seconds = context.time_remaining()
    late = seconds is not None and seconds <= 0
    return StatusCode.DEADLINE_EXCEEDED if late else StatusCode.CANCELLED


async def refuse(context: Context, error: Exception, trace: Trace) -> None:
    """End the call with the gRPC status of `error`. Always raises.

    Clear the frames of `error`, which hold messages that no memory budget counts.
    """
    if isinstance(error, Aborted):
        raise error
    ours = known_error(error)
    trace.refuse(ours)
    forget_locals(error)
    about = metadata_of(ours, trace.request_id)
    await context.abort(grpc_status(ours), details_of(ours), about)


class MetadataHeaders:
    """A call's metadata in the form of HTTP headers.

    context: The call.
    """

    __slots__ = ("_context",)

    def __init__(self, context: CallFacts) -> None:
        self._context = context

    def get(self, key: str, /) -> str | None:
        """Return the first value of a name as text, or None if it is absent."""
        for name, value in self._context.invocation_metadata():
            if name == key:
                return value if isinstance(value, str) else value.decode("latin-1")
        return None


def request_context(
    context: CallFacts, caller: Caller | None, trace: Trace | None
) -> RequestContext:
    """Return the request context of a call, or of a message with this trace."""
    deadline, request_id = context.deadline, context.request_id
    return RequestContext(
        context.peer(),
        MetadataHeaders(context),
        request_id,
        caller,
        deadline=deadline,
        span=None if trace is None else trace.traced.span,
    )
