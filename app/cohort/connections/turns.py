"""Turns for connections whose bytes take long to parse: chunks of a few bytes, header blocks.

A chunk costs the parser half a microsecond whatever it holds, and uvloop reads megabytes of one
connection before it looks at the others: twenty such callers held the event loop for seconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

BETWEEN_SECONDS = 0.001
"""Between two turns, in which everything else goes on."""


class Turn(Protocol):
    """A connection that waits for its turn."""

    def take_turn(self) -> None:
        """Parse what has come, or some of it."""


class Turns:
    """Has the connections of a process that wait take a turn each, one after the other.

    between: Seconds between two turns; 0: everything else that is ready goes first. Default:
        BETWEEN_SECONDS.
    """

    def __init__(self, between: float = BETWEEN_SECONDS) -> None:
        self._between = between
        self._waiting: deque[Turn] = deque()  # whose turn it is stays the first until it is over

    @property
    def waiting(self) -> bool:
        """Whether any of them waits."""
        return bool(self._waiting)

    def wait(self, connection: Turn, loop: asyncio.AbstractEventLoop) -> None:
        """Have a connection take a turn after those that wait already."""
        if not self._waiting:
            loop.call_later(self._between, self._next, loop)
        self._waiting.append(connection)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._waiting[0].take_turn()
        finally:  # whatever comes of it, the others get theirs
            self._waiting.popleft()
            if self._waiting:
                loop.call_later(self._between, self._next, loop)
