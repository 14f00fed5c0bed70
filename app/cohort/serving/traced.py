"""Spans and exemplars of requests, where tracing is on."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from cohort.batching import Ran
from cohort.observability.tracing import RequestSpan
from cohort.registry import Cancellable
from cohort.serving.groups import Group, Member
from cohort.serving.observing import RanLease, RequestCounts, code_of
from cohort.serving.request_context import RequestContext
from cohort.serving.served import ServedVersion


class TracedCounts(RequestCounts):
    """Counts requests, and adds the stages of sampled ones to their spans. Is an `Observer`."""

    def queued(self, context: RequestContext, served: ServedVersion) -> None:
        """Note the end of decoding."""
        if context.span is not None:
            context.span.queued()

    def ran(self, context: RequestContext, lease: RanLease) -> None:
        """Add the stages until the end of the run, and the exemplars of the queue and the run."""
        span = context.span
        if span is not None:
            span.ran(lease.times, lease.served.model, lease.served.version)
            if lease.times is not None and lease.served.text is None:
                _exemplify_run(lease.served, span, *lease.times[:2])

    def ended(
        self,
        served: ServedVersion,
        variant: str,
        error: BaseException | None,
        seconds: float,
        times: int = 1,
        context: RequestContext | None = None,
    ) -> None:
        """Count the requests by their code, and add the last stage."""
        super().ended(served, variant, error, seconds, times, context)
        if context is not None and (span := context.span) is not None:
            code = "OK" if error is None else code_of(error)
            span.answered(served.model, served.version, variant, code)
            served.counts.exemplify(variant, seconds, span.trace_id, span.span_id)


class GroupSpans:
    """Adds the stages of requests that were answered together to the spans of sampled ones."""

    def answered(
        self,
        group: Group,
        members: Sequence[Member],
        since: float,
        queued: float,
        ended: float,
        ticket: Cancellable | None,
    ) -> MemberSpans | None:
        """Add the stages of an answered group; return its spans, None if no member is sampled.

        since: When the first was read, in seconds on the monotonic clock.
        queued, ended: When their run was queued or began, and when it ended.
        ticket: Their place in the queue; None: they ran at once.
        """
        spans = [one[0].span for one in members]
        if not any(spans):
            return None
        now, served = monotonic(), group.served
        times = None if ticket is None else ticket.times
        if times is None:
            rows = sum([wanted.rows for _, wanted, _ in members])
            times = 0.0, ended - queued, Ran(rows, len(members), ended - queued, ())
        began = queued + times[0]
        for span in spans:
            if span is not None:
                span.stage("decode", since, queued)
                span.ran_from(queued, began, ended, times, served.model, served.version)
                span.stage("encode", ended, now)
                span.name_version(served.model, served.version, group.variant, "OK")
                _exemplify_run(served, span, times[0], times[1])
                served.counts.exemplify(group.variant, ended - since, span.trace_id, span.span_id)
        return MemberSpans(spans)

    def failed(self, group: Group, members: Sequence[Member], code: str) -> None:
        """Set the version and the error of members that got the same error."""
        served = group.served
        for request, _, _ in members:
            if request.span is not None:
                request.span.name_version(served.model, served.version, group.variant, code)


class MemberSpans:
    """The spans of requests that were answered together. Is a `WorkSpans`.

    spans: For each request, its span, or None if it is not sampled.
    """

    def __init__(self, spans: Sequence[RequestSpan | None]) -> None:
        self._spans = spans

    def step(self, ended: object) -> None:
        """Do nothing: requests of pipelines are not answered together."""

    def shadow(self, version: int, began: float, code: str) -> None:
        """Add the shadow's run to each span."""
        for span in self._spans:
            if span is not None:
                span.shadow(version, began, code)

    def chosen(self, which: Sequence[bool]) -> MemberSpans:
        """See `WorkSpans`."""
        return MemberSpans(
            [span for span, wanted in zip(self._spans, which, strict=True) if wanted]
        )


def _exemplify_run(served: ServedVersion, span: RequestSpan, waited: float, seconds: float) -> None:
    served.counts.exemplify_run(waited, seconds, span.trace_id, span.span_id)
