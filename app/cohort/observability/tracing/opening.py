"""The start of tracing, configured by OpenTelemetry's own variables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from cohort.errors import quoted
from cohort.extras import how_to_install

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter

    from cohort.observability.tracing.sampling import Carrier
    from cohort.observability.tracing.spans import RequestSpan

EXPORTER = "OTEL_TRACES_EXPORTER"
GROUP = "opentelemetry_traces_exporter"

PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
"""The exporters of OTLP, by protocol."""

HTTP_PORT = 4318
"""The port that collectors have for OTLP over HTTP."""


class TracingUnavailable(Exception):
    """Traces are requested, but cannot be made; the message names the reason and the fix."""


class Tracer(Protocol):
    """Begins a span for each request that is sampled, and exports spans."""

    def may_sample(self, traceparent: str | None) -> bool:
        """Return False if a request with this header is certain to be dropped; very fast."""

    def begin(
        self, name: str, carrier: Carrier, attributes: Mapping[str, str | int]
    ) -> RequestSpan | None:
        """Begin the span of a request for which `may_sample` is True; None if it is dropped."""

    async def close(self, seconds: float) -> None:
        """Export the waiting spans, for at most `seconds`; drop the rest."""


def open_tracing(environment: Mapping[str, str], worker: int | None = None) -> Tracer | None:
    """Start tracing; return None unless OTEL_TRACES_EXPORTER names an exporter.

    environment: The variables of the process; the SDK reads the same ones from `os.environ`.
    worker: The number of this worker; default None: a single process.

    Raises TracingUnavailable.
    """
    names = [one.strip() for one in environment.get(EXPORTER, "").lower().split(",") if one.strip()]
    disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if disabled or not names or names == ["none"]:
        return None
    try:
        return _open(names, environment, worker)
    except ImportError as error:
        raise TracingUnavailable(
            f"{EXPORTER} is {quoted(','.join(names))}, but OpenTelemetry is not installed: "
            f"{how_to_install('tracing')}, or unset the variable"
        ) from error
    except TracingUnavailable:
        raise
    except Exception as error:  # raised by OpenTelemetry's and others' exporters
        raise TracingUnavailable(
            f"OpenTelemetry refuses one of the OTEL_* variables: {error}"
        ) from error


def _open(names: list[str], environment: Mapping[str, str], worker: int | None) -> Tracer:
    from opentelemetry.sdk.trace import SynchronousMultiSpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON, TraceIdRatioBased

    from cohort.observability.tracing.sampling import QuickSampling
    from cohort.observability.tracing.tracing import SdkTracer

    processors = SynchronousMultiSpanProcessor()  # type: ignore[no-untyped-call]
    for name in names:
        processors.add_span_processor(BatchSpanProcessor(_exporter(name, environment)))
    ratio = _ratio(environment.get("OTEL_TRACES_SAMPLER_ARG", ""))
    quick = QuickSampling(environment, TraceIdRatioBased.get_bound_for_rate(ratio))

    class ChosenIds(RandomIdGenerator):
        """Begins a trace with the id that it was sampled by."""

        def generate_trace_id(self) -> int:
            chosen, quick.chosen = quick.chosen, 0
            return chosen or super().generate_trace_id()

    resource = _resource(worker)
    shared: dict[str, Any] = {
        "resource": resource, "shutdown_on_exit": False, "active_span_processor": processors
    }  # fmt: skip
    return SdkTracer(
        TracerProvider(id_generator=ChosenIds(), **shared),
        TracerProvider(sampler=ALWAYS_ON, **shared),
        quick,
    )


def _exporter(name: str, environment: Mapping[str, str]) -> SpanExporter:
    found = {one.name: one for one in entry_points(group=GROUP)}
    wanted = _otlp(environment, found) if name == "otlp" else name
    if wanted not in found:
        known = ", ".join(sorted({"none", *found} - {*PROTOCOLS.values()}))
        if wanted in PROTOCOLS.values():
            raise TracingUnavailable(
                f"{EXPORTER} is {quoted(name)}, but its exporter is not installed: "
                f"{how_to_install('tracing')}"
            )
        raise TracingUnavailable(f"{EXPORTER} must be one of {known}; got {quoted(name)}")
    exporter: SpanExporter = found[wanted].load()()
    return exporter


def _otlp(environment: Mapping[str, str], found: Collection[str]) -> str:
    """Return the name of the exporter for the protocol.

    The SDK's default is grpc. Images have only the other one of `found`.
    """
    protocol = _first(
        environment, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
    )
    if not protocol:
        endpoint = _first(
            environment, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
        )
        try:
            over_http = urlsplit(endpoint).port == HTTP_PORT
        except ValueError:
            over_http = False
        grpc = PROTOCOLS["grpc"] in found and not over_http
        protocol = "grpc" if grpc else "http/protobuf"
    if protocol not in PROTOCOLS:
        raise TracingUnavailable(
            f"OTEL_EXPORTER_OTLP_PROTOCOL must be {' or '.join(PROTOCOLS)}, got {quoted(protocol)}"
        )
    return PROTOCOLS[protocol]


def _first(environment: Mapping[str, str], *names: str) -> str:
    return next((value for one in names if (value := environment.get(one, "").strip())), "")


def _ratio(text: str) -> float:
    """Return the ratio of OTEL_TRACES_SAMPLER_ARG; 1 if it is invalid, as the SDK does."""
    try:
        ratio = float(text)
    except ValueError:
        return 1.0
    return ratio if 0.0 <= ratio <= 1.0 else 1.0


def _resource(worker: int | None) -> Resource:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource

    resource = Resource.create()
    own: dict[str, str | int] = {} if worker is None else {"cohort.worker": worker}
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        own[SERVICE_NAME] = "cohort"
    return resource.merge(Resource(own))
