"""Whether a version's profile proves wrong: made on a busy machine, or for data unlike that of now.

The batcher follows how long runs take as a multiple of the profile: its pace. What else the machine
does makes that larger for a moment or a minute, and never smaller. So a profile is doubtful where
the pace was far off at every one of many looks with runs between them, and not where it once was.
"""

from __future__ import annotations

from collections import deque

LOOKS = 24
"""Looks with runs between them before there is a doubt: two minutes, by `LOOK_SECONDS`."""

FACTOR = 3.0
"""How many times as long or as short runs must be."""

MATTERS_SECONDS = 0.0001
"""Less than that between estimate and run decides nothing, whatever the factor."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE = 300.0, 86_400.0
"""How long a profile is not doubted again; each time it was right, twice as long."""


class Doubt:
    """What recent looks at the pace of one version showed."""

    __slots__ = ("_last", "_looks", "_not_before", "_pause")

    def __init__(self) -> None:
        self._looks: deque[float] = deque()
        self._last = 1.0
        self._pause = FIRST_PAUSE_SECONDS
        self._not_before = 0.0

    def look(self, pace: float, seconds: float, now: float) -> str:
        """Look at the pace now; what is wrong with the profile, "" where nothing is known to be.

        pace: How long recent runs take, as a multiple of what the profile says.
        seconds: What it says of a run of one row.
        now: Seconds on the monotonic clock.
        """
        if pace == self._last:  # no runs since
            return ""
        self._last = pace
        self._looks.append(pace)
        if len(self._looks) > LOOKS:
            self._looks.popleft()
        slowest, fastest = max(self._looks), min(self._looks)
        off = fastest >= FACTOR or slowest <= 1 / FACTOR
        matters = abs(pace - 1) * seconds >= MATTERS_SECONDS
        if len(self._looks) < LOOKS or not off or not matters or now < self._not_before:
            return ""
        self._looks.clear()
        self._not_before = now + self._pause
        return f"runs take {pace:.2g} times as long as it says"

    def settle(self, before: float, after: float) -> None:
        """A new profile says that a run takes `after` seconds; the former one said `before`."""
        self._looks.clear()
        right = 1 / 2 <= after / max(before, 1e-9) <= 2
        self._pause = min(self._pause * 2, LONGEST_PAUSE) if right else FIRST_PAUSE_SECONDS
