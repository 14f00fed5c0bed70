"""The limit of requests in progress, for the whole process."""

from __future__ import annotations

from app.errors import Overloaded


class ConcurrencyLimit:
    """Counts the requests in progress, of all models and APIs.

    maximum: Requests in progress at most.
    leases: Those that hold a version.
    reading: Those whose bodies are still being read.
    closed: Whether the process takes no more.
    """

    __slots__ = ("closed", "leases", "maximum", "reading")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.leases = 0
        self.reading = 0
        self.closed = False

    @property
    def room(self) -> int:
        """How many more there may be."""
        return max(self.maximum - self.leases - self.reading, 0)

    def check(self, count: int = 1) -> None:
        """Raise Overloaded unless there is room for `count` more."""
        in_progress = self.leases + self.reading
        if in_progress + count > self.maximum:
            raise Overloaded(f"the server already has {in_progress} requests in progress")
