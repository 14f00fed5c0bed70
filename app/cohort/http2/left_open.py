"""Streams that have ended on this side only."""

from __future__ import annotations

MAX_LEFT_OPEN = 1000
"""Maximum number per connection; the newest are kept. Frames in flight are of the last few."""


class LeftOpen:
    """The streams that this side has ended before the peer.

    Frames of such a stream are skipped until the peer also ends it. Frames of any other closed
    stream are the peer's error.
    """

    __slots__ = ("_numbers", "_skipped")

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}
        self._skipped = (0, 0)  # no stream was begun between these two

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def add(self, number: int) -> None:
        """Add a stream that this side has ended."""
        if len(self._numbers) >= MAX_LEFT_OPEN:
            del self._numbers[next(iter(self._numbers))]
        self._numbers[number] = None

    def end(self, number: int) -> None:
        """Remove a stream that the peer has ended."""
        self._numbers.pop(number, None)

    def skip(self, last: int, number: int) -> None:
        """Record that the peer began `number` after `last` and skipped those between."""
        self._skipped = last, number

    def was_skipped(self, number: int) -> bool:
        """Return True if a stream was never begun, as far as is known."""
        return self._skipped[0] < number < self._skipped[1]
