"""The metrics of answers that are kept."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cohort.response_cache import CacheCounts

_LABELS = ("model", "version")


class CacheMetrics:
    """Counts hits and misses by version, of models that keep answers."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], CacheCounts] = {}

    def counts(self, model: str, version: int) -> CacheCounts:
        """The counts of a version, created at first use."""
        return self._counts.setdefault((model, str(version)), CacheCounts())

    def collect(self) -> Iterator[Metric]:
        """The metric families as they are now, for prometheus_client."""
        hits = CounterMetricFamily(
            "model_cache_hits", "Requests answered without a run of their own.", labels=_LABELS
        )
        misses = CounterMetricFamily(
            "model_cache_misses", "Requests looked for in the cache, and run.", labels=_LABELS
        )
        size = GaugeMetricFamily(
            "model_cache_bytes", "Memory that cached answers take.", labels=_LABELS
        )
        for labels, counts in self._counts.items():
            hits.add_metric(labels, counts.hits)
            misses.add_metric(labels, counts.misses)
            size.add_metric(labels, counts.size)
        yield from (hits, misses, size)
