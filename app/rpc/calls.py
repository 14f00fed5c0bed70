"""Calls as gRPC sees them: bytes in, bytes out, and every error with its status.

Messages are parsed here and not by gRPC, which gives INTERNAL for one that it cannot parse.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from traceback import clear_frames
from typing import NamedTuple, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc import aio

from app.auth import Authority, Credentials, sent_keys
from app.data_plane import MemoryHold
from app.errors import InvalidInput
from app.refusals import known_error
from app.request_ids import REQUEST_ID, new_request_id, readable
from app.rpc.certificates import names_in_pem
from app.rpc.errors import details_of, grpc_status, metadata_of
from app.rpc.tracing import ADMIN_METHODS, Trace
from app.rpc.transfers import CallMetadata, Context, Transfers

Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"  # subscripts are for checkers
Request = TypeVar("Request", bound=Message)


def parse_message(kind: type[Request], data: bytes) -> Request:
    """Read a message. Raises InvalidInput."""
    try:
        return kind.FromString(data)
    except (DecodeError, UnicodeDecodeError):  # the latter by protobuf in pure Python
        raise InvalidInput(f"the message is not a valid {kind.DESCRIPTOR.full_name}") from None


class RpcCall(NamedTuple):
    """A call that was let in.

    context: gRPC's own of it.
    trace: What the logs say of it.
    models: The models that its caller may see; None: all of them.
    hold: What it holds of the process's memory.
    priority: The priority of its caller; default 0.
    """

    context: Context
    trace: Trace
    models: frozenset[str] | None
    hold: MemoryHold
    priority: int = 0


class CallerGate:
    """Lets calls in by their callers' keys or certificates, where callers need one."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    def check(self, context: Context) -> None:
        """Return if a call's caller is known. Raises Unauthorized or NotReady."""
        if self._authority.asks_callers:
            self._authority.caller(credentials_of(context))

    @contextmanager
    def enter(self, context: Context, trace: Trace, hold: MemoryHold) -> Iterator[RpcCall]:
        """Hold a request's place in its caller's quota, beside its memory.

        Raises Unauthorized, NotReady, or Overloaded where the quota is used up.
        """
        if not self._authority.asks_callers:
            yield RpcCall(context, trace, None, hold)
            return
        caller = self._authority.caller(credentials_of(context))
        trace.caller = caller.name
        counted = caller.enter()
        try:
            yield RpcCall(context, trace, caller.models, hold, caller.priority)
        finally:
            if counted:
                caller.leave()


def credentials_of(context: Context) -> Credentials:
    """What a call carries to say whose it is."""
    pairs = context.invocation_metadata() or ()
    keys = sent_keys((name, value) for name, value in pairs if isinstance(value, str))
    pem = context.auth_context().get("x509_pem_cert")
    return Credentials(keys, names_in_pem(next(iter(pem))) if pem else None)


def unary(
    method: str,
    kind: type[Request],
    respond: Callable[[Request, RpcCall], Awaitable[Message]],
    *,
    transfers: Transfers,
    gate: CallerGate | None,
) -> tuple[str, Handler]:
    """A call of one request and one response, under its name. `gate` None: open to all."""

    async def respond_in_bytes(data: bytes, entered: RpcCall) -> bytes:
        response = await respond(parse_message(kind, data), entered)
        return response.SerializeToString()

    return unary_bytes(method, respond_in_bytes, transfers=transfers, gate=gate)


def unary_bytes(
    method: str,
    respond: Callable[[bytes, RpcCall], Awaitable[bytes]],
    *,
    transfers: Transfers,
    gate: CallerGate | None,
) -> tuple[str, Handler]:
    """As `unary`, where `respond` reads the request and writes the response itself.

    To gRPC it is a call of many requests: it does not receive them before we ask for them.
    """

    async def call(requests: object, context: Context) -> bytes:
        del requests
        trace = begin_call(context, transfers, method)
        try:
            with transfers.memory.hold() as hold:
                if gate is None:
                    with transfers.enter_open():
                        response = await serve(RpcCall(context, trace, None, hold))
                else:
                    with gate.enter(context, trace, hold) as entered:
                        response = await serve(entered)
        except CancelledError:
            trace.end(left(context))
            raise
        except Exception as error:
            await refuse(context, error, trace)
            raise  # never reached
        transfers.hold_response(context, len(response))
        trace.end(grpc.StatusCode.OK, len(response))
        return response

    async def serve(entered: RpcCall) -> bytes:
        anyone = gate is None
        data = await transfers.receive(entered.context, due=True, anyone=anyone)
        if data is None:
            raise InvalidInput("the call ended without a message that this server takes")
        data = await transfers.unpack(data, entered.hold, anyone=anyone)
        return await respond(data, entered)

    return method, grpc.stream_unary_rpc_method_handler(call)


def begin_call(context: Context, transfers: Transfers, method: str) -> Trace:
    """Note what a call came with, and give its `x-request-id` back."""
    metadata = context.invocation_metadata() or ()
    transfers.begin(context, metadata)
    request_id = _id_in(metadata)
    if not request_id and method in ADMIN_METHODS:
        request_id = new_request_id().decode()  # whoever reads its line can find the call
    if request_id:
        context.set_trailing_metadata(((REQUEST_ID, request_id),))
    return Trace(method, context, request_id, transfers.access_log)


def left(context: Context) -> grpc.StatusCode:
    """What becomes of a call that was cancelled: its time is over, or its caller has left."""
    seconds: float | None = context.time_remaining()  # the stubs know of no call without
    late = seconds is not None and seconds <= 0
    return grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED


async def refuse(context: Context, error: Exception, trace: Trace) -> None:
    """End the call with what `error` is in gRPC. Always raises.

    gRPC never lets go of what is raised, with all that its frames hold: those of `error` forget it.
    """
    if isinstance(error, aio.AbortError):
        raise error
    ours = known_error(error)
    trace.refuse(ours)
    _forget_locals(error)
    about = metadata_of(ours, trace.request_id)
    await context.abort(grpc_status(ours), details_of(ours), about)


def _forget_locals(error: BaseException | None) -> None:
    """Let go of what the frames of an error hold: messages that no budget counts any more."""
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__context__


def _id_in(metadata: CallMetadata) -> str:
    """The `x-request-id` of a call's metadata; "" where there is none that can be passed on."""
    sent = find_metadata(metadata, REQUEST_ID)
    return "" if sent is None else readable(sent.encode("latin-1", "replace")).decode()


def find_metadata(metadata: CallMetadata, name: str) -> str | None:
    """What a call carries first under `name`, as text; None where it does not."""
    for key, value in metadata:
        if key == name:
            return value if isinstance(value, str) else value.decode("latin-1")
    return None
