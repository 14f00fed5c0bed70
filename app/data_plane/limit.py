"""How many requests the process has in hand."""

from __future__ import annotations

from app.errors import Overloaded


class ConcurrencyLimit:
    """Counts requests in hand, of all models and APIs, up to `maximum`.

    `leases` are those that hold a version, `reading` those whose bodies are still being read.
    """

    __slots__ = ("leases", "maximum", "reading")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.leases = 0
        self.reading = 0

    def check(self, count: int = 1) -> None:
        """Raise Overloaded unless there is room for `count` more."""
        in_hand = self.leases + self.reading
        if in_hand + count > self.maximum:
            raise Overloaded(f"the server already has {in_hand} requests in progress")
