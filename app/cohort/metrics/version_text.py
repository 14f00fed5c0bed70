"""The lines of one version of a model, for /metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from cohort.metrics.exposition import FamilyHead, label_text, number
from cohort.metrics.histogram import Histogram, HistogramText, Labels
from cohort.metrics.version_metrics import VersionMetrics
from cohort.registry import ModelEntry, State, VersionEntry
from cohort.repository import ModelConfig

COUNTERS = (
    FamilyHead("model_inference", "counter", "Responses by outcome: OK or the error's name."),
    FamilyHead(
        "model_slow_requests", "counter", "Requests that took longer than the model's objective_ms."
    ),
    FamilyHead("model_rejected", "counter", "Requests rejected before queuing."),
    FamilyHead("model_cancelled", "counter", "Requests that the caller cancelled."),
    FamilyHead(
        "model_inline_stalls",
        "counter",
        "Runs that blocked the event loop: finished, or stopped and run on a thread.",
    ),
    FamilyHead(
        "model_run_refused",
        "counter",
        "Requests that fit the model's specs but that the runtime rejected in the run.",
    ),
)
HISTOGRAMS = (
    FamilyHead(
        "model_inference_duration_seconds",
        "histogram",
        "Time from a request's arrival to its reply.",
    ),
    FamilyHead("model_queue_duration_seconds", "histogram", "Time in a queue, by request."),
    FamilyHead("model_run_duration_seconds", "histogram", "Time of a run of the model."),
    FamilyHead("model_batch_rows", "histogram", "Rows in a run."),
    FamilyHead("model_batch_requests", "histogram", "Requests in a run."),
    FamilyHead("model_padding_ratio", "histogram", "Padded share of a run's elements."),
    FamilyHead(
        "model_load_duration_seconds", "histogram", "Time to load a version, with its checks."
    ),
)
COUNTED = (*COUNTERS, *HISTOGRAMS)
"""The families of `VersionText.lines`."""

GAUGES = (
    FamilyHead("model_queue_requests", "gauge", "Requests in the queue."),
    FamilyHead("model_inflight_requests", "gauge", "Requests in progress."),
    FamilyHead("model_state", "gauge", "1 for the current state of a version."),
    FamilyHead(
        "model_outdated",
        "gauge",
        "1 if a version serves former files because those on disk cannot be loaded.",
    ),
    FamilyHead(
        "model_held_back",
        "gauge",
        "1 if only requests that name the version reach it, because its signature differs.",
    ),
    FamilyHead(
        "model_rows_mixed",
        "gauge",
        "1 if batching is off because requests changed each other's answers.",
    ),
    FamilyHead(
        "model_batching",
        "gauge",
        "1 if requests may share runs; `rows` is the graph's verdict.",
    ),
    FamilyHead(
        "model_latency_objective_seconds",
        "gauge",
        "Time within which requests should be answered: the model's objective_ms.",
    ),
    FamilyHead(
        "model_provider_info",
        "gauge",
        "The wanted execution providers, in order, and the active one.",
    ),
    FamilyHead(
        "model_provider_fallback",
        "gauge",
        "1 if the first provider is unavailable, or in the config but not in use.",
    ),
    FamilyHead(
        "model_unpredictable",
        "gauge",
        "1 if run times cannot be estimated, so that no run is on the event loop.",
    ),
    FamilyHead(
        "model_memory_bytes",
        "gauge",
        "Growth of the process's memory while a version was loaded.",
    ),
)
"""The families of `gauge_lines`."""


class VersionText:
    """The lines of a version's counts; unchanged ones are kept.

    Comparing counts takes 4 µs per version, writing them 40 µs. Requests pay nothing for it.
    """

    def __init__(self, labels: Labels, counts: VersionMetrics) -> None:
        self._counts = counts
        self._model, self._version = map(label_text, ("model", "version"), labels)
        of = f"{self._model},{self._version}"
        histograms = (counts.queue, counts.run, counts.rows, counts.requests, counts.padding)
        self._histograms = [
            HistogramText(head.name, histogram, of)
            for head, histogram in zip(HISTOGRAMS[1:], (*histograms, counts.load), strict=True)
        ]
        self._durations: dict[str, HistogramText] = {}
        self._seen: tuple[object, ...] = ()
        self._counters: tuple[bytes, ...] = ()

    def lines(self, *, openmetrics: bool = False) -> tuple[bytes, ...]:
        """Return the current lines, one element for each of COUNTED, in that order.

        openmetrics: True to add exemplars; default: False.
        """
        for variant, histogram in self._counts.durations.items():
            if variant not in self._durations:
                self._durations[variant] = self._duration(variant, histogram)
        return (
            *self._counter_lines(),
            b"".join([one.text(openmetrics=openmetrics) for one in self._durations.values()]),
            *(one.text(openmetrics=openmetrics) for one in self._histograms),
        )

    def _duration(self, variant: str, histogram: Histogram) -> HistogramText:
        labels = f"{self._model},{label_text('variant', variant)},{self._version}"
        return HistogramText(HISTOGRAMS[0].name, histogram, labels)

    def _counter_lines(self) -> tuple[bytes, ...]:
        one = self._counts
        counts = (one.outcomes, one.rejected, one.cancelled, one.stalls, one.run_refused)
        seen = (*counts, one.slow, one.objective < inf, len(one.durations))
        if seen != self._seen:
            self._seen = (*(dict(each) for each in counts), *seen[len(counts) :])
            self._counters = tuple(text.encode() for text in self._write_counters())
        return self._counters

    def _write_counters(self) -> Sequence[str]:
        one, model, version = self._counts, self._model, self._version
        inference = "".join(
            f"model_inference_total{{{label_text('code', code)},{model},"
            f"{label_text('variant', variant)},{version}}} {count}.0\n"
            for (variant, code), count in one.outcomes.items()
        )
        slow = f"model_slow_requests_total{{{model},{version}}} {one.slow}.0\n"
        refused = "".join(  # from 0, so that a rate includes the first
            f"model_run_refused_total{{{model},{label_text('variant', variant)},{version}}} "
            f"{one.run_refused.get(variant, 0)}.0\n"
            for variant in one.durations
        )
        return (
            inference,
            slow if one.objective < inf else "",
            self._by("model_rejected_total", "reason", one.rejected),
            self._by("model_cancelled_total", "stage", one.cancelled),
            self._by("model_inline_stalls_total", "outcome", one.stalls),
            refused,
        )

    def _by(self, name: str, label: str, counts: Mapping[str, int]) -> str:
        labels = (
            (sorted((self._model, self._version, label_text(label, value))), count)
            for value, count in counts.items()
        )
        return "".join(f"{name}{{{','.join(of)}}} {count}.0\n" for of, count in labels)


def gauge_lines(model: ModelEntry, entry: VersionEntry) -> Sequence[bytes]:
    """Return a version's gauges, one element for each of GAUGES, in that order."""
    model_label = label_text("model", model.name)
    version_label = label_text("version", str(entry.number))
    of = f"{{{model_label},{version_label}}}"
    states = "".join(
        f'model_state{{{model_label},state="{one.value}",{version_label}}} '
        f"{_flag(entry.state is one)}\n"
        for one in State
    )
    outdated = f"model_outdated{of} {_flag(entry.outdated)}\n"
    mixed = f"model_rows_mixed{of} {_flag(bool(entry.mixed))}\n"
    held_back = f"model_held_back{of} {_flag(entry.number in model.held_back)}\n"
    config = entry.source.config or ModelConfig()
    objective = ""
    if config.objective_ms is not None:
        seconds = number(config.objective_ms / 1000)
        objective = f"model_latency_objective_seconds{of} {seconds}\n"
    queue = inflight = batching = info = fallback = unpredictable = memory = ""
    if (engine := entry.engine) is not None:
        description = engine.describe()
        placement = description.placement
        queue = f"model_queue_requests{of} {engine.waiting}.0\n"
        inflight = f"model_inflight_requests{of} {engine.leases.count}.0\n"
        if (shared := description.batching) is not None:
            rows = label_text("rows", shared.rows.kind.value)
            batches = _flag(shared.policy.batches)
            batching = f"model_batching{{{model_label},{rows},{version_label}}} {batches}\n"
            unpredictable = f"model_unpredictable{of} {_flag(shared.unpredictable)}\n"
        active = label_text("active", placement.active)
        wanted = label_text("wanted", ",".join(placement.wanted))
        info = f"model_provider_info{{{active},{model_label},{version_label},{wanted}}} 1.0\n"
        if description.memory_bytes:
            memory = f"model_memory_bytes{of} {description.memory_bytes}.0\n"
        fallback = f"model_provider_fallback{of} {_flag(placement.fell_back)}\n"
    texts = (
        *(queue, inflight, states, outdated, held_back, mixed),
        *(batching, objective, info, fallback, unpredictable, memory),
    )
    return [text.encode() for text in texts]


def _flag(value: object) -> str:
    return "1.0" if value else "0.0"
