"""Streams that are over here and not yet there."""

from __future__ import annotations

MAX_LEFT_OPEN = 1000
"""Of a connection; the newest are kept. What is on its way is of the last few."""


class LeftOpen:
    """The streams of a connection that we have ended before their peer had.

    What their peer has sent meanwhile is skipped, until it ends them, too. Frames of any other
    stream that is over are its mistake.
    """

    __slots__ = ("_numbers", "_skipped")

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}
        self._skipped = (0, 0)  # between these two no stream was begun

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def add(self, number: int) -> None:
        """We have ended it."""
        if len(self._numbers) >= MAX_LEFT_OPEN:
            del self._numbers[next(iter(self._numbers))]
        self._numbers[number] = None

    def end(self, number: int) -> None:
        """Its peer has ended it."""
        self._numbers.pop(number, None)

    def skip(self, last: int, number: int) -> None:
        """The peer begins a stream that is not the next one."""
        self._skipped = last, number

    def was_skipped(self, number: int) -> bool:
        """Whether a stream was never begun, as far as that is known."""
        return self._skipped[0] < number < self._skipped[1]
