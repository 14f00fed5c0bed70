"""Metrics that are counted, and the text that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from cohort.batching import BatchPolicy, Ran, RequestCancelled
from cohort.comparing import OutputDifference
from cohort.metrics import DURATION_BUCKETS, Histogram, Metrics, RolloutMetrics
from cohort.registry import ModelEntry
from cohort.repository import ModelConfig
from cohort.rollouts import Compared
from cohort.row_independence import RowKind, RowVerdict
from cohort.session import Fallback, Placement
from tests.engines import ControlledEngine, make_catalog, make_entry
from tests.fakes import exposed, make_metrics


def samples(
    metrics: Metrics, models: Iterable[ModelEntry] = ()
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of one scrape by name and labels, as Prometheus's own parser reads it."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposed(metrics, models))
        for sample in family.samples
    }


def labels(**values: str) -> tuple[tuple[str, str], ...]:
    """Labels in the order `samples` has them."""
    return tuple(sorted(values.items()))


@given(values=st.lists(st.floats(0, 100)))
def test_a_histogram_counts_each_value_in_its_bucket(values: list[float]) -> None:
    """Cumulative counts, inclusive upper bounds, as Prometheus defines them."""
    histogram = Histogram(DURATION_BUCKETS)
    for value in values:
        histogram.observe(value)
    family = HistogramMetricFamily("seconds", "")
    histogram.add_to(family, ())
    counts = {s.labels["le"]: s.value for s in family.samples if s.name == "seconds_bucket"}
    for bound in DURATION_BUCKETS:
        assert counts[str(bound)] == sum(value <= bound for value in values)
    assert counts["+Inf"] == histogram.count == len(values)
    total = next(s.value for s in family.samples if s.name == "seconds_sum")
    assert total == pytest.approx(sum(values))


def test_an_answer_is_counted_by_outcome_and_timed_by_variant() -> None:
    """The code is OK or the error's name; both kinds are timed."""
    metrics = make_metrics()
    counts = metrics.version("iris", "1")
    counts.request("", "OK", 0.0002)
    counts.request("", "OK", 0.2)
    counts.request("", "InvalidInput", 0.0001)
    seen = samples(metrics)
    of = {"model": "iris", "version": "1", "variant": ""}
    assert seen["model_inference_total", labels(**of, code="OK")] == 2
    assert seen["model_inference_total", labels(**of, code="InvalidInput")] == 1
    assert seen["model_inference_duration_seconds_count", labels(**of)] == 3


def test_requests_beyond_the_objective_are_counted() -> None:
    """All outcomes count, exactly; without an objective, there is no series."""
    metrics = make_metrics()
    counts, others = metrics.version("iris", "1"), metrics.version("iris", "2")
    others.request("", "OK", 9.0)
    counts.objective = 0.12
    counts.request("a", "OK", 0.12)
    counts.request("a", "OK", 0.13, times=3)
    counts.request("b", "DeadlineExceeded", 0.2)
    seen = samples(metrics)
    assert seen["model_slow_requests_total", labels(model="iris", version="1")] == 4
    assert ("model_slow_requests_total", labels(model="iris", version="2")) not in seen


@pytest.mark.parametrize("missed", [True, False])
def test_a_provider_that_is_missed_is_a_fallback(missed: bool) -> None:
    """One that does not suit a model, which did not ask for it, is none."""
    refused = Fallback("cuda", "no device", missed)
    placement = Placement(("cuda", "cpu"), "cpu", (refused,), {"cpu": 1})
    entry = make_entry(1, ControlledEngine(placement=placement))
    config = ModelConfig(objective_ms=150)
    entry = replace(entry, source=replace(entry.source, config=config))
    seen = samples(make_metrics(), make_catalog({"iris": [entry]}).values())
    of = labels(model="iris", version="1")
    assert seen["model_provider_fallback", of] == missed
    assert seen["model_latency_objective_seconds", of] == 0.15


@pytest.mark.parametrize("kind", [RowKind.PROVEN, RowKind.RANDOM])
@pytest.mark.parametrize("rows", [1, 8])
def test_whether_a_version_batches_is_a_gauge_with_the_verdict(kind: RowKind, rows: int) -> None:
    """A version has one series: batching may be off though rows are independent."""
    engine = ControlledEngine(rows=RowVerdict(kind))
    engine.policy = BatchPolicy(max_batch_size=rows)
    seen = samples(make_metrics(), make_catalog({"iris": [make_entry(1, engine)]}).values())
    of = labels(model="iris", version="1", rows=kind.value)
    assert {key: value for key, value in seen.items() if key[0] == "model_batching"} == {
        ("model_batching", of): float(rows > 1)
    }


def test_a_run_is_counted_with_its_rows_requests_and_waits() -> None:
    """One run, one observation each; one wait per request; callers who left by stage."""
    metrics = make_metrics()
    counts = metrics.version("iris", "1")
    counts.observe_batch(Ran(rows=12, requests=3, seconds=0.01, waits=[(0.001, 2), (0.003, 1)]))
    counts.observe_batch(RequestCancelled("queued"))
    seen = samples(metrics)
    of = labels(model="iris", version="1")
    assert seen["model_run_duration_seconds_count", of] == 1
    assert seen["model_batch_rows_sum", of] == 12
    assert seen["model_batch_requests_sum", of] == 3
    assert seen["model_queue_duration_seconds_count", of] == 3
    stage = labels(model="iris", version="1", stage="queued")
    assert seen["model_cancelled_total", stage] == 1


def test_the_same_version_is_counted_in_one_place() -> None:
    """Every call for a version's counts returns the same object."""
    metrics = make_metrics()
    assert metrics.version("iris", "1") is metrics.version("iris", "1")
    assert metrics.version("iris", "1") is not metrics.version("iris", "2")


def test_process_metrics_and_loop_lag_are_there() -> None:
    """Memory, CPU and descriptors of the process, and how late its loop is."""
    metrics = make_metrics()
    metrics.loop_lag.observe(0.003)
    names = {name for name, _ in samples(metrics)}
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total"} <= names
    assert "event_loop_lag_seconds_bucket" in names


def test_buckets_reach_from_50_microseconds_to_30_seconds() -> None:
    """Both ends of the design, ascending."""
    assert (DURATION_BUCKETS[0], DURATION_BUCKETS[-1]) == (50e-6, 30.0)
    assert list(DURATION_BUCKETS) == sorted(DURATION_BUCKETS)
    assert bisect_left(DURATION_BUCKETS, 0.0) == 0


def test_differences_of_a_shadow_are_counted_in_both_measures() -> None:
    """They are counted by output; infinities and NaN are in neither histogram."""
    metrics = RolloutMetrics()
    outputs = [OutputDifference("scores", False, 0.5, 0.002), OutputDifference("text", True)]
    metrics.observe(Compared("digits", 3, True, outputs))
    metrics.observe(Compared("digits", 3, True, [OutputDifference("scores", True, inf, inf)]))
    found = {
        (sample.name, sample.labels.get("output")): sample.value
        for family in metrics.collect()
        for sample in family.samples
        if "le" not in sample.labels
    }
    assert found["shadow_max_abs_difference_sum", "scores"] == 0.5
    assert found["shadow_max_rel_difference_sum", "scores"] == 0.002
    assert ("shadow_max_abs_difference_sum", "text") not in found
