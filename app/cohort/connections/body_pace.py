"""Whether a caller moves bytes fast enough to be waited for."""

from __future__ import annotations

WINDOW_SECONDS = 20.0
"""How long a caller may pause within a body, or while it reads its responses."""

MIN_BYTES_PER_SECOND = 1024
BODY_TOO_SLOW = f"the body arrives at less than {MIN_BYTES_PER_SECOND} bytes a second"


class Pace:
    """The bytes that a connection moves in one direction, looked at now and then."""

    __slots__ = ("_mark", "_since")

    def __init__(self) -> None:
        self._since = -1.0  # when the window began; negative: nothing is under way
        self._mark = 0  # bytes moved by then

    def is_slow(self, now: float, moved: int) -> bool:
        """Whether fewer than MIN_BYTES_PER_SECOND moved over the last window.

        moved: Bytes that have moved so far; where it decreases, a new window begins.
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
        """Nothing is under way: a window begins with the next look."""
        self._since = -1.0
