"""The text that Prometheus reads, compared with the text of prometheus_client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from cohort.batching import InlineStall, Ran, RequestCancelled
from cohort.metrics import Histogram, VersionMetrics, negotiate
from cohort.metrics.exposition import TEXT_AT_ONCE, Exposition, FamilyHead, parts
from cohort.metrics.histogram import HistogramText
from cohort.metrics.version_text import COUNTED, VersionText
from tests.engines import ControlledEngine, make_catalog, make_entry
from tests.fakes import exposed, make_metrics


class Given(Collector):
    """A collector of these families."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def written(families: Iterable[Metric], *, openmetrics: bool) -> bytes:
    """Return the text of prometheus_client for `families`."""
    registry = CollectorRegistry()
    registry.register(Given(families))
    return (generate_openmetrics if openmetrics else generate_latest)(registry)


TEXTS = st.text(max_size=8)
NUMBERS = st.floats() | st.integers(0, 2**60).map(float)


@given(st.lists(st.tuples(TEXTS, TEXTS, NUMBERS), max_size=5), TEXTS, st.booleans())
def test_families_are_written_as_prometheus_client_writes_them(
    samples: list[tuple[str, str, float]], help_text: str, openmetrics: bool
) -> None:
    """Counters, gauges and histograms, whatever is in labels and help, in both formats."""
    counter = CounterMetricFamily("requests", help_text, labels=("b", "a"))
    gauge = GaugeMetricFamily("requests_now", help_text, labels=("b", "a"))
    histogram = HistogramMetricFamily("seconds", help_text, labels=("model",))
    for first, second, value in samples:
        counter.add_metric((first, second), value)
        gauge.add_metric((first, second), value)
        histogram.add_metric((first,), [("0.5", value), ("+Inf", value)], value)
    ours = Exposition()
    families = [counter, gauge, histogram, GaugeMetricFamily("one", "", value=1)]
    for family in families:
        ours.add(family)
    text = b"".join(ours.blocks(openmetrics=openmetrics))
    assert text == written(families, openmetrics=openmetrics)


def test_parts_of_a_family_stand_together() -> None:
    """They are under one head, in the order received, even if others come in between."""
    exposition = Exposition()
    for value in "ab":
        for name in ("first", "second"):
            part = GaugeMetricFamily(name, "Help.", labels=("of",))
            part.add_metric((value,), 1)
            exposition.add(part)
    assert b"".join(exposition.blocks(openmetrics=False)).decode().splitlines() == [
        "# HELP first Help.",
        "# TYPE first gauge",
        'first{of="a"} 1.0',
        'first{of="b"} 1.0',
        "# HELP second Help.",
        "# TYPE second gauge",
        'second{of="a"} 1.0',
        'second{of="b"} 1.0',
    ]


def test_a_long_text_comes_in_blocks() -> None:
    """The blocks have about the same size, however long the text; joined they are the text."""
    exposition = Exposition()
    line = b'series{of="x"} 1.0\n' * 50
    exposition.lines(FamilyHead("series", "gauge", "Help.")).extend([line] * 1000)
    blocks = list(exposition.blocks(openmetrics=True))
    assert all(TEXT_AT_ONCE <= len(block) < TEXT_AT_ONCE + 2000 for block in blocks[:-1])
    assert len(blocks) == len(line) * 1000 // TEXT_AT_ONCE + 1
    assert b"".join(blocks).count(b"\n") == 50_000 + 3


