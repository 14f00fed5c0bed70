"""The tracer of a process: it begins the spans of requests, and exports them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from opentelemetry import baggage, propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import SpanKind

from cohort.observability.tracing.batches import BatchSpans
from cohort.observability.tracing.sampling import Carrier, QuickSampling
from cohort.observability.tracing.spans import RequestSpan

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

MAX_BAGGAGE, MAX_BAGGAGE_CHARACTERS = 16, 256
"""Entries of baggage that a span has as attributes, and the characters of each."""

MAX_FLUSH_SECONDS = 5.0
"""Maximum time that the end of the process waits for spans to be exported."""

READERS_OF_HEADERS = (
    "opentelemetry.baggage.propagation",
    "opentelemetry.trace.propagation.tracecontext",
    "opentelemetry.trace.span",
)
"""Loggers that warn of callers' invalid headers, with up to 180 lines for each request."""


class _Pairs(Getter[Carrier]):
    """Reads headers for the propagators."""

    def get(self, carrier: Carrier, key: str) -> list[str] | None:
        name = key.lower().encode()
        values = [value.decode("latin-1") for one, value in carrier if one == name]
        if name == b"baggage":  # a list that may be sent in parts
            values = [",".join(values)] if values else []
        return values or None

    def keys(self, carrier: Carrier) -> list[str]:
        return [name.decode("latin-1") for name, _ in carrier]


_PAIRS = _Pairs()


class SdkTracer:
    """Begins a span for each request that is sampled. Implements `Tracer`.

    requests: Samples requests, with the sampler of the environment.
    below: Samples everything; it shares the exporter of `requests`.
    quick: Excludes most requests that are not sampled.
    """

    def __init__(
        self, requests: TracerProvider, below: TracerProvider, quick: QuickSampling
    ) -> None:
        self._provider = requests
        self._tracer = requests.get_tracer("cohort")
        self._batches = BatchSpans(below.get_tracer("cohort"))
        self._quick = quick
        for name in READERS_OF_HEADERS:
            logging.getLogger(name).setLevel(logging.ERROR)

    def may_sample(self, traceparent: str | None) -> bool:
        """See `Tracer`."""
        return self._quick.may_sample(traceparent)

    def begin(
        self, name: str, carrier: Carrier, attributes: Mapping[str, str | int]
    ) -> RequestSpan | None:
        """See `Tracer`."""
        context = propagate.extract(carrier, Context(), _PAIRS)
        span = self._tracer.start_span(name, context, SpanKind.SERVER, attributes)
        if not span.is_recording():
            return None
        for key, value in list(baggage.get_all(context).items())[:MAX_BAGGAGE]:
            text = str(value)[:MAX_BAGGAGE_CHARACTERS]
            span.set_attribute(f"baggage.{key[:MAX_BAGGAGE_CHARACTERS]}", text)
        return RequestSpan(self._batches, span, trace.set_span_in_context(span, context))

    async def close(self, seconds: float) -> None:
        """Export the waiting spans, for at most `seconds`; drop the rest.

        A thread does it that the process does not wait for: an exporter may hang for long.
        """
        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            try:
                loop.call_soon_threadsafe(over.set)
            except RuntimeError:  # the loop is closed
                return

        threading.Thread(target=shut_down, name="cohort-spans", daemon=True).start()
        try:
            async with asyncio.timeout(min(max(seconds, 0.0), MAX_FLUSH_SECONDS)):
                await over.wait()
        except TimeoutError:
            return
