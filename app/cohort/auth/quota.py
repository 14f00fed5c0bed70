"""Rate limits of callers."""

from __future__ import annotations


class TokenBucket:
    """Lets `rate` requests per second pass, with bursts of one second's requests, at least one.

    It stores one number, the time when the bucket will be full again. This is the generic cell rate
    algorithm: https://en.wikipedia.org/wiki/Generic_cell_rate_algorithm.
    """

    __slots__ = ("_full_at", "_interval", "_slack")

    def __init__(self, rate: float) -> None:
        self._interval = 1 / rate  # the cost of one request, in seconds
        self._slack = max(1.0, rate) / rate - self._interval
        self._full_at = float("-inf")

    def take(self, now: float) -> float:
        """Take one token at `now`, in seconds on a clock that never goes back.

        Returns 0 if there was a token, otherwise the seconds until the next one. A refused request
        takes no token.
        """
        full_at = self._full_at if self._full_at > now else now  # noqa: FURB136 - max takes longer
        wait = full_at - now - self._slack
        if wait > 1e-9:  # less is a rounding error
            return wait
        self._full_at = full_at + self._interval
        return 0.0
