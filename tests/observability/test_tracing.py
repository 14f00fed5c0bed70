"""When traces are made, and which requests are excluded before OpenTelemetry is asked."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.metadata import EntryPoint, entry_points
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased, _get_from_env_or_default
from opentelemetry.trace import get_current_span

from cohort.observability.tracing import (
    TracingUnavailable,
    open_tracing,
    opening,
    trace_id_in,
)
from cohort.observability.tracing.sampling import QuickSampling

IDS = st.one_of(st.integers(0, 2**128 - 1), st.integers(0, 2**64))
PARENTS = st.one_of(
    st.none(),
    st.text(max_size=60),
    st.builds(
        "{}-{:032x}-{:016x}-{}{}".format,
        st.sampled_from(["00", "01", "ff", "zz"]),
        IDS,
        st.integers(0, 2**64 - 1),
        st.sampled_from(["00", "01", "02", "03", "0x"]),
        st.sampled_from(["", "-more"]),
    ),
)
KINDS = ("always_on", "always_off", "traceidratio", "own")
SAMPLERS = ["", *KINDS, *(f"parentbased_{kind}" for kind in KINDS)]


@example(f"00-{'a' * 32}-{'b' * 16}-00-more", "", 1.0)
@given(PARENTS, st.sampled_from(SAMPLERS), st.sampled_from([0.0, 0.01, 0.5, 1.0]))
def test_what_is_excluded_the_sdk_drops_as_well(
    parent: str | None, sampler: str, ratio: float
) -> None:
    """For every sampler and every header, valid or not."""
    environment = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": str(ratio)}
    quick = QuickSampling(environment, TraceIdRatioBased.get_bound_for_rate(ratio))
    if quick.may_sample(parent):
        return
    with mock.patch.dict(os.environ, environment):
        sdk = _get_from_env_or_default()
    carrier = {} if parent is None else {"traceparent": parent}
    context = propagate.extract(carrier, Context())
    sent = get_current_span(context).get_span_context()
    if sent.is_valid:
        decision = sdk.should_sample(context, sent.trace_id, "x").decision
        assert decision is not Decision.RECORD_AND_SAMPLE
    else:  # a new trace: dropped by the ratio, or never sampled
        assert "ratio" in sampler or "off" in sampler
        assert ratio < 1.0 or "off" in sampler


def test_a_root_is_sampled_as_often_as_the_ratio_says() -> None:
    """The SDK begins the trace with the same id, and samples it."""
    environment = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}
    sampler = TraceIdRatioBased(0.25)
    quick = QuickSampling(environment, sampler.bound)
    kept = 0
    for _ in range(4000):
        if quick.may_sample(None):
            kept += 1
            decision = sampler.should_sample(None, quick.chosen, "x").decision
            assert decision is Decision.RECORD_AND_SAMPLE
    assert 800 < kept < 1200


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_TRACES_EXPORTER": ""},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_TRACES_EXPORTER": "None"},
        {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_nothing_is_traced_unless_asked_for(environment: dict[str, str]) -> None:
    """An exporter must be named."""
    assert open_tracing(environment) is None


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra that brings OpenTelemetry."""
    for name in list(sys.modules):
        if name.startswith("opentelemetry.sdk"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(TracingUnavailable, match=r"install the extra cohort\[tracing\]"):
        open_tracing({"OTEL_TRACES_EXPORTER": "otlp"})


def test_without_the_exporter_for_grpc_spans_go_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images have only one exporter, so it is the default there; the other must be installed."""
    everything = entry_points

    def without_grpc(group: str) -> list[EntryPoint]:
        return [one for one in everything(group=group) if "grpc" not in one.name]

    monkeypatch.setattr(opening, "entry_points", without_grpc)
    environment = {"OTEL_TRACES_EXPORTER": "otlp"}
    tracer = open_tracing(environment)
    assert tracer is not None
    asyncio.run(tracer.close(1))
    with pytest.raises(TracingUnavailable, match="its exporter is not installed"):
        open_tracing({**environment, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


def test_an_unknown_protocol_is_named() -> None:
    """With the protocols that there are."""
    environment = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "thrift"}
    with pytest.raises(TracingUnavailable, match="must be grpc or http/protobuf, got 'thrift'"):
        open_tracing(environment)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_BSP_SCHEDULE_DELAY", "-1"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "brotli"),
    ],
)
def test_values_that_opentelemetry_refuses_stop_the_start(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence has OpenTelemetry's reason."""
    monkeypatch.setenv(name, value)
    with pytest.raises(TracingUnavailable, match=r"refuses one of the OTEL_\* variables: \w"):
        open_tracing({"OTEL_TRACES_EXPORTER": "otlp"})


@pytest.mark.parametrize("header", [None, "", "00-0-0-0", f"00-{'0' * 32}-{'ab' * 8}-01"])
def test_only_a_valid_header_has_a_trace_id(header: str | None) -> None:
    """What a caller sends is logged only if it is an id."""
    assert trace_id_in(header) == ""
    assert trace_id_in(f"00-{'ab' * 16}-{'cd' * 8}-00") == "ab" * 16
