"""All metrics of a process.

A scrape turns counts into text in parts, so that the event loop runs in between, and reads gauges.
See decision 38.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from math import inf
from typing import Protocol

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CollectorRegistry, HistogramMetricFamily, Metric

from cohort.batching import BatchObserver
from cohort.metrics.exposition import Exposition
from cohort.metrics.histogram import DURATION_BUCKETS, Histogram, Labels
from cohort.metrics.live_counts import VersionCounts, count_versions
from cohort.metrics.token_times import TokenTimes
from cohort.metrics.version_metrics import VersionMetrics
from cohort.metrics.version_text import COUNTED, GAUGES, VersionText, gauge_lines
from cohort.registry import RESTING, ModelEntry, RegistryEvent, VersionReady
from cohort.repository import ModelConfig


class Collector(Protocol):
    """A source of metrics, which is read at each scrape."""

    def collect(self) -> Iterable[Metric]:
        """Return the current metric families; large ones in parts."""


class Metrics:
    """All metrics of a process: counts by version, and those of collectors.

    loop_lag: The delay of due work on the event loop.
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
        """Add collectors; the text has them in this order, after the counts by version."""
        self._collectors += collectors

    def version(self, model: str, version: str) -> VersionMetrics:
        """Return the counts of a version, which must exist; the first call creates them."""
        labels = (model, version)
        try:
            return self._versions[labels]
        except KeyError:
            return self._versions.setdefault(labels, VersionMetrics())

    @property
    def versions(self) -> Sequence[VersionMetrics]:
        """The counts of all versions."""
        return list(self._versions.values())

    def token_times(self) -> Iterable[tuple[Labels, Mapping[str, TokenTimes]]]:
        """Yield the labels of versions that streamed answers, and the times by variant."""
        for labels, counts in list(self._versions.items()):
            if counts.token_times:
                yield labels, counts.token_times

    def batches_of(self, model: str, version: str) -> BatchObserver:
        """Return the observer of a version's batches."""
        return self.version(model, version).observe_batch

    def observe(self, event: RegistryEvent) -> None:
        """Count a load, and set the version's latency objective."""
        if isinstance(event, VersionReady):
            model, version, seconds = event
            counts = self.version(model, str(version.number))
            counts.load.observe(seconds)
            objective = (version.source.config or ModelConfig()).objective_ms
            counts.objective = inf if objective is None else objective / 1000

    def counts(self) -> Generator[None, None, dict[Labels, VersionCounts]]:
        """Return the counts of each version that got requests.

        Yields wherever other work may run.
        """
        found = {}
        for labels, counts in count_versions(list(self._versions.items())):
            found[labels] = counts
            yield
        return found

    def process_families(self) -> list[Metric]:
        """Return the system's numbers of the process, such as open files. Call it on a thread."""
        return list(self._process.collect())

    def write(
        self, models: Iterable[ModelEntry], process: Iterable[Metric], *, openmetrics: bool
    ) -> Generator[None, None, tuple[bytes, ...]]:
        """Write all metrics, and return the text. Yields wherever other work may run.

        There is no yield inside a version's counts, so that they are consistent.

        models: The models of the catalog.
        process: The result of `process_families`.
        """
        exposition = Exposition()
        counted = [exposition.lines(head) for head in COUNTED]
        for labels, counts in list(self._versions.items()):
            if labels not in self._texts:
                self._texts[labels] = VersionText(labels, counts)
            texts = self._texts[labels].lines(openmetrics=openmetrics)
            for lines, text in zip(counted, texts, strict=True):
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
            "event_loop_lag_seconds", "Delay of due work on the event loop."
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
