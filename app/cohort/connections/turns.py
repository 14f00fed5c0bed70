"""Turns for connections whose bytes take long to parse, such as tiny chunks or header blocks.

A chunk costs the parser 0.5 µs whatever its size, and uvloop reads megabytes of one connection
before others. 20 such clients blocked the event loop for seconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

BETWEEN_SECONDS = 0.001
"""Pause between turns, so other work can run."""


class Turn(Protocol):
    """A connection that waits for its turn."""

    def take_turn(self) -> None:
        """Parse some or all of the received bytes."""


class Turns:
    """Gives waiting connections of a process one turn each, in order.

    between: Seconds between two turns. 0 only lets other ready work run. Default: BETWEEN_SECONDS.
    """

    def __init__(self, between: float = BETWEEN_SECONDS) -> None:
        self._between = between
        self._waiting: deque[Turn] = deque()  # the current one stays first until its turn has ended

    @property
    def waiting(self) -> bool:
        """Return True if any connection waits."""
        return bool(self._waiting)

    def wait(self, connection: Turn, loop: asyncio.AbstractEventLoop) -> None:
        """Queue a connection for a turn."""
        if not self._waiting:
            loop.call_later(self._between, self._next, loop)
        self._waiting.append(connection)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._waiting[0].take_turn()
        finally:  # the others get their turns even after an error
            self._waiting.popleft()
            if self._waiting:
                loop.call_later(self._between, self._next, loop)
