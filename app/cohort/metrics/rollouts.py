"""Metrics of rollouts and their shadows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import isfinite, log

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from cohort.metrics.exposition import parts
from cohort.metrics.histogram import VERSION_LABELS, Histogram, Labels
from cohort.rollouts import (
    Compared,
    Dropped,
    LimitEvidence,
    RolledBack,
    Rollout,
    RolloutEvent,
    Rollouts,
)
from cohort.rollouts.watcher import RolloutWatcher

DIFFERENCE_BUCKETS = (
    0.0,
    1e-8,
    1e-7,
    1e-6,
    1e-5,
    1e-4,
    1e-3,
    0.01,
    0.1,
    1.0,
    10.0,
    100.0,
    1e3,
    1e4,
)


class RolloutMetrics:
    """Counts of rollouts' events."""

    def __init__(self) -> None:
        self._rollbacks: Counter[Labels] = Counter()
        self._compared: Counter[Labels] = Counter()
        self._dropped: Counter[Labels] = Counter()
        self._disagreed: Counter[Labels] = Counter()
        self._differences: dict[Labels, Histogram] = {}
        self._relative: dict[Labels, Histogram] = {}

    def observe(self, event: RolloutEvent) -> None:
        """Count an event. A rollback counts only in the process that decided it."""
        match event:
            case Compared(model, version, disagrees, outputs):
                labels: Labels = (model, str(version))
                self._compared[labels] += 1
                self._disagreed[labels] += disagrees
                self._dropped[labels] += (
                    0  # shown from the first copy on, so that a rate starts at 0
                )
                for one in outputs:
                    of = (*labels, one.output)
                    _observe(self._differences, of, one.largest)
                    _observe(self._relative, of, one.relative)
            case Dropped(model, version, copies):
                self._dropped[model, str(version)] += copies
                self._compared[model, str(version)] += 0
            case RolledBack(model, version, variants, _, reason, _, decided_here) if decided_here:
                for variant in variants or ("",):
                    self._rollbacks[model, str(version), variant, reason] += 1

    def collect(self) -> Iterator[Metric]:
        """Return the current metric families."""
        yield _counter(
            "rollout_rollbacks",
            "Variants that this process rolled back; shadows have no variant.",
            self._rollbacks,
            (*VERSION_LABELS, "variant", "reason"),
        )
        yield _counter(
            "shadow_compared", "Copies of requests compared with the response.", self._compared
        )
        yield _counter(
            "shadow_dropped",
            "Copies of requests dropped: no room, or no idle slot in time.",
            self._dropped,
        )
        yield _counter(
            "shadow_disagreement",
            "Copies of requests on which the shadow disagreed.",
            self._disagreed,
        )
        for kind, histograms in (("absolute", self._differences), ("relative", self._relative)):
            for some in parts(list(histograms.items()), 10):
                differences = HistogramMetricFamily(
                    f"shadow_max_{kind[:3]}_difference",
                    f"The largest {kind} difference in an output, by request.",
                    labels=(*VERSION_LABELS, "output"),
                )
                for labels, histogram in some:
                    histogram.add_to(differences, labels)
                yield differences


class RolloutGauges:
    """Weights of rollouts, with the server's decisions applied, and their evidence.

    rollouts: The rollouts of all models.
    watcher: The reader of the rollouts file and the state folder.
    """

    def __init__(self, rollouts: Rollouts, watcher: RolloutWatcher) -> None:
        self._rollouts, self._watcher = rollouts, watcher

    def collect(self) -> Iterator[Metric]:
        """Return the current metric families, in parts if there are many rollouts."""
        live = [one.rollout for one in self._rollouts.live.values()]
        for some in parts(live, 50):
            yield from _weight_families(some)
        valid = GaugeMetricFamily(
            "rollouts_config_valid", "1 if the rollouts file is valid or missing, else 0."
        )
        valid.add_metric((), float(self._watcher.valid))
        state = GaugeMetricFamily(
            "state_folder_problems", "Problems of the state folder, as listed by /health."
        )
        state.add_metric((), len(self._watcher.state_problems))
        yield from (valid, state)
        for found in parts(list(self._rollouts.evidence()), 20):
            yield from _evidence_families(found)


def _weight_families(rollouts: Iterable[Rollout]) -> Iterator[Metric]:
    weight = GaugeMetricFamily(
        "rollout_weight",
        "A variant's weight; 0 while it is rolled back.",
        labels=(*VERSION_LABELS, "variant"),
    )
    step = GaugeMetricFamily(
        "rollout_ramp_step",
        "Step of a variant's ramp, from 1; last + 1 after its end; 0 if rolled back.",
        labels=(*VERSION_LABELS, "variant"),
    )
    for rollout in rollouts:
        for name, variant in rollout.variants.items():
            of = (rollout.model, str(variant.version), name)
            weight.add_metric(of, 0.0 if variant.rolled_back else variant.weight)
        if rollout.ramp is not None:
            ramped = rollout.variants[rollout.ramp.variant]
            step.add_metric(
                (rollout.model, str(ramped.version), ramped.name),
                0.0 if ramped.rolled_back else rollout.step + 1,
            )
    yield from (weight, step)


def _evidence_families(found: Iterable[LimitEvidence]) -> Iterator[Metric]:
    """Return gauges, as evidence restarts with a new version or an edited limit."""
    labels = (*VERSION_LABELS, "variant", "limit")
    value = GaugeMetricFamily(
        "rollout_evidence_log10",
        "The evidence that a variant is beyond a limit, as log10 of its e-value.",
        labels=labels,
    )
    threshold = GaugeMetricFamily(
        "rollout_evidence_threshold_log10",
        "The log10 of the e-value at which the limit counts as broken.",
        labels=labels,
    )
    requests = GaugeMetricFamily(
        "rollout_evidence_requests", "Requests that count as evidence.", labels=(*labels, "side")
    )
    bad = GaugeMetricFamily(
        "rollout_evidence_bad_requests",
        "Requests that failed, were slow or disagreed, as evidence.",
        labels=(*labels, "side"),
    )
    for model, (version, variant, limit), stream, log_threshold in found:
        of = (model, str(version), variant, limit)
        value.add_metric(of, stream.evidence.log_e / log(10))
        threshold.add_metric(of, log_threshold / log(10))
        for side, counts in (("variant", stream.variant), ("baseline", stream.baseline)):
            requests.add_metric((*of, side), counts.total)
            bad.add_metric((*of, side), counts.bad)
    yield from (value, threshold, requests, bad)


def _observe(histograms: dict[Labels, Histogram], of: Labels, value: float | None) -> None:
    """Count a finite difference. Text does not have one, and infinity fits no bucket."""
    if value is not None and isfinite(value):
        if of not in histograms:
            histograms[of] = Histogram(DIFFERENCE_BUCKETS)
        histograms[of].observe(value)


def _counter(
    name: str, help_text: str, counts: Counter[Labels], labels: Labels = VERSION_LABELS
) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=labels)
    for values, count in list(counts.items()):
        family.add_metric(values, count)
    return family
