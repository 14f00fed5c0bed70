"""How long runs of one version take, and its queue: by the profile, and by what was seen since."""

from __future__ import annotations

from collections.abc import Callable
from math import frexp

from cohort.batching.policy import BatchPolicy
from cohort.errors import Overloaded

MEASURED_SECONDS = 0.25
"""How long a queue has to be emptied, without running empty, before its rate is known."""

REMEMBERED_SECONDS = 4.0
"""What is remembered of the rate: older work counts half as much, and half again."""

SURE_SHARE = 0.8
"""The share of a request's time that the queue may take: with more, it is refused at once.

Were all of it taken, each request would reach the head with no time left to run, and none of those
that run would be answered in time.
"""

DELAYED_PACE = 1.5
"""Slower than that, runs are timed on the processor, too: they may only have waited for it."""

FOLLOWED_SHARE = 0.1
"""How far a pace moves towards that of the last run."""


class Estimate:
    """What runs and the queue of one version should take.

    pace: The duration of recent runs, as a multiple of the profiled one.
    own_pace: The same without what they waited for a processor or the interpreter's lock.
    capacity: The work that the queue may hold, in rows of the length that was profiled.

    profiled: The profiled duration of a run in seconds, from its work.
    policy: Bounds the queue.
    known: The largest work that was profiled; default: there is none that was not.
    """

    __slots__ = (
        "_beyond", "_known", "_profiled", "_row_seconds", "_since", "_taken", "_until", "capacity",
        "own_pace", "pace",
    )  # fmt: skip

    def __init__(
        self,
        profiled: Callable[[float], float],
        policy: BatchPolicy,
        known: float = float("inf"),
    ) -> None:
        self._profiled = profiled
        self._known = known
        self._beyond: dict[int, float] = {}  # the pace of larger work, by its magnitude
        self.pace = self.own_pace = 1.0
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
        """The duration of a run in seconds, without what it waits for a processor.

        `work` is its number of rows of the length that was profiled. Beyond what was profiled, it
        is proportional, until a run of that magnitude was seen: a line through two durations that
        hardly differ says nothing of a run ten thousand times as large.
        """
        if work <= self._known:
            return self._profiled(work) * self.own_pace
        beyond, magnitude = self._beyond, self._magnitude(work)
        pace = beyond.get(magnitude)
        if pace is None:
            nearest = min(beyond, key=lambda seen: abs(seen - magnitude), default=None)
            pace = self.own_pace if nearest is None else beyond[nearest]
        return self._proportional(work) * pace

    def weight(self, work: float) -> float:
        """What a request of such work adds to the queue's: by the duration of its own run, if
        that is larger than any that was profiled.
        """
        if work <= self._known:
            return work
        return self.seconds_for(work) / (self._row_seconds * self.pace)

    @property
    def delayed(self) -> bool:
        """Whether `follow` wants to know how long runs have the processor."""
        return self.pace > DELAYED_PACE

    def follow(self, work: float, seconds: float, own: float | None = None) -> None:
        """Take note of a run of such work, and of its `own` seconds on the processor.

        A single slow run moves the pace by at most 30 %, and runs that waited leave `own_pace` at
        what was profiled. Neither follows larger runs than those that were profiled.
        """
        if work > self._known:
            magnitude, ratio = self._magnitude(work), seconds / self._proportional(work)
            self._beyond[magnitude] = _moved(self._beyond.get(magnitude, ratio), ratio)
            return
        profiled = max(self._profiled(work), 1e-6)
        ratio = seconds / profiled
        self.pace = _moved(self.pace, ratio)
        if own is not None:  # a run on several threads has less of its own than it takes
            ratio = max(own / profiled, min(ratio, 1.0))
        self.own_pace = _moved(self.own_pace, ratio)

    def _magnitude(self, work: float) -> int:
        return frexp(work / self._known)[1]

    def _proportional(self, work: float) -> float:
        return max(self._profiled(self._known), 1e-6) * work / self._known

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

    def check_in_time(self, queued: float, work: float, left: float, timeout: float) -> None:
        """Raise Overloaded for `work` whose time will be over when its turn comes after `queued`.

        left, timeout: What is left of its time, and how long it was, in seconds.
        """
        if queued + work > self.work_within(SURE_SHARE * left) and self.rate():
            wait = self.queue_seconds(queued)
            if wait > SURE_SHARE * left:
                late = f"the model's queue takes {wait:.3g} s, too long for a limit of"
                raise Overloaded(f"{late} {timeout:.3g} s", retry_after=wait)


def _moved(pace: float, ratio: float) -> float:
    return pace + FOLLOWED_SHARE * (min(ratio, 4.0 * pace) - pace)
