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
        self._waiting: deque[Turn] = deque()
        self._running = False

    @property
    def waiting(self) -> bool:
        """Whether any of them waits."""
        return self._running

    def wait(self, connection: Turn, loop: asyncio.AbstractEventLoop) -> None:
        """Have a connection take a turn after those that wait already."""
        self._waiting.append(connection)
        if not self._running:
            self._running = True
            loop.call_later(BETWEEN_SECONDS, self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting.popleft().take_turn()
        self._running = bool(self._waiting)
        if self._running:
            loop.call_later(BETWEEN_SECONDS, self._next, loop)
