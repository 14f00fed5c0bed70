"""Whether the process is well and ready, looked at again and again, and said where that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from time import monotonic

import structlog

from cohort.metrics import Histogram
from cohort.operating import Lifecycle, ProcessHealth
from cohort.process.startup import StartUp
from cohort.scheduling import Trouble

log = structlog.get_logger("cohort")

LAG_INTERVAL_SECONDS = 0.25
"""How often the lag of the event loop is measured, and the process's health looked at."""


class HealthWatch:
    """Measures how late the event loop is, and logs what is wrong with the process.

    ready: Whether it was ready at the last look.

    health: Collects what is wrong with it.
    lifecycle: Says whether it is ready.
    lag: Counts how late the loop was.
    start_up: Says it once it is ready.
    """

    def __init__(
        self, health: ProcessHealth, lifecycle: Lifecycle, lag: Histogram, start_up: StartUp
    ) -> None:
        self.ready = False
        self._health, self._lifecycle = health, lifecycle
        self._lag, self._start_up = lag, start_up

    @property
    def latest(self) -> Collection[Trouble]:
        """What was wrong at the last look."""
        return self._health.latest

    async def run(self) -> None:
        """Look, for ever."""
        known: set[str] = set()
        while True:
            due = monotonic() + LAG_INTERVAL_SECONDS
            await asyncio.sleep(LAG_INTERVAL_SECONDS)
            late = max(0.0, monotonic() - due)
            self._lag.observe(late)
            self._health.observe_lag(late)
            known = self._say_troubles(known)
            self._say_readiness()

    def _say_troubles(self, known: set[str]) -> set[str]:
        """Log kinds of trouble that are not known, or that none is left; give those there are."""
        troubles = self._health.troubles()
        for trouble in troubles:
            if trouble.kind not in known:
                log.error("unwell", kind=trouble.kind, reason=str(trouble))
        if known and not troubles:
            log.info("well again")
        return {trouble.kind for trouble in troubles}

    def _say_readiness(self) -> None:
        readiness = self._lifecycle.readiness()
        if readiness.ready and not self.ready:
            self._start_up.say_ready()
        elif not readiness.ready and self.ready:
            log.warning("not ready", reason=readiness.reason)
        self.ready = readiness.ready
