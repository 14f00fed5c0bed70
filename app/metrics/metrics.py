"""Every metric by name.

Every request is counted on the event loop, so counting is plain Python: a list of bucket counts and
a bisect, about a tenth of the time that a locking client library takes. prometheus_client is used
at a scrape only: `Metrics` is one of its collectors and turns the counts into metric families.
Gauges are read at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from time import time

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from app.batching import InlineStall, Ran, RequestCancelled
from app.metrics.histogram import (
    DURATION_BUCKETS,
    RATIO_BUCKETS,
    SIZE_BUCKETS,
    VERSION_LABELS,
    Histogram,
    Labels,
)
from app.metrics.keys import KeyMetrics
from app.metrics.remote import RemoteMetrics
from app.metrics.rollouts import RolloutMetrics
from app.metrics.tls import TlsMetrics
from app.metrics.trust import TrustMetrics
from app.metrics.webhooks import WebhookMetrics
from app.registry import RESTING, ModelEntry, State
from app.repository import ModelConfig
from app.scheduling import TROUBLES
from app.session import cpu_limit


class VersionMetrics:
    """The counts of one version of a model, or of a model's requests that reached no version."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[str, str], int] = {}  # (variant, code)
        self.durations: dict[str, Histogram] = {}  # by variant
        self.queue = Histogram(DURATION_BUCKETS)
        self.run = Histogram(DURATION_BUCKETS)
        self.rows = Histogram(SIZE_BUCKETS)
        self.requests = Histogram(SIZE_BUCKETS)
        self.padding = Histogram(RATIO_BUCKETS)
        self.cancelled: dict[str, int] = {}  # by stage
        self.rejected: dict[str, int] = {}  # by reason
        self.stalls: dict[str, int] = {}  # by outcome
        self.run_refused: dict[str, int] = {}  # by variant
        self.load: Histogram = Histogram(DURATION_BUCKETS)
        self.failed_seconds = 0.0
        self.last_run = 0.0  # since the epoch
        self.objective = inf  # seconds
        self.slow = 0  # requests that took longer than the objective of their time
        self.runs_by_rows: dict[
            int, tuple[int, float]
        ] = {}  # count and seconds, to SIZE_BUCKETS[-1] rows

    def request(self, variant: str, code: str, seconds: float, times: int = 1) -> None:
        """Count `times` responses of a variant and code, each `seconds` from arrival to reply."""
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

    def reject(self, reason: str, times: int = 1) -> None:
        """Count `times` requests that were rejected before queuing."""
        self.rejected[reason] = self.rejected.get(reason, 0) + times

    def refuse_run(self, variant: str) -> None:
        """Count a request whose input fits the specs, and that the runtime refused in the run."""
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


class Metrics(Collector):
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
        self.loop_lag = Histogram(DURATION_BUCKETS)
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def version(self, model: str, version: str) -> VersionMetrics:
        """The counts of a version, created at first use: for known names only, never a caller's."""
        labels = (model, version)
        try:
            return self._versions[labels]
        except KeyError:  # a scrape's thread may be here, too
            return self._versions.setdefault(labels, VersionMetrics())

    def content_type(self, accept: str) -> str:
        """The content type of the format that an `accept` header prefers."""
        return choose_encoder(accept)[1]

    def text(self, accept: str) -> tuple[bytes, str]:
        """The metrics in the format that an `accept` header prefers, and its content type.

        For any thread: what is counted meanwhile changes no histogram that has been read.
        """
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def describe(self) -> Iterable[Metric]:
        """Describe nothing in advance, for prometheus_client."""
        return ()  # the families have labels that are known only when collected

    def collect(self) -> Iterator[Metric]:
        """All metric families as they are now, for prometheus_client."""
        yield from self._counters()
        yield from self._histograms()
        yield from _gauges(list(self._models()))
        serves = GaugeMetricFamily(
            "model_serves",
            "1 if the model has a version that serves, else 0; none where an operator unloaded it.",
            labels=("model",),
        )
        for model, serving in self._serving().items():
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

    def _counters(self) -> Iterator[Metric]:
        inference = CounterMetricFamily(
            "model_inference",
            "Responses by outcome: OK or the error's name.",
            labels=(*VERSION_LABELS, "variant", "code"),
        )
        rejected = CounterMetricFamily(
            "model_rejected",
            "Requests rejected before queuing.",
            labels=(*VERSION_LABELS, "reason"),
        )
        cancelled = CounterMetricFamily(
            "model_cancelled",
            "Requests that the caller cancelled.",
            labels=(*VERSION_LABELS, "stage"),
        )
        run_refused = CounterMetricFamily(
            "model_run_refused",
            "Requests whose input fits the model's specs, refused as invalid in the run.",
            labels=(*VERSION_LABELS, "variant"),
        )
        stalls = CounterMetricFamily(
            "model_inline_stalls",
            "Runs that held the event loop for long: finished, or stopped and run on a thread.",
            labels=(*VERSION_LABELS, "outcome"),
        )
        slow = CounterMetricFamily(
            "model_slow_requests",
            "Requests that took longer than the model's objective_ms.",
            labels=VERSION_LABELS,
        )
        for labels, counts in list(self._versions.items()):
            if counts.objective < inf:
                slow.add_metric(labels, counts.slow)
            for (variant, code), count in list(counts.outcomes.items()):
                inference.add_metric((*labels, variant, code), count)
            _add(rejected, labels, counts.rejected)
            _add(cancelled, labels, counts.cancelled)
            _add(stalls, labels, counts.stalls)
            for variant in list(counts.durations):  # from 0 on, so that a rate sees the first
                run_refused.add_metric((*labels, variant), counts.run_refused.get(variant, 0))
        hot = CounterMetricFamily(
            "http_hot_requests", "Responses of the fast HTTP protocol, not of FastAPI."
        )
        hot.add_metric((), self._hot_requests())
        lines = CounterMetricFamily(
            "log_lines_dropped", "Log lines that were not written: standard error took no more."
        )
        lines.add_metric((), self._log_lines_dropped())
        yield from (inference, slow, rejected, cancelled, stalls, run_refused, hot, lines)

    def _histograms(self) -> Iterator[Metric]:
        durations = HistogramMetricFamily(
            "model_inference_duration_seconds",
            "From a request's arrival to its reply.",
            labels=(*VERSION_LABELS, "variant"),
        )
        for labels, counts in list(self._versions.items()):
            for variant, histogram in list(counts.durations.items()):
                histogram.add_to(durations, (*labels, variant))
        yield durations
        for name, help_text, of in _PER_VERSION:
            family = HistogramMetricFamily(name, help_text, labels=VERSION_LABELS)
            for labels, counts in list(self._versions.items()):
                histogram = of(counts)
                if histogram.count:
                    histogram.add_to(family, labels)
            yield family


