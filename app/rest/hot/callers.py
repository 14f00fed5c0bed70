"""Requests on the fast path whose callers are known by keys.

Who may send a head is decided when it is parsed; a cached head has its caller with it, so that a
request that begins with the same bytes costs its place in the caller's quota only.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.auth import Caller
from app.errors import CohortError, Overloaded
from app.rest.callers import ends_connection
from app.rest.calls import Encoded, Route
from app.rest.credentials import keys_in
from app.rest.hot.cycle import Connection, HotCycle
from app.rest.hot.heads import Head, SentHeaders


def begin(
    protocol: Connection,
    route: Route,
    url: bytes,
    headers: list[tuple[bytes, bytes]],
    length: int,
) -> HotCycle:
    """Make a request of the head that was parsed."""
    hot, sent = protocol.hot, SentHeaders(headers)
    if hot.authority is None:
        return HotCycle(protocol, Head(route, url, sent, length, plane=hot.plane))
    try:
        caller = hot.authority.caller(keys_in(headers))
    except CohortError as error:
        cycle = HotCycle(protocol, Head(route, url, sent, length, plane=hot.plane))
        cycle.refusal = error
        return cycle
    plane = hot.plane.seen_by(caller.models)
    return resume(protocol, Head(route, url, sent, length, plane=plane, caller=caller))


def resume(protocol: Connection, head: Head) -> HotCycle:
    """Make a request of a head whose caller is known, and count it."""
    cycle = CallersCycle(protocol, head)
    cycle.enter()
    return cycle


def refuse_by_head(cycle: HotCycle, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Answer a request by its head, before its body."""
    refusal, cycle.refusal = cycle.refusal, None
    if refusal is None:
        return
    if ends_connection(cycle.head.length, headers):
        cycle.break_off(refusal)
    else:
        cycle.fail(refusal)


class CallersCycle(HotCycle):
    """A request of a caller who is known by a key; it counts towards the caller's quota."""

    _counted: Caller | None = None  # who has to be told of the end

    def enter(self) -> None:
        """Count the request that begins, or refuse it where the caller's quota is used up."""
        caller = self.head.caller
        try:
            if caller is not None and caller.enter():
                self._counted = caller
        except Overloaded as error:
            self.refusal = error

    def arrive(self, body: bytes) -> None:
        """Go on with the whole body, or answer why not."""
        if self.refusal is None:
            super().arrive(body)
        else:
            self.more_body = False
            self.fail(self.refusal)

    def succeed(self, body: bytes) -> None:
        """Answer with the body of a successful response, whose request has been counted."""
        self._end_counted()
        super().succeed(body)

    def end(self, status: int, encoded: Encoded) -> None:
        """Answer, now or when all earlier requests are answered."""
        self._end_counted()
        super().end(status, encoded)

    def leave(self) -> None:
        """Cancel the request: the connection was lost."""
        self._end_counted()
        super().leave()

    def _end_counted(self) -> None:
        caller, self._counted = self._counted, None
        if caller is not None:
            caller.leave()