def test_large_lists_are_cut_and_an_empty_one_is_a_part() -> None:
    """A family without a line keeps its head."""
    assert list(parts([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
    assert list(parts([1, 2], 2)) == [[1, 2]]
    assert list(parts([], 2)) == [[]]


@given(st.lists(st.floats(0, 3), min_size=1), TEXTS)
def test_a_histogram_is_written_as_prometheus_client_writes_it(
    values: list[float], label: str
) -> None:
    """The label may be any text."""
    histogram = Histogram((0.1, 1.0, 2.0))
    for value in values:
        histogram.observe(value)
    family = HistogramMetricFamily("seconds", "", labels=("model",))
    histogram.add_to(family, (label,))
    ours = Exposition()
    escaped = label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    text = HistogramText("seconds", histogram, f'model="{escaped}"').text()
    ours.lines(FamilyHead("seconds", "histogram", "")).append(text)
    assert b"".join(ours.blocks(openmetrics=False)) == written([family], openmetrics=False)


def test_a_histogram_is_written_again_only_when_it_has_counted() -> None:
    """One without a value has no lines; the lines that it had are kept, not made alike."""
    histogram = Histogram((1.0, 2.0))
    text = HistogramText("seconds", histogram, 'model="m"')
    assert text.text() == b""
    histogram.observe(1.5)
    first = text.text()
    assert text.text() is first
    histogram.observe(1.75)
    assert text.text() != first
    assert b'seconds_sum{model="m"} 3.25\n' in text.text()


def used_counts() -> VersionMetrics:
    """Return the counts of a version of which everything has happened."""
    counts = VersionMetrics()
    counts.objective = 0.1
    counts.request('a"b', "OK", 0.2)
    counts.request("", "InvalidInput", 0.1, times=2)
    counts.reject("queue_full")
    counts.refuse_run("")
    counts.observe_batch(Ran(rows=2, requests=1, seconds=0.1, waits=[(0.01, 1)]))
    counts.observe_batch(RequestCancelled("queued"))
    counts.observe_batch(InlineStall(0.1, stopped=True))
    counts.load.observe(0.3)
    return counts


def test_each_line_of_a_version_has_its_labels_in_order_and_its_family() -> None:
    """The lines that prometheus_client's parser reads are written to the same lines again."""
    lines = VersionText(("m\\", "1"), used_counts()).lines()
    assert len(lines) == len(COUNTED)
    for head, text in zip(COUNTED, lines, strict=True):
        whole = head.text(openmetrics=False) + text
        (family,) = text_string_to_metric_families(whole.decode())
        assert (family.name, family.type) == (head.name, head.kind)
        assert family.samples
        assert {sample.labels["model"] for sample in family.samples} == {"m\\"}
        again = Exposition()
        again.add(family)
        assert b"".join(again.blocks(openmetrics=False)) == whole


@pytest.mark.parametrize(
    "happen",
    [
        lambda counts: counts.request("new", "OK", 0.01),
        lambda counts: counts.request("", "OK", 0.01),
        lambda counts: counts.request('a"b', "OK", 0.2),
        lambda counts: counts.reject("other"),
        lambda counts: counts.refuse_run(""),
        lambda counts: counts.observe_batch(Ran(rows=2, requests=1, seconds=0.1, waits=[])),
        lambda counts: counts.observe_batch(RequestCancelled("queued")),
        lambda counts: counts.observe_batch(InlineStall(0.1, stopped=True)),
        lambda counts: counts.load.observe(0.1),
        lambda counts: setattr(counts, "objective", float("inf")),
    ],
)
def test_what_has_happened_since_is_written(happen: object) -> None:
    """Lines that are kept say what new ones would."""
    counts = used_counts()
    text = VersionText(("m", "1"), counts)
    former = text.lines()
    happen(counts)  # type: ignore[operator]
    assert text.lines() == VersionText(("m", "1"), counts).lines() != former


def test_a_version_that_nobody_asked_has_no_line_of_requests() -> None:
    """Its gauges and the time of its load are there."""
    models = make_catalog({"m": [make_entry(1, ControlledEngine())]}).values()
    metrics = make_metrics()
    metrics.version("m", "1").load.observe(0.1)
    families = {
        family.name: len(family.samples)
        for family in text_string_to_metric_families(exposed(metrics, models))
        if family.name.startswith("model_")
    }
    assert {name for name, count in families.items() if count} == {
        *("model_load_duration_seconds", "model_state", "model_outdated", "model_held_back"),
        *("model_rows_mixed", "model_batching"),
        *("model_queue_requests", "model_inflight_requests", "model_provider_info"),
        *("model_provider_fallback", "model_unpredictable", "model_memory_bytes"),
    }


def test_a_version_is_written_in_one_go() -> None:
    """What is counted between two turns is in all of a version's families, or in none."""
    metrics = make_metrics()
    names = [f"m{number}" for number in range(5)]
    counts = [metrics.version(name, "1") for name in names]
    writing = metrics.write([], [], openmetrics=False)
    text = ""
    while not text:
        for one in counts:
            one.request("", "OK", 0.001)
        try:
            next(writing)
        except StopIteration as end:
            text = b"".join(end.value).decode()
    values = {
        (sample.name, sample.labels["model"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in {"model_inference_total", "model_inference_duration_seconds_count"}
    }
    assert [values["model_inference_total", name] for name in names] == [1, 2, 3, 4, 5]
    for name in names:
        pair = {values[family, name] for family in ("model_inference_total", DURATIONS)}
        assert len(pair) == 1


DURATIONS = "model_inference_duration_seconds_count"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain;version=1.0.0;escaping=allow-utf-8", "text/plain; version=1.0.0"),
        ("application/openmetrics-text;version=1.0.0", "application/openmetrics-text"),
        ("application/openmetrics-text;version=1.0.0;escaping=dots", "escaping=underscores"),
    ],
)
def test_the_format_follows_the_accept_header(accept: str, content_type: str) -> None:
    """Names are escaped in no way that would change ours."""
    assert content_type in negotiate(accept)


def test_openmetrics_ends_with_its_mark() -> None:
    """It names counters without `_total` above their lines."""
    text = exposed(make_metrics(), openmetrics=True)
    assert text.endswith("\n# EOF\n")
    assert "# TYPE http_hot_requests counter\nhttp_hot_requests_total 0.0\n" in text
