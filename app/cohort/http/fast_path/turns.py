"""Turns for connections whose bytes take long to parse: bodies in chunks of a few bytes.

A chunk costs the parser half a microsecond whatever it holds, and uvloop reads megabytes of one
connection before it looks at the others: twenty such callers held the event loop for seconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

PIECE_BYTES = 16 * 1024
"""What is parsed of a segment before it is known whether that takes long: a millisecond at most."""

SMALLEST_PART_BYTES = 64
"""Where parts of bodies are smaller on average, framing included, a connection waits its turn."""

BETWEEN_SECONDS = 0.001
"""Between two turns, in which everything else goes on."""


class Turn(Protocol):
    """A connection that waits for its turn."""

    def take_turn(self) -> None:
        """Parse what has come, or some of it."""


class Turns:
    """Has the connections of a process that wait take a turn each, one after the other."""

    def __init__(self) -> None:
        self._waiting: deque[Turn] = deque()  # whose turn it is stays the first until it is over

    @property
    def waiting(self) -> bool:
        """Whether any of them waits."""
        return bool(self._waiting)

    def wait(self, connection: Turn, loop: asyncio.AbstractEventLoop) -> None:
        """Have a connection take a turn after those that wait already."""
        if not self._waiting:
            loop.call_later(BETWEEN_SECONDS, self._next, loop)
        self._waiting.append(connection)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._waiting[0].take_turn()
        finally:  # whatever comes of it, the others get theirs
            self._waiting.popleft()
            if self._waiting:
                loop.call_later(BETWEEN_SECONDS, self._next, loop)
