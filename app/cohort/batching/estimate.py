"""Estimates of runs and of the queue of one version, from the profile and from recent runs."""

from __future__ import annotations

from collections.abc import Callable
from math import frexp

from cohort.batching.policy import BatchPolicy
from cohort.errors import Overloaded

MEASURED_SECONDS = 0.25
"""Time that a queue must be emptied, without running empty, before its rate is known."""

REMEMBERED_SECONDS = 4.0
"""Memory of the rate: after this time, older work counts half, and half again."""

SURE_SHARE = 0.8
"""The share of a request's time that the queue may use; if it needs more, the request is refused.

If the queue could use all of it, each request would reach the head with no time left to run. Then
no request that runs would be answered in time.
"""

DELAYED_PACE = 1.5
"""Above this pace, runs are also timed on the processor: they may only have waited for it."""

FOLLOWED_SHARE = 0.1
"""The step of a pace towards that of the last run."""


class Estimate:
    """Estimates of the runs and the queue of one version.

    pace: The duration of recent runs, as a multiple of the profiled one.
    own_pace: The same without waiting for a processor or the interpreter's lock.
    capacity: The work that the queue may hold, in rows of the profiled length.

    profiled: The profiled duration of a run in seconds, from its work.
    policy: Limits the queue.
    known: The largest work that was profiled; default: infinite.
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
        self._taken = 0.0  # the work that left it between these times
        self.bound(policy)

    def bound(self, policy: BatchPolicy) -> None:
        """Apply the limits of another policy."""
        rows = policy.max_batch_size
        self._row_seconds = max(self._profiled(rows), 1e-9) / rows
        self.capacity = policy.max_queue_seconds / self._row_seconds

    def seconds_for(self, work: float) -> float:
        """Return the duration of a run in seconds, without waiting for a processor.

        `work` is its number of rows of the profiled length. Above the profiled work, the duration
        is proportional until a run of that magnitude was seen. A line through two similar durations
        does not predict a run ten thousand times as large.
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
        """Return the work that a request adds to the queue.

        If it is larger than the profiled work, the result depends on the duration of its run.
        """
        if work <= self._known:
            return work
        return self.seconds_for(work) / (self._row_seconds * self.pace)

    @property
    def delayed(self) -> bool:
        """True if `follow` needs the processor time of runs."""
        return self.pace > DELAYED_PACE

    def follow(self, work: float, seconds: float, own: float | None = None) -> None:
        """Record a run of this work, and its `own` seconds on the processor.

        A single slow run moves the pace by at most 30 %, and runs that waited leave `own_pace` at
        the profiled value. Runs above the profiled work change neither.
        """
        if work > self._known:
            magnitude, ratio = self._magnitude(work), seconds / self._proportional(work)
            self._beyond[magnitude] = _moved(self._beyond.get(magnitude, ratio), ratio)
            return
        profiled = max(self._profiled(work), 1e-6)
        ratio = seconds / profiled
        self.pace = _moved(self.pace, ratio)
        if own is not None:  # with several threads, this thread's time is shorter
            ratio = max(own / profiled, min(ratio, 1.0))
        self.own_pace = _moved(self.own_pace, ratio)

    def _magnitude(self, work: float) -> int:
        return frexp(work / self._known)[1]

    def _proportional(self, work: float) -> float:
        return max(self._profiled(self._known), 1e-6) * work / self._known

    def work_within(self, seconds: float) -> float:
        """Return the work of consecutive full batches in `seconds`."""
        return seconds / (self._row_seconds * self.pace)

    def take(self, work: float, now: float) -> None:
        """Record work that left the queue, which is not empty yet."""
        if not self._since:
            self._since, self._taken = now, 0.0
        else:
            self._taken += work
        self._until = now

    def run_empty(self) -> None:
        """Record that the queue is empty: its rate is no longer known."""
        self._since = 0.0

    def rate(self) -> float:
        """Return the work that leaves the queue in a second; 0 if it is not known yet.

        It includes all slots, and the effect of other models on them.
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
        """Return seconds that queued `work` waits: by its rate, or else in consecutive full
        batches.
        """
        rate = self.rate()
        return work / rate if rate else work * self._row_seconds * self.pace

    def check_in_time(self, queued: float, work: float, left: float, timeout: float) -> None:
        """Raise Overloaded for `work` that would start too late after `queued`.

        left, timeout: The rest of its time, and its whole time limit, in seconds.
        """
        if queued + work > self.work_within(SURE_SHARE * left) and self.rate():
            wait = self.queue_seconds(queued)
            if wait > SURE_SHARE * left:
                late = f"the model's queue takes {wait:.3g} s, too long for a limit of"
                raise Overloaded(f"{late} {timeout:.3g} s", retry_after=wait)


def _moved(pace: float, ratio: float) -> float:
    return pace + FOLLOWED_SHARE * (min(ratio, 4.0 * pace) - pace)
