"""How long runs of one version take, and its queue: by the profile, and by what was seen since."""

from __future__ import annotations

from collections.abc import Callable

from app.batching.events import Ran
from app.batching.policy import BatchPolicy

MEASURED_SECONDS = 0.25
"""How long a queue has to be emptied, without running empty, before its rate is known."""

REMEMBERED_SECONDS = 4.0
"""What is remembered of the rate: older work counts half as much, and half again."""

SURE_SHARE = 0.8
"""The share of a request's time that the queue may take: with more, it is refused at once.

Were all of it taken, each request would reach the head with no time left to run, and none of those
that run would be answered in time.
"""


class Estimate:
    """What runs and the queue of one version should take.

    pace: The duration of recent runs, as a multiple of the profiled one.
    capacity: The work that the queue may hold, in rows of the length that was profiled.

    profiled: The profiled duration of a run in seconds, from its work.
    policy: Bounds the queue.
    """

    __slots__ = ("_profiled", "_row_seconds", "_since", "_taken", "_until", "capacity", "pace")

    def __init__(self, profiled: Callable[[float], float], policy: BatchPolicy) -> None:
        self._profiled = profiled
        self.pace = 1.0
        self._since = 0.0  # when the queue began to be emptied, monotonic; 0: it is empty
        self._until = 0.0  # when a batch last left it
        self._taken = 0.0  # the work that left it between the two
        self.bound(policy)

    def bound(self, policy: BatchPolicy) -> None:
        """Follow another policy."""
        rows = policy.max_batch_size
        self._row_seconds = max(self._profiled(rows), 1e-9) / rows
        self.capacity = policy.max_queue_seconds / self._row_seconds

    def seconds_for(self, work: float) -> float:
        """The duration of a run in seconds.

        `work` is its number of rows of the length that was profiled.
        """
        return self._profiled(work) * self.pace

    def follow(self, ran: Ran, length: float) -> None:
        """Take note of a run whose rows have this length.

        A single slow run moves the pace by at most 30 %.
        """
        ratio = ran.seconds / max(self._profiled(ran.rows * length), 1e-6)
        self.pace += 0.1 * (min(ratio, 4.0 * self.pace) - self.pace)

    def work_within(self, seconds: float) -> float:
        """The work that full batches do in so long, one after the other."""
        return seconds / (self._row_seconds * self.pace)

    def take(self, work: float, now: float) -> None:
        """Take note of work that left the queue, which is not empty yet."""
        if not self._since:
            self._since, self._taken = now, 0.0
        else:
            self._taken += work
        self._until = now

    def run_empty(self) -> None:
        """Take note that the queue is empty: how fast it was emptied is not known any more."""
        self._since = 0.0

    def rate(self) -> float:
        """The work that leaves the queue in a second; 0 where that is not known yet.

        It counts every slot, and what other models take of them.
        """
        seconds = self._until - self._since
        if not self._since or seconds < MEASURED_SECONDS:
            return 0.0
        rate = self._taken / seconds
        if seconds > REMEMBERED_SECONDS:
            self._since = self._until - seconds / 2
            self._taken /= 2
        return rate

    def queue_seconds(self, work: float) -> float:
        """How long queued `work` waits: by its rate, else in full batches one after the other."""
        rate = self.rate()
        return work / rate if rate else work * self._row_seconds * self.pace
