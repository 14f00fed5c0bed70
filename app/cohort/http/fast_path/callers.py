"""Requests on the fast path whose callers are identified by keys or certificates.

A head is authenticated when it is parsed. A cached head keeps its caller, so a request with the
same bytes only has to be counted in the caller's quota.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import time

from cohort.auth.authority import Caller, Credentials
from cohort.errors import CohortError, Overloaded, Unauthorized
from cohort.http.calls import Encoded, FixedHeaders
from cohort.http.credentials import keys_in
from cohort.http.fast_path.cycle import Connection, HotCycle
from cohort.http.fast_path.heads import Head
from cohort.http.guards.callers import ends_connection
from cohort.serving import Group


def begin(protocol: Connection, head: Head) -> HotCycle:
    """Return a request for a newly parsed head, and identify its caller."""
    hot = protocol.hot
    if hot.authority is None:
        return HotCycle(protocol, head)
    try:
        keys = keys_in(head.headers.pairs)
        caller, until = hot.authority.identify(Credentials(keys, protocol.certificate))
    except CohortError as error:
        return RefusedCycle(protocol, head, error)
    head.plane = hot.plane.limited_to(caller.models)
    head.caller, head.until = caller, until
    return resume(protocol, caller, head)


def resume(protocol: Connection, caller: Caller, head: Head) -> HotCycle:
    """Return a request for a head whose caller is known, and count it in the caller's quota."""
    authority = protocol.hot.authority
    try:
        if head.until is not None and authority is not None and head.until <= time():
            raise authority.expired()
        counted = caller.enter()
    except (Overloaded, Unauthorized) as error:
        return RefusedCycle(protocol, head, error)
    return CountedCycle(protocol, head) if counted else HotCycle(protocol, head)


def refuse_by_head(cycle: HotCycle, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse a request before its body arrives, if its head is enough to refuse it."""
    refusal, cycle.refusal = cycle.refusal, None
    if refusal is None:
        return
    if ends_connection(cycle.head.length, headers):
        cycle.break_off(refusal)
    else:
        cycle.fail(refusal)


class RefusedCycle(HotCycle):
    """A request that is refused because of its head."""

    def __init__(self, protocol: Connection, head: Head, refusal: CohortError) -> None:
        super().__init__(protocol, head)
        self.refusal = refusal

    def arrive(self, body: bytes) -> None:
        """Refuse the request, unless that was done before the body arrived."""
        self.more_body = False
        refusal, self.refusal = self.refusal, None  # its traceback refers to this request
        if refusal is not None:
            self.fail(refusal)


class CountedCycle(HotCycle):
    """A request that counts in its caller's quota until it ends."""

    _counted = True

    def succeed(self, body: bytes, headers: FixedHeaders, group: Group) -> None:
        """Answer with success. The request was already counted with its group."""
        if self._counted:
            self.end_count()
        HotCycle.succeed(self, body, headers, group)  # `super` takes 0.05 µs longer

    def respond(self, status: int, encoded: Encoded) -> None:
        """Answer now, or after all earlier requests."""
        if self._counted:
            self.end_count()
        super().respond(status, encoded)

    def end_count(self) -> None:
        """Remove the request from its caller's quota."""
        if self._counted and self.head.caller is not None:
            self._counted = False
            self.head.caller.leave()
