"""The spans of batches, which are linked with the requests that shared them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.trace import Link, Span, Status, StatusCode, Tracer

from cohort.batching import Ran
from cohort.observability.tracing.current import Attributes

if TYPE_CHECKING:
    from opentelemetry.context import Context

MAX_KNOWN = 64
"""Batches whose requests may still be answered, for example because outputs need a thread."""


class OpenBatch:
    """The span of a batch, until the event loop has answered its requests.

    link: The link to it.

    span: The span.
    ends: Its end, in nanoseconds since the epoch.
    ran: The run.
    """

    __slots__ = ("_ended", "_ends", "_span", "link", "ran")

    def __init__(self, span: Span, ends: int, ran: Ran) -> None:
        self.link = Link(span.get_span_context())
        self.ran = ran  # held, so that its identity stays its own
        self._span = span
        self._ends = ends
        self._ended = False

    def add(self, run: Span) -> None:
        """Link it with the run of one of its requests."""
        if not self._ended:
            self._span.add_link(run.get_span_context())

    def end(self) -> None:
        """End the span; later requests link to it one way."""
        self._ended = True
        self._span.end(self._ends)


class BatchSpans:
    """Makes the spans below those of requests. Their requests are sampled, and so are they.

    tracer: Makes spans, all of them sampled.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._known: OrderedDict[int, OpenBatch] = OrderedDict()

    def start(
        self,
        name: str,
        context: Context,
        start: int,
        attributes: Attributes,
        links: Sequence[Link] = (),
    ) -> Span:
        """Start a span below the one in `context`, at a time in nanoseconds since the epoch."""
        return self._tracer.start_span(
            name, context, attributes=attributes, links=links, start_time=start
        )

    def under(self, span: Span) -> Context:
        """Return a context with `span`, for spans below it."""
        return trace.set_span_in_context(span)

    @staticmethod
    def mark_failed(span: Span) -> None:
        """Set the status of a request for whose failure the server is at fault."""
        span.set_status(Status(StatusCode.ERROR))

    def open(
        self,
        ran: Ran,
        context: Context,
        run: tuple[int, int],
        model: Attributes,
    ) -> OpenBatch:
        """Return the batch of a run. Its span is below that of its first sampled request.

        context: Holds the span of the request that asks.
        run: Its begin and end, in nanoseconds since the epoch.
        model: The attributes of the model.
        """
        batch = self._known.get(id(ran))
        if batch is not None:
            return batch
        span = self.start(
            "batch",
            context,
            run[0],
            {
                **model,
                "cohort.batch.requests": ran.requests,
                "cohort.batch.rows": ran.rows,
            },
        )
        batch = self._known[id(ran)] = OpenBatch(span, run[1], ran)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        asyncio.get_running_loop().call_soon(batch.end)
        return batch
