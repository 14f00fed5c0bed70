"""Minimum transfer rate for requests and responses."""

from __future__ import annotations

WINDOW_SECONDS = 20.0
"""Seconds that a client may pause within a body, or while it reads its responses."""

MIN_BYTES_PER_SECOND = 1024
BODY_TOO_SLOW = f"the body arrives too slowly, at less than {MIN_BYTES_PER_SECOND} bytes a second"


class Pace:
    """The bytes that a connection moves in one direction, checked regularly."""

    __slots__ = ("_mark", "_since")

    def __init__(self) -> None:
        self._since = -1.0  # start of the window; negative if nothing is moving
        self._mark = 0  # bytes moved at the start

    def is_slow(self, now: float, moved: int) -> bool:
        """Return True if fewer than MIN_BYTES_PER_SECOND moved over the last window.

        moved: Bytes moved so far. If it decreases, a new window begins.
        """
        if self._since < 0 or moved < self._mark:
            self._since, self._mark = now, moved
            return False
        elapsed = now - self._since
        if elapsed < WINDOW_SECONDS:
            return False
        slow = moved - self._mark < MIN_BYTES_PER_SECOND * elapsed
        self._since, self._mark = now, moved
        return slow

    def rest(self) -> None:
        """Stop the window. The next check begins a new one."""
        self._since = -1.0
