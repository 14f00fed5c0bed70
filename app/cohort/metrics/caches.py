"""Metrics of cached answers."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cohort.response_cache import CacheCounts

_LABELS = ("model", "version")


class CacheMetrics:
    """Hits and misses by version, of models with a cache."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], CacheCounts] = {}

    def counts(self, model: str, version: int) -> CacheCounts:
        """Return the counts of a version; the first call creates them."""
        return self._counts.setdefault((model, str(version)), CacheCounts())

    def collect(self) -> Iterator[Metric]:
        """Return the current metric families."""
        hits = CounterMetricFamily(
            "model_cache_hits", "Requests answered without their own run.", labels=_LABELS
        )
        misses = CounterMetricFamily(
            "model_cache_misses", "Requests not found in the cache.", labels=_LABELS
        )
        size = GaugeMetricFamily("model_cache_bytes", "Memory of cached answers.", labels=_LABELS)
        for labels, counts in self._counts.items():
            hits.add_metric(labels, counts.hits)
            misses.add_metric(labels, counts.misses)
            size.add_metric(labels, counts.size)
        yield from (hits, misses, size)
