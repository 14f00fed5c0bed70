"""Metrics of the sequences of models with state."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cohort.sequences import SequenceCounts

_LABELS = ("model", "version")


class SequenceMetrics:
    """Counts of sequences by version."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], SequenceCounts] = {}

    def counts(self, model: str, version: int) -> SequenceCounts:
        """Return the counts of a version; the first call creates them."""
        return self._counts.setdefault((model, str(version)), SequenceCounts())

    def collect(self) -> Iterator[Metric]:
        """Return the current metric families."""
        running = GaugeMetricFamily(
            "model_sequences", "Sequences whose state is kept.", labels=_LABELS
        )
        size = GaugeMetricFamily(
            "model_sequence_bytes", "Memory of the states of sequences.", labels=_LABELS
        )
        idle = CounterMetricFamily(
            "model_sequences_idle",
            "Sequences dropped after idle_seconds without a request.",
            labels=_LABELS,
        )
        for labels, counts in self._counts.items():
            running.add_metric(labels, counts.open)
            size.add_metric(labels, counts.size)
            idle.add_metric(labels, counts.idle)
        yield from (running, size, idle)
