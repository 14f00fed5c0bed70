"""A request whose version a rollout chose, from its submission to its outcome."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cohort.batching import Outputs, Reply
from cohort.errors import Cancelled, CohortError
from cohort.tensors import Arrays, TensorSpec

CALLER_GONE = (Cancelled, CancelledError)
"""The errors of a request whose client disconnected."""


class CallerOutcome(NamedTuple):
    """The outcome of a request that was run, or whose caller stopped waiting for its run.

    variant, version: The variant and version that answered it.
    caller: Identifies its caller; None: not known.
    arrays: Its inputs by name.
    specs: The specs of the outputs, in the model's order.
    outputs: The outputs of the run; None if it failed.
    error: The error that the caller received; None: an answer.
    tight_deadline: True if the caller set a shorter limit than the model's timeout.
    now: When it was answered, in seconds on the monotonic clock.
    seconds: Its duration, from its arrival.
    """

    variant: str
    version: int
    caller: object
    arrays: Arrays
    specs: Sequence[TensorSpec]
    outputs: Outputs | None
    error: BaseException | None
    tight_deadline: bool
    now: float
    seconds: float


class ObservedRequest:
    """Reports the outcome that a caller received: that of a lease, not of its run.

    An answer that cannot be written fails after its run has succeeded, and a caller may leave
    during a run. Requests rejected before they are queued are not reported.

    variant, version, caller: As in CallerOutcome.
    report: Called once with the outcome, after the caller was answered if possible.
    """

    __slots__ = (
        "_answering", "_arrays", "_caller", "_closed", "_outputs", "_ran", "_replying", "_report",
        "_specs", "_submitted", "_tight_deadline", "_variant", "_version",
    )  # fmt: skip

    def __init__(
        self, variant: str, version: int, caller: object, report: Callable[[CallerOutcome], None]
    ) -> None:
        self._variant, self._version, self._caller = variant, version, caller
        self._report = report
        self._arrays: Arrays = {}
        self._specs: Sequence[TensorSpec] = ()
        self._outputs: Outputs | None = None
        self._answering = False
        self._submitted = self._ran = self._replying = self._tight_deadline = False
        self._closed: tuple[BaseException | None, float, float] | None = None

    def submitted(
        self, arrays: Arrays, specs: Sequence[TensorSpec], reply: Reply, *, tight_deadline: bool
    ) -> Reply:
        """Wrap the reply to the request's run.

        arrays: The inputs by name.
        specs: The specs of the outputs, in the model's order.
        reply: Called first, with the outputs or the error; it may close the lease.
        tight_deadline: True if the caller set a shorter limit than the model's timeout.
        """
        self._arrays, self._specs, self._tight_deadline = arrays, specs, tight_deadline
        self._submitted = True

        def replied(outputs: Outputs | None, error: CohortError | None) -> None:
            self._ran, self._outputs = True, outputs
            self._replying = True
            try:
                reply(outputs, error)
            finally:
                self._replying = False
                closed, self._closed = self._closed, None  # its error refers to this request
                if closed is not None:
                    self._report_outcome(*closed)

        return replied

    def answering(self) -> None:
        """Note that the caller has a part of the answer: if it leaves now, that does not count."""
        self._answering = True

    def close(self, error: BaseException | None, *, now: float, seconds: float) -> None:
        """Report the outcome: the `error` that the caller received, or an answer if it is None."""
        if self._answering and isinstance(error, CALLER_GONE):
            return
        if not self._ran and not (self._submitted and isinstance(error, CALLER_GONE)):
            return
        if self._replying:
            self._closed = (error, now, seconds)
        else:
            self._report_outcome(error, now, seconds)

    def _report_outcome(self, error: BaseException | None, now: float, seconds: float) -> None:
        self._report(
            CallerOutcome(
                self._variant,
                self._version,
                self._caller,
                self._arrays,
                self._specs,
                self._outputs,
                error,
                self._tight_deadline,
                now,
                seconds,
            )
        )
