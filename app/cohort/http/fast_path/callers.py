"""Requests on the fast path whose callers are known by keys or certificates.

Who may send a head is decided when it is parsed; a cached head has its caller with it, so that a
request that begins with the same bytes costs its place in the caller's quota only.
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
    """Make a request of a head that was parsed, and whose caller is not known yet."""
    hot = protocol.hot
    if hot.authority is None:
        return HotCycle(protocol, head)
    try:
        keys = keys_in(head.headers.pairs)
        caller, until = hot.authority.identify(Credentials(keys, protocol.certificate))
    except CohortError as error:
        return RefusedCycle(protocol, head, error)
    head.plane = hot.plane.seen_by(caller.models)
    head.caller, head.until = caller, until
    return resume(protocol, caller, head)


def resume(protocol: Connection, caller: Caller, head: Head) -> HotCycle:
    """Make a request of a head whose caller is known, and count it."""
    authority = protocol.hot.authority
    try:
        if head.until is not None and authority is not None and head.until <= time():
            raise authority.expired()
        counted = caller.enter()
    except (Overloaded, Unauthorized) as error:
        return RefusedCycle(protocol, head, error)
    return CountedCycle(protocol, head) if counted else HotCycle(protocol, head)


def refuse_by_head(cycle: HotCycle, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Answer a request by its head, before its body."""
    refusal, cycle.refusal = cycle.refusal, None
    if refusal is None:
        return
    if ends_connection(cycle.head.length, headers):
        cycle.break_off(refusal)
    else:
        cycle.fail(refusal)


class RefusedCycle(HotCycle):
    """A request that is refused by its head."""

    def __init__(self, protocol: Connection, head: Head, refusal: CohortError) -> None:
        super().__init__(protocol, head)
        self.refusal = refusal

    def arrive(self, body: bytes) -> None:
        """Answer why not, unless that was answered before the body."""
        self.more_body = False
        if self.refusal is not None:
            self.fail(self.refusal)


class CountedCycle(HotCycle):
    """A request whose caller has to be told of its end."""

    _counted = True

    def succeed(self, body: bytes, headers: FixedHeaders, group: Group) -> None:
        """Answer with a successful response, whose request has been counted with its group's."""
        if self._counted:
            self.end_count()
        HotCycle.succeed(self, body, headers, group)  # `super` takes 0.05 µs longer

    def respond(self, status: int, encoded: Encoded) -> None:
        """Answer, now or when all earlier requests are answered."""
        if self._counted:
            self.end_count()
        super().respond(status, encoded)

    def end_count(self) -> None:
        """Its caller counts it no more."""
        if self._counted and self.head.caller is not None:
            self._counted = False
            self.head.caller.leave()