_PER_VERSION: tuple[tuple[str, str, Callable[[VersionMetrics], Histogram]], ...] = (
    ("model_queue_duration_seconds", "Time in a queue, by request.", lambda v: v.queue),
    ("model_run_duration_seconds", "Time of a run of the model.", lambda v: v.run),
    ("model_batch_rows", "Rows in a run.", lambda v: v.rows),
    ("model_batch_requests", "Requests in a run.", lambda v: v.requests),
    ("model_padding_ratio", "Padded share of a run's elements.", lambda v: v.padding),
    ("model_load_duration_seconds", "Time to load a version, with its checks.", lambda v: v.load),
)


def _add(family: CounterMetricFamily, labels: Labels, counts: Mapping[str, int]) -> None:
    for name, count in list(counts.items()):
        family.add_metric((*labels, name), count)


def _gauges(models: Sequence[ModelEntry]) -> Iterator[Metric]:
    queue = GaugeMetricFamily(
        "model_queue_requests", "Requests in the queue.", labels=VERSION_LABELS
    )
    inflight = GaugeMetricFamily(
        "model_inflight_requests", "Requests in progress.", labels=VERSION_LABELS
    )
    state = GaugeMetricFamily(
        "model_state", "1 for the current state of a version.", labels=(*VERSION_LABELS, "state")
    )
    outdated = GaugeMetricFamily(
        "model_outdated",
        "1 if a version serves its former files, because those on disk cannot be loaded.",
        labels=VERSION_LABELS,
    )
    info = GaugeMetricFamily(
        "model_provider_info",
        "The execution providers wanted, in order, and the active one.",
        labels=(*VERSION_LABELS, "wanted", "active"),
    )
    fallback = GaugeMetricFamily(
        "model_provider_fallback",
        "1 if a provider is not in use that cannot be had, or that the config asks for.",
        labels=VERSION_LABELS,
    )
    held_back = GaugeMetricFamily(
        "model_held_back",
        "1 if only requests that name the version reach it, because its signature is another.",
        labels=VERSION_LABELS,
    )
    objective = GaugeMetricFamily(
        "model_latency_objective_seconds",
        "Within what time requests should be answered: the model's objective_ms.",
        labels=VERSION_LABELS,
    )
    unpredictable = GaugeMetricFamily(
        "model_unpredictable",
        "1 if the duration of a run cannot be estimated, so that none executes on the event loop.",
        labels=VERSION_LABELS,
    )
    for model in models:
        for number, version in model.versions.items():
            if version.reason == RESTING:
                continue
            labels = (model.name, str(number))
            for one in State:
                state.add_metric((*labels, one.value), float(version.state is one))
            outdated.add_metric(labels, float(version.outdated))
            held_back.add_metric(labels, float(number in model.held_back))
            config = version.source.config or ModelConfig()
            if config.objective_ms is not None:
                objective.add_metric(labels, config.objective_ms / 1000)
            if (engine := version.engine) is not None:
                description = engine.describe()
                placement = description.placement
                queue.add_metric(labels, engine.waiting)
                inflight.add_metric(labels, engine.leases.count)
                info.add_metric((*labels, ",".join(placement.wanted), placement.active), 1)
                fallback.add_metric(labels, float(placement.fell_back))
                unpredictable.add_metric(labels, float(bool(description.unpredictable)))
    yield from (queue, inflight, state, outdated, held_back, objective)
    yield from (info, fallback, unpredictable)
