"""A request and the requests that share its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

from app.batching.events import Ran
from app.batching.padding import PadPlan
from app.batching.policy import BatchDecision, Key
from app.batching.stacking import Outputs, RowsDoNotFollow, join, split
from app.errors import CohortError, InferenceFailed, InvalidInput
from app.tensors import Arrays

Reply = Callable[[Outputs | None, CohortError | None], None]
"""Called once with the outputs, in the model's order, or with the error."""


class RunControl(Protocol):
    """Stops a run that is in progress; called from another thread."""

    def stop(self) -> None: ...


Run = Callable[[Arrays, Any], Outputs]
"""Takes the inputs, and a RunControl of the session's own kind or None."""


@dataclass(frozen=True, slots=True)
class Runner:
    """How batches of one version are run.

    run: Runs the model; called from any thread.
    run_exclusively: Runs the model while no other run is in progress, on more threads.
    make_control: Makes the RunControl of one batch; None where runs cannot be stopped.
    padding: How requests of different lengths are padded; None where they do not share a run.
    """

    run: Run
    run_exclusively: Run
    make_control: Callable[[], RunControl | None]
    padding: PadPlan | None


class Ticket:
    """One queued request, between `submit` and its reply.

    `reply` is None once the request was answered or cancelled; the ticket then releases its inputs
    and its batch, since a caller may keep it for as long as it likes. Requests that are answered
    together share a ticket: `requests` is how many. `rows` is the length of axis 0, and `length`
    the length of each row in rows as they were profiled. Times are on the monotonic clock.
    """

    __slots__ = (
        "_left", "arrived", "batch", "deadline", "inputs", "key", "length", "reply", "requests",
        "rows",
    )  # fmt: skip

    def __init__(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        rows: int,
        key: Key,
        length: float,
        arrived: float,
        deadline: float,
        requests: int,
        left: Callable[[Ticket], None],
    ) -> None:
        self.inputs = inputs
        self.reply: Reply | None = reply
        self.rows = rows
        self.key = key
        self.length = length
        self.arrived = arrived
        self.deadline = deadline
        self.requests = requests
        self.batch: Batch | None = None
        self._left = left

    def cancel(self) -> None:
        """Leave the queue; a run that nobody waits for any more is stopped."""
        if self.reply is not None:
            self.reply = None
            self._left(self)


class Batch:
    """Requests that share a run, from being taken out of the queue until all are answered.

    `present` counts the callers that still wait. `timed` is the first run that succeeded.
    `exclusive` is set where no other run is in progress. `expected` is the estimated duration in
    seconds. `cannot_batch` says, after a run, why requests of this version cannot share one.
    """

    __slots__ = (
        "_runner", "answers", "cannot_batch", "control", "exclusive", "expected", "present", "rows",
        "runs", "tickets", "timed", "waits", "work",
    )  # fmt: skip

    def __init__(
        self,
        runner: Runner,
        tickets: list[Ticket],
        decision: BatchDecision,
        *,
        expected: float,
        now: float,
    ) -> None:
        self._runner = runner
        self.tickets = tickets
        self.rows, self.work = decision.rows, decision.work
        self.present = len(tickets)
        self.waits = [(now - ticket.arrived, ticket.requests) for ticket in tickets]
        self.expected = expected
        self.exclusive = False
        self.control: RunControl | None = None
        self.answers: list[Outputs | CohortError] = []
        self.runs: list[Ran] = []
        self.timed: Ran | None = None
        self.cannot_batch = ""

    def execute(self, *, stoppable: bool = True) -> None:
        """Run the model, on any thread, and leave one answer per request in `answers`.

        A run that fails because of its input is retried in halves until the request at fault runs
        by itself: n requests cause at most 2n - 1 runs, and a single request at fault at most
        2 log2(n), rounded up, besides the first. A run on the event loop need not be stoppable:
        nobody can cancel meanwhile.
        """
        try:
            if stoppable:
                # Made before `_run` looks who still waits: a later cancellation finds it.
                self.control = self._runner.make_control()
            self._run(self.tickets)
        except Exception as error:  # noqa: BLE001 - a bug: everyone still gets a reply
            missing = len(self.tickets) - len(self.answers)
            self.answers += [our_failure(error)] * missing

    def left(self) -> None:
        """One of the callers cancelled. The last one stops the run."""
        self.present -= 1
        if not self.present and self.control is not None:
            self.control.stop()

    def _run(self, tickets: list[Ticket]) -> None:
        if not self.present or all(ticket.reply is None for ticket in tickets):
            self.answers += [GONE] * len(tickets)  # nobody waits for these any more
            return
        try:
            self.answers += self._run_as_one(tickets)
        except RowsDoNotFollow as error:
            self.cannot_batch = str(error)
            for ticket in tickets:
                self._run([ticket])
        except (InvalidInput, InferenceFailed) as error:
            if len(tickets) == 1 or not _blames_input(error):
                self.answers += [error] * len(tickets)
            else:
                half = len(tickets) // 2
                self._run(tickets[:half])
                self._run(tickets[half:])

    def _run_as_one(self, tickets: list[Ticket]) -> list[Outputs]:
        plan = self._runner.padding
        lengths: dict[str, list[int]] = {}
        padding = 0.0
        if len(tickets) == 1:
            rows = tickets[0].rows
            feeds = tickets[0].inputs
        else:
            rows = self.rows if tickets is self.tickets else sum([one.rows for one in tickets])
            requests = [ticket.inputs for ticket in tickets]
            if plan is not None and (lengths := plan.lengths(requests)):
                feeds, padding = plan.join(requests, lengths)
            else:
                feeds = join(requests)
        succeeded = False
        started = monotonic()
        try:
            run = self._runner.run_exclusively if self.exclusive else self._runner.run
            outputs = run(feeds, self.control)
            succeeded = True
        finally:
            waits = () if self.runs else self.waits
            callers = sum([one.requests for one in tickets])
            ran = Ran(rows, callers, monotonic() - started, waits, padding)
            self.runs.append(ran)
            if succeeded and self.timed is None:
                self.timed = ran
        if len(tickets) == 1:
            return [outputs]
        parts = split(outputs, tickets, rows)
        if plan is not None and lengths:
            plan.trim(parts, lengths)
        return parts


GONE = InferenceFailed("the caller left", blames_input=False)


def our_failure(error: Exception) -> InferenceFailed:
    """The error that callers get for a bug."""
    failure = InferenceFailed("the server failed while running this batch", blames_input=False)
    failure.__cause__ = error
    return failure


def _blames_input(error: CohortError) -> bool:
    return not isinstance(error, InferenceFailed) or error.blames_input
