"""What is told of every request on its way, and the counts that are made of it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from cohort.errors import Cancelled, CohortError, NotReady, Overloaded, RunRefused
from cohort.metrics import Metrics
from cohort.serving.request_context import RequestContext
from cohort.serving.served import ServedVersion


class Observer(Protocol):
    """Is told of every request, on the event loop; it must not raise.

    A request that is answered with others is told of at its end only, with them.
    """

    def began(self, context: RequestContext) -> None:
        """A request was read, and a version is to be chosen."""

    def queued(self, context: RequestContext, served: ServedVersion) -> None:
        """Its inputs were read, and wait for a run of the version that was chosen."""

    def ran(self, context: RequestContext, served: ServedVersion) -> None:
        """Its run is over, and its outputs are to be written."""

    def ended(
        self,
        served: ServedVersion,
        variant: str,
        error: BaseException | None,
        seconds: float,
        times: int = 1,
        context: RequestContext | None = None,
    ) -> None:
        """`times` requests that had a version ended: with `error`, or answered where it is None.

        seconds: How long they took, from the choice of the version or the first one's arrival.
        context: The request's; None: they were answered together.
        """

    def refused(self, model: str, error: CohortError, times: int = 1) -> None:
        """`times` requests for a known model got no version of it."""


class RequestCounts:
    """Counts requests by version, variant and outcome; each once, as its caller saw it.

    metrics: Where they are counted.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def began(self, context: RequestContext) -> None:
        """Nothing: a request is counted once it has ended."""

    def queued(self, context: RequestContext, served: ServedVersion) -> None:
        """Nothing: the batcher counts what waits."""

    def ran(self, context: RequestContext, served: ServedVersion) -> None:
        """Nothing: the batcher counts runs."""

    def ended(
        self,
        served: ServedVersion,
        variant: str,
        error: BaseException | None,
        seconds: float,
        times: int = 1,
        context: RequestContext | None = None,
    ) -> None:
        """Count them by their code."""
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
        """Count them under the model's name, without a version."""
        counts = self._metrics.version(model, "")
        counts.request("", error.code, 0.0, times)
        if isinstance(error, Overloaded | NotReady):
            counts.reject(error.code, times)


def code_of(error: BaseException) -> str:
    """The code that an error is counted by: a bug is an InferenceFailed."""
    if isinstance(error, CohortError):
        return error.code
    return Cancelled.__name__ if isinstance(error, asyncio.CancelledError) else "InferenceFailed"
