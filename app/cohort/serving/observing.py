"""Observers of requests: each request's stages, and counts of them."""

from __future__ import annotations

import asyncio
from typing import Protocol

from cohort.batching import Times
from cohort.errors import Cancelled, CohortError, NotReady, Overloaded, RunRefused
from cohort.metrics import Metrics
from cohort.serving.request_context import RequestContext
from cohort.serving.served import ServedVersion


class RanLease(Protocol):
    """A lease whose request has run."""

    served: ServedVersion

    @property
    def times(self) -> Times | None: ...


class Observer(Protocol):
    """Is notified of every request, on the event loop; it must not raise.

    For requests that are answered as a group, only `ended` is called, once for all of them.
    """

    def began(self, context: RequestContext) -> None:
        """A request was read; the choice of a version follows."""

    def queued(self, context: RequestContext, served: ServedVersion) -> None:
        """Its inputs were decoded, and wait for a run of the chosen version."""

    def ran(self, context: RequestContext, lease: RanLease) -> None:
        """Its run has ended; writing its outputs follows."""

    def ended(
        self,
        served: ServedVersion,
        variant: str,
        error: BaseException | None,
        seconds: float,
        times: int = 1,
        context: RequestContext | None = None,
    ) -> None:
        """`times` requests that had a version ended: with `error`, or with success if it is None.

        seconds: Time from the choice of the version, or from the arrival of a group's first
            request.
        context: The request's context; None if several were answered together.
        """

    def refused(self, model: str, error: CohortError, times: int = 1) -> None:
        """`times` requests for a known model were refused before they had a version."""


class RequestCounts:
    """Counts each request once, by version, variant and the outcome that its caller received.

    metrics: Holds the counters.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def began(self, context: RequestContext) -> None:
        """Do nothing: a request is counted once it has ended."""

    def queued(self, context: RequestContext, served: ServedVersion) -> None:
        """Do nothing: the batcher counts waiting requests."""

    def ran(self, context: RequestContext, lease: RanLease) -> None:
        """Do nothing: the batcher counts runs."""

    def ended(
        self,
        served: ServedVersion,
        variant: str,
        error: BaseException | None,
        seconds: float,
        times: int = 1,
        context: RequestContext | None = None,
    ) -> None:
        """Count the requests by their code."""
        del context
        counts = served.counts
        if error is None:
            counts.request(variant, "OK", seconds, times)
            return
        counts.request(variant, code_of(error), seconds, times)
        if isinstance(error, Overloaded | NotReady):
            counts.reject(error.code, times)
        elif isinstance(error, RunRefused):
            counts.refuse_run(variant)

    def refused(self, model: str, error: CohortError, times: int = 1) -> None:
        """Count the requests under the model's name, without a version."""
        counts = self._metrics.version(model, "")
        counts.request("", error.code, 0.0, times)
        if isinstance(error, Overloaded | NotReady):
            counts.reject(error.code, times)


def code_of(error: BaseException) -> str:
    """Return the code that an error is counted by: a bug counts as InferenceFailed."""
    if isinstance(error, CohortError):
        return error.code
    return Cancelled.__name__ if isinstance(error, asyncio.CancelledError) else "InferenceFailed"
