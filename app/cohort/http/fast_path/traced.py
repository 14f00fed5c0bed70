"""The fast path with traces. Without them, this module is not used."""

from __future__ import annotations

from typing import Any

from cohort.http.fast_path.cycle import HotCycle
from cohort.http.fast_path.heads import NOWHERE
from cohort.http.fast_path.logged import LoggedProtocol
from cohort.http.fast_path.shared import Hot
from cohort.http.guards.heads import BLANKS
from cohort.http.spans import end_http, http_attributes
from cohort.observability.access_log import AccessLog
from cohort.observability.tracing import Carrier, Tracer, trace_id_in
from cohort.serving import Group, Lease

_LINE = b"\r\ntraceparent:"


class TracedProtocol(LoggedProtocol):
    """A connection that traces each request of the fast path, and logs it if there is a log.

    FastAPI's middleware traces all other requests.
    """

    def __init__(self, hot: Hot, tracer: Tracer, *args: Any, **kwargs: Any) -> None:
        super().__init__(hot, hot.access_log or AccessLog(_drop), *args, **kwargs)
        self._tracer = tracer

    def trace_id_of(self, cycle: HotCycle) -> str:
        """Return the trace id of a request, sampled or not; "" without one."""
        span = cycle.span
        return trace_id_in(_traceparent(cycle)) if span is None else span.trace_id

    def _queue(self, cycle: HotCycle) -> None:
        if self._tracer.may_sample(_traceparent(cycle)):
            head = cycle.head
            method = "" if head.route is NOWHERE else "POST"
            cycle.span = self._tracer.begin(
                method or "HTTP", _carrier(cycle), http_attributes(method, head.url)
            )
        LoggedProtocol._queue(self, cycle)

    def _log(self, cycle: HotCycle, status: int, size: int, version: Lease | Group | None) -> None:
        if self.hot.access_log is not None:
            LoggedProtocol._log(self, cycle, status, size, version)
        if cycle.span is not None:
            head, root = cycle.head, self.hot.root
            route = head.route
            end_http(cycle.span, "POST", status, head.url, route.model, route.version, root)


def _traceparent(cycle: HotCycle) -> str | None:
    raw = cycle.raw
    if not raw:
        return cycle.head.headers.get("traceparent")
    at = raw.find(_LINE)
    if at < 0 and (at := raw.lower().find(_LINE)) < 0:
        return None
    at += len(_LINE)
    return raw[at : raw.find(b"\r\n", at)].strip(BLANKS).decode("latin-1")


def _carrier(cycle: HotCycle) -> Carrier:
    if not cycle.raw:
        return cycle.head.headers.pairs
    pairs = []
    for line in cycle.raw.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            pairs.append((name.lower(), value.strip(BLANKS)))
    return pairs


def _drop(_: object) -> None:
    """Write no lines."""
