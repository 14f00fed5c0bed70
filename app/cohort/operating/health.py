"""The health of the process: its devices, the threads of its runs, its event loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from cohort.scheduling import Fault

STUCK_SECONDS = 10.0
"""Time that an unwanted run may continue. It was stopped, which takes effect between nodes."""

LAG_SECONDS = 0.5
"""Maximum delay of the event loop in a check."""

LAG_CHECKS = 8
"""Consecutive checks that must find the loop late: other causes can delay a single check."""


class ProcessHealth:
    """Collects the faults of the process. Used on the event loop, except for `latest`.

    latest: The faults of the last check.

    devices: Returns the faults of devices and threads: `Scheduler.faults`. Its argument is the
        time that an unwanted run may continue, in seconds.
    """

    def __init__(
        self,
        devices: Callable[[float], Iterable[Fault]],
    ) -> None:
        self._devices = devices
        self._lags: deque[float] = deque(maxlen=LAG_CHECKS)
        self.latest: list[Fault] = []

    def observe_lag(self, seconds: float) -> None:
        """Record the current delay of the event loop."""
        self._lags.append(seconds)

    def faults(self) -> list[Fault]:
        """Return the current faults; empty if the process is healthy."""
        found = list(self._devices(STUCK_SECONDS))
        if len(self._lags) == LAG_CHECKS and (least := min(self._lags)) > LAG_SECONDS:
            found.append(Fault("loop_lagging", f"the event loop is at least {least:.1f} s late"))
        self.latest = found
        return found
