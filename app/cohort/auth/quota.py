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


class MinuteQuota:
    """Lets `amount` tokens per minute pass; unused ones of at most one minute are kept.

    A request may take more than that, if the quota is full: it is then in debt for a while.
    """

    __slots__ = ("_amount", "_at", "_left")

    def __init__(self, amount: float) -> None:
        self._amount = amount
        self._left = amount
        self._at = float("-inf")

    def take(self, tokens: float, now: float) -> float:
        """Take tokens at `now`, in seconds on a clock that never goes back.

        Returns 0 if there were enough, otherwise the seconds until there are; then it takes none.
        """
        self._fill(now)
        missing = min(tokens, self._amount) - self._left
        if missing > 1e-6:  # less is a rounding error
            return missing * 60 / self._amount
        self._left -= tokens
        return 0.0

    def correct(self, tokens: float, now: float) -> None:
        """Take further tokens, whether or not there are enough; give back if it is negative."""
        self._fill(now)
        self._left = min(self._left - tokens, self._amount)

    def _fill(self, now: float) -> None:
        grown = (now - self._at) * self._amount / 60
        self._left = min(self._left + grown, self._amount)
        self._at = now
