"""Traces of requests, exported with OpenTelemetry.

`open_tracing` returns None unless the environment asks for traces; nothing of OpenTelemetry is
imported before. A `RequestSpan` belongs to one sampled request. Requests that are not sampled have
none (docs/operations/tracing.md).
"""

from cohort.observability.tracing.current import current_span, set_current
from cohort.observability.tracing.opening import Tracer, TracingUnavailable, open_tracing
from cohort.observability.tracing.sampling import Carrier, trace_id_in, traceparent_in
from cohort.observability.tracing.spans import RequestSpan

__all__ = [
    "Carrier",
    "RequestSpan",
    "Tracer",
    "TracingUnavailable",
    "current_span",
    "open_tracing",
    "set_current",
    "trace_id_in",
    "traceparent_in",
]
