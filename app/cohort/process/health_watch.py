"""Checks the health and readiness of the process repeatedly, and logs changes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from time import monotonic

import structlog

from cohort.metrics import Histogram
from cohort.operating import Lifecycle, ProcessHealth
from cohort.process.startup import StartUp
from cohort.scheduling import Fault

log = structlog.get_logger("cohort")

LAG_INTERVAL_SECONDS = 0.25
"""Interval of measurements of the event loop's lag, and of health checks."""


class HealthWatch:
    """Measures the lag of the event loop, and logs faults of the process.

    ready: True if the process was ready at the last check.

    health: Collects faults.
    lifecycle: Determines readiness.
    lag: Counts the lags.
    start_up: Reports that the process is ready.
    """

    def __init__(
        self, health: ProcessHealth, lifecycle: Lifecycle, lag: Histogram, start_up: StartUp
    ) -> None:
        self.ready = False
        self._health, self._lifecycle = health, lifecycle
        self._lag, self._start_up = lag, start_up

    @property
    def latest(self) -> Collection[Fault]:
        """The faults of the last check."""
        return self._health.latest

    async def run(self) -> None:
        """Check repeatedly, without end."""
        known: set[str] = set()
        while True:
            due = monotonic() + LAG_INTERVAL_SECONDS
            await asyncio.sleep(LAG_INTERVAL_SECONDS)
            late = max(0.0, monotonic() - due)
            self._lag.observe(late)
            self._health.observe_lag(late)
            known = self._log_faults(known)
            self._log_readiness()

    def _log_faults(self, known: set[str]) -> set[str]:
        """Log new kinds of faults, or the end of all faults; return the current kinds."""
        faults = self._health.faults()
        for fault in faults:
            if fault.kind not in known:
                log.error("unwell", kind=fault.kind, reason=str(fault))
        if known and not faults:
            log.info("well again")
        return {fault.kind for fault in faults}

    def _log_readiness(self) -> None:
        readiness = self._lifecycle.readiness()
        if readiness.ready and not self.ready:
            self._start_up.report_ready()
        elif not readiness.ready and self.ready:
            log.warning("not ready", reason=readiness.reason)
        self.ready = readiness.ready
