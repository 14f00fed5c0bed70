"""A quantile of a stream, in little memory, that follows what changes."""

from __future__ import annotations

from itertools import accumulate
from math import log

SMALLEST = 1e-5
STEP = 1.05
BUCKETS = 340  # to 160 s
LOG_STEP = log(STEP)

WINDOW = 2000
"""Once so many values are in, half their weight is forgotten at the next `forget`."""


class Latency:
    """Seconds by bucket, each 5 % wider than the one below."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts = [0.0] * BUCKETS
        self.total = 0.0

    def add(self, seconds: float) -> None:
        place = int(log(max(seconds, SMALLEST) / SMALLEST) / LOG_STEP)
        self._counts[min(place, BUCKETS - 1)] += 1
        self.total += 1

    def quantile(self, share: float) -> float:
        """At least `share` of the values are at most this: the upper end of a bucket."""
        wanted = share * self.total
        places = enumerate(accumulate(self._counts))
        place = next((place for place, below in places if below >= wanted), BUCKETS - 1)
        return float(SMALLEST * STEP ** (place + 1))

    def forget(self) -> None:
        """Give way to what is new, where there is enough."""
        if self.total >= WINDOW:
            self._counts = [count / 2 for count in self._counts]
            self.total /= 2
