"""The limit of requests in progress, for the whole process."""

from __future__ import annotations

from cohort.batching import share_for
from cohort.errors import Overloaded


class ConcurrencyLimit:
    """Counts the requests in progress, of all models and APIs.

    maximum: Requests of priority 0 that may be in progress.
    leases: Requests that hold a version.
    reading: Requests whose bodies are being read.
    closed: True if the process accepts no more requests.
    """

    __slots__ = ("closed", "leases", "maximum", "reading")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.leases = 0
        self.reading = 0
        self.closed = False

    def room_for(self, priority: int) -> int:
        """Return how many more requests of a priority are accepted."""
        maximum = int(self.maximum * share_for(priority))
        return max(maximum - self.leases - self.reading, 0)

    def check(self, count: int = 1, priority: int = 0) -> None:
        """Raise Overloaded unless there is room for `count` more of a priority."""
        in_progress = self.leases + self.reading
        maximum = self.maximum * share_for(priority) if priority else self.maximum
        if in_progress + count > maximum:
            raise Overloaded(f"the server already has {in_progress} requests in progress")
