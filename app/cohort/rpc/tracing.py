"""The log facts of a call, collected while it is served."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple
from urllib.parse import unquote

from cohort.errors import CohortError
from cohort.observability.access_log import AccessLog, Answering, Facts
from cohort.observability.audit import AdminResult, log_admin_request
from cohort.observability.request_ids import new_request_id
from cohort.observability.tracing import (
    Carrier,
    RequestSpan,
    Tracer,
    trace_id_in,
    traceparent_in,
)
from cohort.rpc.errors import grpc_status, log_grpc_refusal
from cohort.rpc.inference_pb2 import DESCRIPTOR
from cohort.rpc.status import StatusCode
from cohort.serving import Group


class SharedRun(NamedTuple):
    """The model, version and variant of a batch that answered a message."""

    model: str
    version: str
    variant: str


ADMIN_METHODS = frozenset({"RepositoryModelLoad", "RepositoryModelUnload"})
"""Methods that only operators may call."""

_FAILED = frozenset({StatusCode.INTERNAL, StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED})


UNTRACED = frozenset(
    {"Check", "List", "Watch", "ServerLive", "ServerReady", "ServerReflectionInfo"}
)
"""Methods that load balancers and tools call, which have no spans."""

_SERVICE = DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name


class Traced(NamedTuple):
    """The trace of a call.

    span: Its span; None if it is not sampled.
    traceparent: The header that was sent; None without one.
    """

    span: RequestSpan | None = None
    traceparent: str | None = None

    @property
    def trace_id(self) -> str:
        """The trace id, sampled or not; "" if there is none."""
        return trace_id_in(self.traceparent) if self.span is None else self.span.trace_id


NOT_TRACED = Traced()


def begin_span(tracer: Tracer, method: str, carrier: Carrier) -> Traced:
    """Begin the span of a call, if it is sampled."""
    traceparent = traceparent_in(carrier)
    if method in UNTRACED or not tracer.may_sample(traceparent):
        return NOT_TRACED if traceparent is None else Traced(None, traceparent)
    about = {"rpc.system": "grpc", "rpc.service": _SERVICE, "rpc.method": method}
    return Traced(tracer.begin(f"{_SERVICE}/{method}", carrier, about), traceparent)


class Trace:
    """One call, or one message of a stream.

    lease: The lease or shared run that answered it; None if no model answered.
    caller: The caller's name; "" if callers need no key, or the caller was refused.
    action: The operator's action; default: the method.
    request_id: The id that was sent; "" if it is missing, until the call is refused.

    method: The name of the method.
    peer: The client address, which identifies the connection.
    access_log: Receives the call's line; None: no line.
    traced: Its span; default: nothing is traced.
    """

    __slots__ = (
        "_access_log", "_began", "_method", "_peer", "action", "caller", "lease", "request_id",
        "traced",
    )  # fmt: skip

    def __init__(
        self,
        method: str,
        peer: str,
        request_id: str,
        access_log: AccessLog | None,
        traced: Traced = NOT_TRACED,
    ) -> None:
        self.traced = traced
        self._method = method
        self._peer = peer  # not the call: it has a trace, and that would be a reference cycle
        self._access_log = access_log
        self._began = monotonic()
        self.request_id = request_id
        self.lease: Answering | None = None
        self.caller = ""
        self.action = method

    def of_message(self) -> Trace:
        """Start the trace of one message of this stream, which arrives now."""
        span, traceparent = self.traced
        traced = Traced(None if span is None else span.message("message"), traceparent)
        return Trace(self._method, self._peer, self.request_id, self._access_log, traced)

    def end_shared(self, group: Group, size: int) -> None:
        """Log that a batch answered the call, with a response of `size` bytes."""
        served = group.served
        self.lease = SharedRun(served.model, served.version, group.variant)
        self.end(StatusCode.OK, size)

    def refuse(self, error: CohortError) -> None:
        """Log that the call is refused or fails, and its end."""
        self.request_id = self.request_id or new_request_id().decode()
        log_grpc_refusal(error, self._method, self.request_id, self.traced.trace_id)
        self.end(grpc_status(error))

    def end(self, code: StatusCode, size: int = 0) -> None:
        """Log the call's end, with this code and a response of `size` bytes."""
        if self._method in ADMIN_METHODS:
            log_admin_request(
                self.action,
                caller=self.caller,
                address=_host(self._peer),
                request_id=self.request_id,
                result=_result(code),
                status=code.name,
            )
        self.end_span(code)
        if self._access_log is None:
            return
        facts = Facts.of(self._method, "", code.name, self.lease, self.caller)
        trace_id = self.traced.trace_id
        self._access_log.add((monotonic(), self._began, size, self.request_id, facts, trace_id))

    def end_span(self, code: StatusCode) -> None:
        """End the call's span, if it has one."""
        span = self.traced.span
        if span is not None:
            span.set({"rpc.grpc.status_code": code.value})
            span.end(failed=code in _FAILED or code is StatusCode.UNIMPLEMENTED)


def _host(peer: str) -> str:
    """Return the host of an address in gRPC's format: `ipv4:127.0.0.1:80`, `ipv6:%5B::1%5D:80`."""
    host = unquote(peer.partition(":")[2]).rpartition(":")[0]
    return host.strip("[]").partition("%")[0]


def _result(code: StatusCode) -> AdminResult:
    if code is StatusCode.OK:
        return "done"
    if code is StatusCode.CANCELLED:
        return "left"
    return "failed" if code in _FAILED else "refused"
