"""Every metric by name.

Counts are turned into text at a scrape, in parts between which the event loop goes on; gauges are
read at that moment. See decision 38.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from math import inf
from typing import Protocol

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CollectorRegistry, HistogramMetricFamily, Metric

from cohort.batching import BatchObserver
from cohort.metrics.exposition import Exposition
from cohort.metrics.histogram import DURATION_BUCKETS, Histogram, Labels
from cohort.metrics.live_counts import VersionCounts, count_versions
from cohort.metrics.version_metrics import VersionMetrics
from cohort.metrics.version_text import COUNTED, GAUGES, VersionText, gauge_lines
from cohort.registry import RESTING, ModelEntry, RegistryEvent, VersionReady
from cohort.repository import ModelConfig


class Collector(Protocol):
    """What has metrics of a subject, and is asked at each scrape."""

    def collect(self) -> Iterable[Metric]:
        """The metric families as they are now; large ones in parts."""


class Metrics:
    """All metrics of a process: what is counted by version, and what collectors tell.

    loop_lag: How late the event loop runs what is due.
    """

    def __init__(self) -> None:
        self._collectors: list[Collector] = []
        self._versions: dict[Labels, VersionMetrics] = {}
        self._texts: dict[Labels, VersionText] = {}
        self.loop_lag = Histogram(DURATION_BUCKETS)
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    def register(self, *collectors: Collector) -> None:
        """Have what they tell in the text, in this order, after what is counted by version."""
        self._collectors += collectors

    def version(self, model: str, version: str) -> VersionMetrics:
        """The counts of a version, created at first use: for known names only, never a caller's."""
        labels = (model, version)
        try:
            return self._versions[labels]
        except KeyError:
            return self._versions.setdefault(labels, VersionMetrics())

    def batches_of(self, model: str, version: str) -> BatchObserver:
        """What counts the batches of a version."""
        return self.version(model, version).observe_batch

    def observe(self, event: RegistryEvent) -> None:
        """Count a load, and take over how soon the version is to answer."""
        if isinstance(event, VersionReady):
            model, version, seconds = event
            counts = self.version(model, str(version.number))
            counts.load.observe(seconds)
            objective = (version.source.config or ModelConfig()).objective_ms
            counts.objective = inf if objective is None else objective / 1000

    def counts(self) -> Generator[None, None, dict[Labels, VersionCounts]]:
        """What was counted so far, of each version that was asked for anything.

        Yields wherever others may have their turn, and returns it.
        """
        found = {}
        for labels, counts in count_versions(list(self._versions.items())):
            found[labels] = counts
            yield
        return found

    def process_families(self) -> list[Metric]:
        """What the system says of the process, such as its open files: for a thread."""
        return list(self._process.collect())

    def write(
        self, models: Iterable[ModelEntry], process: Iterable[Metric], *, openmetrics: bool
    ) -> Generator[None, None, tuple[bytes, ...]]:
        """Write all metrics; yields wherever others may have their turn, and returns the text.

        A version's counts are written between two of those, so that they agree with each other.

        models: The models of the catalog.
        process: What `process_families` gave.
        """
        exposition = Exposition()
        counted = [exposition.lines(head) for head in COUNTED]
        for labels, counts in list(self._versions.items()):
            if labels not in self._texts:
                self._texts[labels] = VersionText(labels, counts)
            for lines, text in zip(counted, self._texts[labels].lines(), strict=True):
                lines.append(text)
            yield
        gauges = [exposition.lines(head) for head in GAUGES]
        for model in models:
            for entry in model.versions.values():
                if entry.reason != RESTING:
                    for lines, text in zip(gauges, gauge_lines(model, entry), strict=True):
                        lines.append(text)
            yield
        for collector in self._collectors:
            for family in collector.collect():
                exposition.add(family)
                yield
        lag = HistogramMetricFamily(
            "event_loop_lag_seconds", "How late the event loop runs what is due."
        )
        self.loop_lag.add_to(lag, ())
        exposition.add(lag)
        for family in process:
            exposition.add(family)
            yield
        blocks = []
        for block in exposition.blocks(openmetrics=openmetrics):
            blocks.append(block)
            yield
        return tuple(blocks)
