"""Every metric by name.

Counts are turned into text at a scrape, in parts between which the event loop goes on; gauges are
read at that moment. See decision 38.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from cohort.metrics.exposition import Exposition, parts
from cohort.metrics.histogram import DURATION_BUCKETS, Histogram, Labels
from cohort.metrics.keys import KeyMetrics
from cohort.metrics.live_counts import VersionCounts, count_versions
from cohort.metrics.remote import RemoteMetrics
from cohort.metrics.rollouts import RolloutMetrics
from cohort.metrics.tls import TlsMetrics
from cohort.metrics.trust import TrustMetrics
from cohort.metrics.version_metrics import VersionMetrics
from cohort.metrics.version_text import COUNTED, GAUGES, VersionText, gauge_lines
from cohort.metrics.webhooks import WebhookMetrics
from cohort.registry import RESTING, ModelEntry
from cohort.scheduling import TROUBLES
from cohort.session import cpu_limit


class Metrics:
    """All metrics of a process.

    models: Returns the catalog's entries; called at each scrape.
    serving: Returns whether each model serves, as `Registry.serving`; called at each scrape.
    rollouts: The metrics of rollouts and their shadows.
    hot_requests: Returns how many responses the fast path has sent; called at each scrape.
    memory: Returns the bytes that requests hold, and that they may hold; called at each scrape.
    ready: Returns whether the process was ready a moment ago; called at each scrape; default: no.
    folder_problems: Returns how many problems the models folder has; called at each scrape.
    folder_scan_seconds: Returns for how long the models folder has been looked at, 0 where nobody
        does; called at each scrape.
    troubles: Returns the kinds of trouble that the process is in; called at each scrape.
    keys: The metrics of callers' keys; None where callers need none.
    webhooks: The metrics of notifications; None where nobody is told.
    tls: The metrics of the certificate; None without TLS.
    trust: The metrics of the keys that sign versions; None where nobody must.
    remote: The metrics of a remote repository; None where the models are in a folder.
    log_lines_dropped: Returns how many log lines were not written; called at each scrape.
    """

    def __init__(
        self,
        *,
        models: Callable[[], Iterable[ModelEntry]],
        serving: Callable[[], Mapping[str, bool]] = dict,
        rollouts: RolloutMetrics,
        hot_requests: Callable[[], int],
        memory: Callable[[], tuple[int, int]],
        ready: Callable[[], bool] = bool,
        folder_problems: Callable[[], int] = int,
        folder_scan_seconds: Callable[[], float] = float,
        troubles: Callable[[], Collection[str]] = tuple,
        keys: KeyMetrics | None = None,
        webhooks: WebhookMetrics | None = None,
        tls: TlsMetrics | None = None,
        trust: TrustMetrics | None = None,
        remote: RemoteMetrics | None = None,
        log_lines_dropped: Callable[[], int] = int,
    ) -> None:
        self._models = models
        self._serving = serving
        self.rollouts = rollouts
        self._hot_requests = hot_requests
        self._memory = memory
        self._ready = ready
        self._folder_problems = folder_problems
        self._folder_scan_seconds = folder_scan_seconds
        self._troubles = troubles
        self._more = [one for one in (keys, tls, trust, webhooks, remote) if one is not None]
        self._log_lines_dropped = log_lines_dropped
        self._versions: dict[Labels, VersionMetrics] = {}
        self._texts: dict[Labels, VersionText] = {}
        self.loop_lag = Histogram(DURATION_BUCKETS)
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    def version(self, model: str, version: str) -> VersionMetrics:
        """The counts of a version, created at first use: for known names only, never a caller's."""
        labels = (model, version)
        try:
            return self._versions[labels]
        except KeyError:
            return self._versions.setdefault(labels, VersionMetrics())

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
        self, process: Iterable[Metric], *, openmetrics: bool
    ) -> Generator[None, None, tuple[bytes, ...]]:
        """Write all metrics; yields wherever others may have their turn, and returns the text.

        A version's counts are written between two of those, so that they agree with each other.

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
        for model in list(self._models()):
            for entry in model.versions.values():
                if entry.reason != RESTING:
                    for lines, text in zip(gauges, gauge_lines(model, entry), strict=True):
                        lines.append(text)
            yield
        for family in self._others():
            exposition.add(family)
            yield
        for family in process:
            exposition.add(family)
            yield
        blocks = []
        for block in exposition.blocks(openmetrics=openmetrics):
            blocks.append(block)
            yield
        return tuple(blocks)

    def _others(self) -> Iterator[Metric]:
        """What is not counted by version; large families in parts."""
        hot = CounterMetricFamily(
            "http_hot_requests", "Responses of the fast HTTP protocol, not of FastAPI."
        )
        hot.add_metric((), self._hot_requests())
        lines = CounterMetricFamily(
            "log_lines_dropped", "Log lines that were not written: standard error took no more."
        )
        lines.add_metric((), self._log_lines_dropped())
        yield from (hot, lines)
        for some in parts(list(self._serving().items()), 100):
            serves = GaugeMetricFamily(
                "model_serves",
                "1 if the model has a version that serves, else 0; none where an operator unloaded "
                "it.",
                labels=("model",),
            )
            for model, serving in some:
                serves.add_metric((model,), float(serving))
            yield serves
        yield from self.rollouts.collect()
        for one in self._more:
            yield from one.collect()
        lag = HistogramMetricFamily(
            "event_loop_lag_seconds", "How late the event loop runs what is due."
        )
        self.loop_lag.add_to(lag, ())
        yield lag
        unhealthy = GaugeMetricFamily(
            "server_unhealthy", "1 for each reason why the process is not well.", labels=("reason",)
        )
        troubles = self._troubles()
        for kind in TROUBLES:
            unhealthy.add_metric((kind,), float(kind in troubles))
        yield unhealthy
        held, maximum = self._memory()
        for name, help_text, value in (
            ("server_ready", "1 if the process answers 200 on /health/ready.", self._ready()),
            ("process_cpu_cores", "Cores that the process may keep busy.", cpu_limit()),
            ("memory_held_bytes", "Memory that requests and responses hold.", held),
            ("memory_budget_bytes", "Memory that they may hold.", maximum),
            (
                "models_folder_problems",
                "What is wrong in the models folder, as /health lists it.",
                self._folder_problems(),
            ),
            (
                "models_folder_scan_seconds",
                "How long the look at the models folder has taken that goes on; 0: none does.",
                self._folder_scan_seconds(),
            ),
        ):
            yield GaugeMetricFamily(name, help_text, value=value)
