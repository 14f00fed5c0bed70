"""The metrics of the steps of pipelines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from cohort.metrics.exposition import parts
from cohort.metrics.histogram import DURATION_BUCKETS, VERSION_LABELS, Histogram, Labels
from cohort.metrics.metrics import Metrics
from cohort.pipelines import StepEnded

STEP_LABELS = (*VERSION_LABELS, "step")

REJECTED = frozenset({"Overloaded", "NotReady"})


class StepMetrics:
    """Counts the steps of pipelines, and for their models what these were asked.

    metrics: Where the models' requests are counted.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._outcomes: Counter[Labels] = Counter()
        self._rows: Counter[Labels] = Counter()
        self._durations: dict[Labels, Histogram] = {}

    def steps_of(self, model: str, version: str) -> Callable[[StepEnded], None]:
        """What counts the steps of a version."""
        return partial(self._count, (model, version))

    def _count(self, version: Labels, ended: StepEnded) -> None:
        step, model, number, code, seconds, rows = ended
        of = (*version, step)
        self._outcomes[*of, code] += 1
        self._rows[of] += rows
        if code == "Skipped":
            return
        durations = self._durations.get(of)
        if durations is None:
            durations = self._durations[of] = Histogram(DURATION_BUCKETS)
        durations.observe(seconds)
        counts = self._metrics.version(model, number)
        counts.request("", code, seconds)
        if code in REJECTED:
            counts.reject(code)

    def collect(self) -> Iterator[Metric]:
        """The metric families as they are now; of many steps, in parts."""
        for some in parts(list(self._outcomes.items()), 100):
            outcomes = CounterMetricFamily(
                "model_step",
                "Steps of a pipeline's requests by outcome: OK, Skipped, or the error's name.",
                labels=(*STEP_LABELS, "code"),
            )
            for labels, count in some:
                outcomes.add_metric(labels, count)
            yield outcomes
        for of in parts(list(self._rows.items()), 100):
            rows = CounterMetricFamily(
                "model_step_rows",
                "Rows that a step ran for, where a condition decides for each.",
                labels=STEP_LABELS,
            )
            for labels, count in of:
                rows.add_metric(labels, count)
            yield rows
        for timed in parts(list(self._durations.items()), 10):
            durations = HistogramMetricFamily(
                "model_step_duration_seconds",
                "From a step's request to its model's reply, by step of a pipeline.",
                labels=STEP_LABELS,
            )
            for labels, histogram in timed:
                histogram.add_to(durations, labels)
            yield durations
