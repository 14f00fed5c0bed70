"""Detection of wrong profiles: measured on a busy machine, or with data unlike today's.

The batcher tracks the pace: the duration of runs as a multiple of the profile. Other work on the
machine increases the pace for a moment or a minute, and never decreases it. So a profile
is stale only if the pace was far off at each of many checks, with runs between them.
"""

from __future__ import annotations

from collections import deque

CHECKS = 24
"""Checks that must all be far off: two minutes at intervals of `CHECK_SECONDS`."""

FACTOR = 3.0
"""Factor by which all recent runs must be longer or shorter than the profile."""

MATTERS_SECONDS = 0.0001
"""Smaller differences between estimate and run do not matter, regardless of the factor."""

FIRST_PAUSE_SECONDS, MAX_PAUSE = 300.0, 86_400.0
"""Initial and maximum pause between two reports, in seconds; doubled if the profile was right."""


class PaceCheck:
    """The results of recent checks of one version's pace."""

    __slots__ = ("_last", "_not_before", "_paces", "_pause")

    def __init__(self) -> None:
        self._paces: deque[float] = deque()
        self._last = 1.0
        self._pause = FIRST_PAUSE_SECONDS
        self._not_before = 0.0

    def check(self, pace: float, seconds: float, now: float) -> str:
        """Check the pace and return the problem with the profile, or "" if none is known.

        pace: The duration of recent runs, as a multiple of the profile.
        seconds: The duration of a run of one row, by the profile.
        now: Seconds on the monotonic clock.
        """
        if pace == self._last:  # no runs since
            return ""
        self._last = pace
        self._paces.append(pace)
        if len(self._paces) > CHECKS:
            self._paces.popleft()
        slowest, fastest = max(self._paces), min(self._paces)
        off = fastest >= FACTOR or slowest <= 1 / FACTOR
        matters = abs(pace - 1) * seconds >= MATTERS_SECONDS
        if len(self._paces) < CHECKS or not off or not matters or now < self._not_before:
            return ""
        self._paces.clear()
        self._not_before = now + self._pause
        return f"runs take {pace:.2g} times as long as in the profile"

    def remeasured(self, before: float, after: float) -> None:
        """Set the next pause by a new profile: a run takes `after` seconds, not `before`."""
        self._paces.clear()
        right = 1 / 2 <= after / max(before, 1e-9) <= 2
        self._pause = min(self._pause * 2, MAX_PAUSE) if right else FIRST_PAUSE_SECONDS
