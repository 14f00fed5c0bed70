"""One timer for the deadlines of all requests of a version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

TIMER_RESOLUTION = 0.001
"""Seconds. uvloop's timers have a resolution of 1 ms and were seen to fire 0.4 ms early."""


class DeadlineTimer:
    """A timer for the earliest deadline, in seconds on the monotonic clock.

    It refers to its callback only while it is set, so that an unloaded version is freed.

    earliest: The deadline that it is set for; infinite if it is not set.
    """

    __slots__ = ("_timer", "earliest")

    def __init__(self) -> None:
        self.earliest = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    @property
    def armed(self) -> bool:
        """True if it is set."""
        return self._timer is not None

    def set(self, deadline: float, expire: Callable[[], None]) -> None:
        """Call `expire` at `deadline`, and not before; infinite: never."""
        self.clear()
        self.earliest = deadline
        if deadline != float("inf"):
            wait = max(deadline - monotonic(), 0.0) + TIMER_RESOLUTION  # late rather than early
            self._timer = asyncio.get_running_loop().call_later(wait, expire)

    def clear(self) -> None:
        """Cancel the timer."""
        self.earliest = float("inf")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
