"""What the logs say of a call, gathered while it is served."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple
from urllib.parse import unquote

from cohort.errors import CohortError
from cohort.observability.access_log import AccessLog, Answering, Facts
from cohort.observability.audit import AdminResult, log_admin_request
from cohort.observability.request_ids import new_request_id
from cohort.rpc.errors import grpc_status, log_grpc_refusal
from cohort.rpc.status import StatusCode
from cohort.serving import Group


class SharedRun(NamedTuple):
    """What answered a message with others."""

    model: str
    version: str
    variant: str


ADMIN_METHODS = frozenset({"RepositoryModelLoad", "RepositoryModelUnload"})
"""Calls that are an operator's."""

_FAILED = frozenset({StatusCode.INTERNAL, StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED})


class Trace:
    """One call, or one message of a stream.

    lease: What answered it; None where nothing did.
    caller: The name of its caller; "": callers need no key, or it was refused.
    action: What an operator asked for; default: the method.
    request_id: The id that was sent; "" until the call is refused where none was.

    method: The name of the method.
    peer: What tells the call's connection from others.
    access_log: Takes its line; None: there is none.
    """

    __slots__ = (
        "_access_log", "_began", "_method", "_peer", "action", "caller", "lease", "request_id",
    )  # fmt: skip

    def __init__(
        self, method: str, peer: str, request_id: str, access_log: AccessLog | None
    ) -> None:
        self._method = method
        self._peer = peer  # not the call: it has a trace, and that would be a reference cycle
        self._access_log = access_log
        self._began = monotonic()
        self.request_id = request_id
        self.lease: Answering | None = None
        self.caller = ""
        self.action = method

    def of_message(self) -> Trace:
        """For one message of this stream, which arrives now."""
        return Trace(self._method, self._peer, self.request_id, self._access_log)

    def end_shared(self, group: Group, size: int) -> None:
        """Log that it was answered with others, by a response of `size` bytes."""
        served = group.served
        self.lease = SharedRun(served.model, served.version, group.variant)
        self.end(StatusCode.OK, size)

    def refuse(self, error: CohortError) -> None:
        """Log that the call is refused or fails, and how it ends."""
        self.request_id = self.request_id or new_request_id().decode()
        log_grpc_refusal(error, self._method, self.request_id)
        self.end(grpc_status(error))

    def end(self, code: StatusCode, size: int = 0) -> None:
        """Log how the call ends: with this code, and a response of `size` bytes."""
        if self._method in ADMIN_METHODS:
            log_admin_request(
                self.action,
                caller=self.caller,
                address=_host(self._peer),
                request_id=self.request_id,
                result=_result(code),
                status=code.name,
            )
        if self._access_log is None:
            return
        facts = Facts.of(self._method, "", code.name, self.lease, self.caller)
        self._access_log.add((monotonic(), self._began, size, self.request_id, facts))


def _host(peer: str) -> str:
    """The host of an address as gRPC writes it: `ipv4:127.0.0.1:80`, `ipv6:%5B::1%5D:80`."""
    host = unquote(peer.partition(":")[2]).rpartition(":")[0]
    return host.strip("[]").partition("%")[0]


def _result(code: StatusCode) -> AdminResult:
    if code is StatusCode.OK:
        return "done"
    if code is StatusCode.CANCELLED:
        return "left"
    return "failed" if code in _FAILED else "refused"
