"""Metrics of the steps of pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from cohort.metrics.exposition import parts
from cohort.metrics.histogram import DURATION_BUCKETS, VERSION_LABELS, Histogram, Labels
from cohort.metrics.metrics import Metrics
from cohort.metrics.version_metrics import VersionMetrics
from cohort.pipelines import StepEnded

STEP_LABELS = (*VERSION_LABELS, "step")

REJECTED = frozenset({"Overloaded", "NotReady"})


class StepCounts:
    """The counts of one step of a pipeline's version."""

    __slots__ = ("durations", "member", "outcomes", "rows", "version")

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}  # by code
        self.rows = 0
        self.durations = Histogram(DURATION_BUCKETS)
        self.version = ""  # the version of the last model
        self.member: VersionMetrics | None = None  # the counts of that version


class StepMetrics:
    """Counts of pipelines' steps, which also count as requests of their models.

    metrics: The counts of models.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._steps: dict[Labels, StepCounts] = {}

    def steps_of(self, model: str, version: str) -> Callable[[StepEnded], None]:
        """Return the counter of a version's steps."""
        known: dict[str, StepCounts] = {}

        def count(ended: StepEnded) -> None:
            step, member, number, code, seconds, rows, _ = ended
            counts = known.get(step)
            if counts is None:
                counts = known[step] = self._steps.setdefault((model, version, step), StepCounts())
            counts.outcomes[code] = counts.outcomes.get(code, 0) + 1
            counts.rows += rows
            if code == "Skipped":
                return
            counts.durations.observe(seconds)
            asked = counts.member
            if asked is None or counts.version != number:
                asked = counts.member = self._metrics.version(member, number)
                counts.version = number
            asked.request("", code, seconds)
            if code in REJECTED:
                asked.reject(code)

        return count

    def collect(self) -> Iterator[Metric]:
        """Return the current metric families, in parts if there are many steps."""
        for some in parts(list(self._steps.items()), 10):
            outcomes = CounterMetricFamily(
                "model_step",
                "Steps of a pipeline's requests by outcome: OK, Skipped, or the error's name.",
                labels=(*STEP_LABELS, "code"),
            )
            rows = CounterMetricFamily(
                "model_step_rows",
                "Rows that a step ran, if a condition decides for each row.",
                labels=STEP_LABELS,
            )
            durations = HistogramMetricFamily(
                "model_step_duration_seconds",
                "Time from a step's request to its model's reply.",
                labels=STEP_LABELS,
            )
            for labels, counts in some:
                for code, count in list(counts.outcomes.items()):
                    outcomes.add_metric((*labels, code), count)
                rows.add_metric(labels, counts.rows)
                counts.durations.add_to(durations, labels)
            yield from (outcomes, rows, durations)
