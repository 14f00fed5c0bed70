"""A running quantile of latencies, in constant memory, that forgets old values."""

from __future__ import annotations

from itertools import accumulate
from math import log

SMALLEST_SECONDS = 1e-5
STEP = 1.05
BUCKETS = 340  # to 160 s
LOG_STEP = log(STEP)

WINDOW = 2000
"""Number of values after which `forget` halves the weight of all so far."""


class Latency:
    """A histogram of seconds; each bucket is 5 % wider than the one below."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts = [0.0] * BUCKETS
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count a value; a value outside the buckets counts in the nearest bucket."""
        place = int(log(max(seconds, SMALLEST_SECONDS) / SMALLEST_SECONDS) / LOG_STEP)
        self._counts[min(place, BUCKETS - 1)] += 1
        self.total += 1

    def quantile(self, share: float) -> float:
        """Return seconds that at least a `share` (0 to 1) of values do not exceed.

        The result is the upper end of a bucket, so at most 5 % too high.
        """
        wanted = share * self.total
        places = enumerate(accumulate(self._counts))
        place = next((place for place, below in places if below >= wanted), BUCKETS - 1)
        return float(SMALLEST_SECONDS * STEP ** (place + 1))

    def forget(self) -> None:
        """Halve the weight of the values so far, once there are WINDOW of them."""
        if self.total >= WINDOW:
            self._counts = [count / 2 for count in self._counts]
            self.total /= 2
