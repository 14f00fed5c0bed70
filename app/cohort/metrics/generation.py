"""Metrics of language models."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family

from cohort.generative.events import GenerationCounts
from cohort.metrics.histogram import VERSION_LABELS, Labels
from cohort.metrics.metrics import Metrics

VARIANT_LABELS = (*VERSION_LABELS, "variant")

ENGINE_GAUGES = (
    ("model_sequences_running", "Answers that are being generated.", "running"),
    ("model_sequences_waiting", "Answers that wait for a place in the cache.", "waiting"),
    ("model_kv_cache_used_bytes", "Memory of the cache that holds tokens.", "cache_used"),
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


class GenerationMetrics:
    """Counts of language models by version, and their tokens' times by variant.

    metrics: Holds the times.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._counts: dict[Labels, GenerationCounts] = {}

    def counts(self, model: str, version: int) -> GenerationCounts:
        """Return the counts of a version; the first call creates them."""
        return self._counts.setdefault((model, str(version)), GenerationCounts())

    def collect(self) -> Iterator[Family]:
        """Return the current metric families."""
        for name, described, field in TOKEN_HISTOGRAMS:
            times = HistogramMetricFamily(name, described, labels=VARIANT_LABELS)
            for labels, variants in self._metrics.token_times():
                for variant, counts in variants.items():
                    getattr(counts, field).add_to(times, (*labels, variant))
            yield times
        for name, described, field in ENGINE_COUNTERS:
            counter = CounterMetricFamily(name, described, labels=VERSION_LABELS)
            for labels, one in self._counts.items():
                counter.add_metric(labels, getattr(one, field))
            yield counter
        for name, described, field in ENGINE_GAUGES:
            gauge = GaugeMetricFamily(name, described, labels=VERSION_LABELS)
            for labels, one in self._counts.items():
                gauge.add_metric(labels, getattr(one, field))
            yield gauge
        usage = GaugeMetricFamily(
            "model_kv_cache_usage_ratio", "Used share of the cache.", labels=VERSION_LABELS
        )
        for labels, one in self._counts.items():
            usage.add_metric(labels, one.cache_used / one.cache_total if one.cache_total else 0.0)
        yield usage
