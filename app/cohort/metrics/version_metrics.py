"""The counts of one version.

Every request is counted on the event loop, so counting is plain Python without locks: a list of
bucket counts and a bisect.
"""

from __future__ import annotations

from math import inf
from time import time

from cohort.batching import InlineStall, Ran, RequestCancelled
from cohort.metrics.histogram import (
    DURATION_BUCKETS,
    LOAD_BUCKETS,
    RATIO_BUCKETS,
    REQUEST_BUCKETS,
    SIZE_BUCKETS,
    Histogram,
)
from cohort.metrics.token_times import TokenTimes


class VersionMetrics:
    """The counts of a version of a model, or of requests that reached no version."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[str, str], int] = {}  # (variant, code)
        self.durations: dict[str, Histogram] = {}  # by variant
        self.queue = Histogram(DURATION_BUCKETS)
        self.run = Histogram(DURATION_BUCKETS)
        self.rows = Histogram(SIZE_BUCKETS)
        self.requests = Histogram(REQUEST_BUCKETS)
        self.padding = Histogram(RATIO_BUCKETS)
        self.cancelled: dict[str, int] = {}  # by stage
        self.rejected: dict[str, int] = {}  # by reason
        self.stalls: dict[str, int] = {}  # by outcome
        self.run_refused: dict[str, int] = {}  # by variant
        self.token_times: dict[str, TokenTimes] = {}  # by variant, of language models
        self.load = Histogram(LOAD_BUCKETS)
        self.failed_seconds = 0.0
        self.last_run = 0.0  # since the epoch
        self.objective = inf  # seconds
        self.slow = 0  # requests over the objective at that time
        self.runs_by_rows: dict[
            int, tuple[int, float]
        ] = {}  # count and seconds, up to SIZE_BUCKETS[-1] rows

    def request(self, variant: str, code: str, seconds: float, times: int = 1) -> None:
        """Count `times` responses of a variant and code, each `seconds` after arrival."""
        try:
            self.outcomes[variant, code] += times
            self.durations[variant].observe(seconds, times)
        except KeyError:  # the first of its kind
            self.outcomes[variant, code] = times
            self.durations.setdefault(variant, Histogram(DURATION_BUCKETS)).observe(seconds, times)
        if seconds > self.objective:
            self.slow += times
        if code != "OK":
            self.failed_seconds += seconds * times

    def tokens_of(self, variant: str) -> TokenTimes:
        """Return the times of a variant's tokens; the first call creates them."""
        try:
            return self.token_times[variant]
        except KeyError:
            return self.token_times.setdefault(variant, TokenTimes())

    def exemplify(self, variant: str, seconds: float, trace_id: str, span_id: str) -> None:
        """Keep a sampled request as an exemplar of its variant's durations."""
        histogram = self.durations.get(variant)
        if histogram is not None:
            histogram.exemplify(seconds, trace_id, span_id)

    def exemplify_run(self, waited: float, seconds: float, trace_id: str, span_id: str) -> None:
        """Keep a sampled request as an exemplar of the times in the queue and of runs."""
        self.queue.exemplify(waited, trace_id, span_id)
        self.run.exemplify(seconds, trace_id, span_id)

    def reject(self, reason: str, times: int = 1) -> None:
        """Count `times` requests rejected before queuing."""
        self.rejected[reason] = self.rejected.get(reason, 0) + times

    def refuse_run(self, variant: str) -> None:
        """Count a request that fits the specs but that the runtime rejected in the run."""
        self.run_refused[variant] = self.run_refused.get(variant, 0) + 1

    def observe_batch(self, event: object) -> None:
        """Count an event of the batcher."""
        if event.__class__ is Ran:
            self._ran(event)
        elif isinstance(event, RequestCancelled):
            self.cancelled[event.stage] = self.cancelled.get(event.stage, 0) + 1
        elif isinstance(event, InlineStall):
            outcome = "stopped" if event.stopped else "finished"
            self.stalls[outcome] = self.stalls.get(outcome, 0) + 1

    def _ran(self, ran: Ran) -> None:
        self.run.observe(ran.seconds)
        self.last_run = time()
        if ran.rows <= SIZE_BUCKETS[-1]:  # callers choose this number: bounded
            count, seconds = self.runs_by_rows.get(ran.rows, (0, 0.0))
            self.runs_by_rows[ran.rows] = (count + 1, seconds + ran.seconds)
        self.rows.observe(ran.rows)
        self.requests.observe(ran.requests)
        self.padding.observe(ran.padding)
        for seconds, requests in ran.waits:
            self.queue.observe(seconds, requests)
