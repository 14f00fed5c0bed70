"""The fast path with an access log. Without one, this module is not used."""

from __future__ import annotations

from time import monotonic
from typing import Any

from cohort.http.calls import Encoded, FixedHeaders
from cohort.http.fast_path.cycle import HotCycle
from cohort.http.fast_path.heads import NOWHERE
from cohort.http.fast_path.protocol import HotProtocol
from cohort.http.fast_path.shared import Hot
from cohort.observability.access_log import CALLER_LEFT, MAX_PATH, AccessLog, Facts
from cohort.serving import Group, Lease


class LoggedProtocol(HotProtocol):
    """A connection that logs each request of the fast path.

    FastAPI's middleware logs all other requests.
    """

    def __init__(self, hot: Hot, access_log: AccessLog, *args: Any, **kwargs: Any) -> None:
        super().__init__(hot, *args, **kwargs)
        self._access_log = access_log
        self._facts = Facts("", "", 0)  # facts of the previous request; most others have the same
        self._follow_from: object = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Log the open requests as disconnected, and cancel them."""
        for cycle in self._open_cycles():
            if isinstance(cycle, HotCycle):
                self._log(cycle, CALLER_LEFT, 0, cycle.lease or cycle.group)
        super().connection_lost(exc)

    def try_send_success(
        self, cycle: HotCycle, body: bytes, headers: FixedHeaders, group: Group
    ) -> bool:
        """Write and log a successful response, or return False if only `send` can."""
        if not HotProtocol.try_send_success(self, cycle, body, headers, group):
            return False
        self._log(cycle, 200, len(body), group)
        return True

    def send(self, cycle: HotCycle, status: int, encoded: Encoded) -> None:
        """Log and write a response."""
        gone = self._ended or self.transport.is_closing()
        size, version = len(encoded.body), cycle.lease or cycle.group
        self._log(cycle, CALLER_LEFT if gone else status, 0 if gone else size, version)
        super().send(cycle, status, encoded)

    def _queue(self, cycle: HotCycle) -> None:
        cycle.began = monotonic()  # uvloop's clock counts milliseconds
        HotProtocol._queue(self, cycle)

    def _log(self, cycle: HotCycle, status: int, size: int, version: Lease | Group | None) -> None:
        """Log a request and the version that answered it, if any."""
        head, served, variant = cycle.head, None, ""
        if version is not None:
            served, variant = version.served, version.variant
        if (follow_from := (head, served, variant, status)) != self._follow_from:
            self._follow_from = follow_from
            self._facts = Facts(
                "" if head.route is NOWHERE else "POST",
                head.url[: MAX_PATH + 1],  # longer URLs are cut to save memory
                status,
                "" if served is None else served.model,
                "" if served is None else served.version,
                variant,
                "" if head.caller is None else head.caller.name,
            )
        trace_id = self.trace_id_of(cycle)
        self._access_log.add(
            (monotonic(), cycle.began, size, cycle.request_id, self._facts, trace_id)
        )
