"""The metrics of sequences, of models with state."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cohort.sequences import SequenceCounts

_LABELS = ("model", "version")


class SequenceMetrics:
    """Counts sequences by version, of models with state."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], SequenceCounts] = {}

    def counts(self, model: str, version: int) -> SequenceCounts:
        """The counts of a version, created at first use."""
        return self._counts.setdefault((model, str(version)), SequenceCounts())

    def collect(self) -> Iterator[Metric]:
        """The metric families as they are now, for prometheus_client."""
        running = GaugeMetricFamily(
            "model_sequences", "Sequences whose state is kept.", labels=_LABELS
        )
        size = GaugeMetricFamily(
            "model_sequence_bytes", "Memory that the states of sequences take.", labels=_LABELS
        )
        idle = CounterMetricFamily(
            "model_sequences_idle",
            "Sequences forgotten because they had no request for idle_seconds.",
            labels=_LABELS,
        )
        for labels, counts in self._counts.items():
            running.add_metric(labels, counts.open)
            size.add_metric(labels, counts.size)
            idle.add_metric(labels, counts.idle)
        yield from (running, size, idle)
