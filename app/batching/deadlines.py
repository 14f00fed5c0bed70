"""One timer for the deadlines of all requests of a version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

TIMER_RESOLUTION = 0.001
"""Seconds. uvloop's timers have a resolution of 1 ms and were seen to fire 0.4 ms early."""


class DeadlineTimer:
    """Calls `expire` at the earliest deadline, which is in seconds on the monotonic clock.

    earliest: The deadline that it is set for; infinite where there is none.
    expire: Fails the requests whose time is up, and sets the timer for the next deadline.
    """

    __slots__ = ("_timer", "earliest", "expire")

    def __init__(self, expire: Callable[[], None]) -> None:
        self.earliest = float("inf")
        self.expire = expire
        self._timer: asyncio.TimerHandle | None = None

    @property
    def armed(self) -> bool:
        """Whether it will fire."""
        return self._timer is not None

    def set(self, deadline: float) -> None:
        """Fire at `deadline`, and not before; infinite: not at all."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.earliest = deadline
        if deadline != float("inf"):
            wait = max(deadline - monotonic(), 0.0) + TIMER_RESOLUTION  # late rather than early
            self._timer = asyncio.get_running_loop().call_later(wait, self._fire)

    def _fire(self) -> None:
        self.expire()
