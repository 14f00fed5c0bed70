"""What is counted of rollouts and their shadows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from math import isfinite

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from app.metrics.histogram import VERSION, Histogram, Labels
from app.rollouts import Compared, Dropped, RolledBack, Rollout, RolloutEvent

DIFFERENCES = (0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4)


class RolloutMetrics:
    """Counts what happens to rollouts, and exposes it with their weights.

    Args:
        live: Returns the rollouts in use, with the server's decisions applied; called at each
            scrape.
        valid: Returns whether the rollouts file can be read; called at each scrape.
    """

    def __init__(self, *, live: Callable[[], Iterable[Rollout]], valid: Callable[[], bool]) -> None:
        self._live = live
        self._valid = valid
        self._rollbacks: Counter[Labels] = Counter()
        self._compared: Counter[Labels] = Counter()
        self._dropped: Counter[Labels] = Counter()
        self._disagreed: Counter[Labels] = Counter()
        self._differences: dict[Labels, Histogram] = {}
        self._relative: dict[Labels, Histogram] = {}

    def observe(self, event: RolloutEvent) -> None:
        """Count what happened; a rollback in the process that decided it."""
        match event:
            case Compared(model, version, disagrees, outputs):
                labels: Labels = (model, str(version))
                self._compared[labels] += 1
                self._disagreed[labels] += disagrees
                self._dropped[labels] += 0  # shown from the first copy on: a rate begins at 0
                for one in outputs:
                    of = (*labels, one.output)
                    _observe(self._differences, of, one.largest)
                    _observe(self._relative, of, one.relative)
            case Dropped(model, version):
                self._dropped[model, str(version)] += 1
                self._compared[model, str(version)] += 0
            case RolledBack(model, version, variants, _, reason, _, ours) if ours:
                for variant in variants or ("",):
                    self._rollbacks[model, str(version), variant, reason] += 1

    def collect(self) -> Iterator[Metric]:
        weight = GaugeMetricFamily(
            "rollout_weight",
            "A variant's weight; 0 once it is rolled back.",
            labels=(*VERSION, "variant"),
        )
        for rollout in self._live():
            for name, variant in rollout.variants.items():
                of = (rollout.model, str(variant.version), name)
                weight.add_metric(of, 0.0 if variant.rolled_back else variant.weight)
        valid = GaugeMetricFamily(
            "rollouts_config_valid", "1 while the rollouts file can be read, 0 while it cannot."
        )
        valid.add_metric((), float(self._valid()))
        yield from (weight, valid)
        yield _counter(
            "rollout_rollbacks",
            "Variants this process took out of a rollout; no variant: a shadow.",
            self._rollbacks,
            (*VERSION, "variant", "reason"),
        )
        yield _counter("shadow_compared", "Copies compared with what was answered.", self._compared)
        yield _counter("shadow_dropped", "Copies given up for want of room.", self._dropped)
        yield _counter("shadow_disagreement", "Copies answered differently.", self._disagreed)
        for kind, histograms in (("absolute", self._differences), ("relative", self._relative)):
            differences = HistogramMetricFamily(
                f"shadow_max_{kind[:3]}_difference",
                f"The largest {kind} difference in an output, by request.",
                labels=(*VERSION, "output"),
            )
            for labels, histogram in histograms.items():
                histogram.add_to(differences, labels)
            yield differences


def _observe(histograms: dict[Labels, Histogram], of: Labels, value: float | None) -> None:
    """Count a difference between numbers; text has none, and an infinite one is no number."""
    if value is not None and isfinite(value):
        if of not in histograms:
            histograms[of] = Histogram(DIFFERENCES)
        histograms[of].observe(value)


def _counter(
    name: str, help_text: str, counts: Counter[Labels], labels: Labels = VERSION
) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family
