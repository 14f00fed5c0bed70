"""Metrics of language models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family

from cohort.generative.events import (
    Closed,
    Ended,
    GenerationEvent,
    GenerationObserver,
    GenerationState,
    Preempted,
    Stepped,
)
from cohort.metrics.histogram import VERSION_LABELS, Labels
from cohort.metrics.metrics import Metrics

VARIANT_LABELS = (*VERSION_LABELS, "variant")

ENGINE_GAUGES = (
    ("model_sequences_running", "Answers that are being generated.", "running"),
    ("model_sequences_waiting", "Answers that wait for a place in the cache.", "waiting"),
    ("model_kv_cache_used_bytes", "Memory of the cache that running answers use.", "cache_used"),
    ("model_kv_cache_prefix_bytes", "Memory of kept prompts, which is free.", "cache_prefixes"),
    ("model_kv_cache_total_bytes", "Memory of the whole cache.", "cache_total"),
)
ENGINE_COUNTERS = (
    ("model_prompt_tokens", "Tokens of prompts.", "prompt_tokens"),
    ("model_generated_tokens", "Tokens of answers.", "generated_tokens"),
    ("model_prefix_hit_tokens", "Tokens of prompts found in the cache.", "prefix_hit_tokens"),
    ("model_preemptions", "Answers that lost their place in the cache.", "preemptions"),
)
TOKEN_HISTOGRAMS = (
    (
        "gen_ai_server_time_to_first_token_seconds",
        "Time from a request's arrival to its first token.",
        "first",
    ),
    (
        "gen_ai_server_time_per_output_token_seconds",
        "Mean time of a token after the first, by complete answer.",
        "each",
    ),
    (
        "model_time_between_tokens_seconds",
        "Time from one new piece of an answer to the next.",
        "between",
    ),
)


@dataclass(slots=True)
class TokenCounts:
    """The tokens of a variant of a version, and how often an answer was pre-empted."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0


class GenerationMetrics:
    """Counts and times of language models by variant, and the states of their engines.

    metrics: Holds the times.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._counts: dict[Labels, defaultdict[str, TokenCounts]] = {}  # by version, by variant
        self._states: dict[Labels, Callable[[], GenerationState]] = {}  # the states of open engines

    def observer(
        self, model: str, version: str, state: Callable[[], GenerationState]
    ) -> GenerationObserver:
        """Return the observer of a version's engine. See `cohort.generative.events.MakeObserver`.

        state: Returns the engine's current state.
        """
        labels = (model, version)
        counts = self._counts_of(labels)
        counts[""]  # from 0, so that a rate includes the first tokens
        self._states[labels] = state

        def count(event: GenerationEvent) -> None:
            if event.__class__ is Stepped:
                for variant in event.variants:
                    counts[variant].generated_tokens += 1
            elif isinstance(event, Ended):
                counts[event.variant].prompt_tokens += event.prompt
                counts[event.variant].prefix_hit_tokens += event.cached
            elif isinstance(event, Preempted):
                counts[event.variant].preemptions += 1
            elif isinstance(event, Closed) and self._states.get(labels) is state:
                del self._states[labels]

        return count

    def collect(self) -> Iterator[Family]:
        """Return the current metric families."""
        for labels, known in self._metrics.token_times():
            for variant in known:
                self._counts_of(labels)[variant]
        yield from self._times()
        for name, described, field in ENGINE_COUNTERS:
            counter = CounterMetricFamily(name, described, labels=VARIANT_LABELS)
            for labels, variants in self._counts.items():
                for variant, counts in variants.items():
                    counter.add_metric((*labels, variant), getattr(counts, field))
            yield counter
        states = {labels: state() for labels, state in self._states.items()}
        for name, described, field in ENGINE_GAUGES:
            gauge = GaugeMetricFamily(name, described, labels=VERSION_LABELS)
            for labels, one in states.items():
                gauge.add_metric(labels, getattr(one, field))
            yield gauge
        usage = GaugeMetricFamily(
            "model_kv_cache_usage_ratio",
            "Share of the cache that running answers use.",
            labels=VERSION_LABELS,
        )
        for labels, one in states.items():
            usage.add_metric(labels, one.cache_used / one.cache_total if one.cache_total else 0.0)
        yield usage

    def _counts_of(self, labels: Labels) -> defaultdict[str, TokenCounts]:
        return self._counts.setdefault(labels, defaultdict(TokenCounts))

    def _times(self) -> Iterator[Family]:
        for name, described, field in TOKEN_HISTOGRAMS:
            times = HistogramMetricFamily(name, described, labels=VARIANT_LABELS)
            for labels, variants in self._metrics.token_times():
                for variant, one in variants.items():
                    getattr(one, field).add_to(times, (*labels, variant))
            yield times
