"""A request and the requests that share its run."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from app.batching.events import Ran
from app.batching.parts import Outputs, RowsDoNotFollow, join, split
from app.batching.policy import BatchDecision
from app.errors import CohortError, InferenceFailed, InvalidInput
from app.tensors import Arrays

if TYPE_CHECKING:
    from app.batching.batcher import Batcher

Reply = Callable[[Outputs | None, CohortError | None], None]


class Control(Protocol):
    """A run's emergency brake, pulled from another thread."""

    def stop(self) -> None: ...


Run = Callable[[Arrays, Any], Outputs]
"""Takes the inputs and a Control of the session's own kind, or None."""


class Ticket:
    """One request between `submit` and its reply. `reply` is None once answered or left.

    Several that are answered together may share one: `requests` says how many it counts for. It
    lets go of its inputs and its batch then: a caller may hold it for as long as it likes.
    """

    __slots__ = (
        "arrived", "batch", "batcher", "deadline", "inputs", "key", "length", "reply", "requests",
        "rows",
    )  # fmt: skip

    def __init__(
        self,
        batcher: Batcher,
        inputs: Arrays,
        reply: Reply,
        arrived: float,
        deadline: float,
        requests: int = 1,
    ) -> None:
        self.batcher = batcher
        self.inputs = inputs
        self.reply: Reply | None = reply
        self.arrived = arrived
        self.deadline = deadline
        self.requests = requests
        self.rows, self.key = batcher.place(inputs)
        self.length = 1.0
        if batcher.row_cost is not None and self.rows:
            self.length = batcher.elements(inputs) / (batcher.row_cost.elements * self.rows)
        self.batch: Batch | None = None

    def cancel(self) -> None:
        """Leave: the queue forgets the request, and a run nobody waits for any more is stopped."""
        if self.reply is not None:
            self.reply = None
            self.batcher.left(self)


class Batch:
    """Requests that share a run, from being cut until everyone is answered.

    `present` counts the callers that still wait. `timed` is the first run that succeeded.
    `exclusive` is set where nothing runs beside it.
    """

    __slots__ = (
        "answers",
        "batcher",
        "control",
        "exclusive",
        "expected",
        "present",
        "rows",
        "runs",
        "tickets",
        "timed",
        "waits",
        "work",
    )  # fmt: skip

    def __init__(
        self, batcher: Batcher, tickets: list[Ticket], cut: BatchDecision, now: float
    ) -> None:
        self.batcher = batcher
        self.tickets = tickets
        self.rows, self.work = cut.rows, cut.work
        self.present = len(tickets)
        self.waits = [(now - ticket.arrived, ticket.requests) for ticket in tickets]
        self.expected = batcher.seconds_for(cut.work)
        self.exclusive = False
        self.control: Control | None = None
        self.answers: list[Outputs | CohortError] = []
        self.runs: list[Ran] = []
        self.timed: Ran | None = None

    def execute(self, *, stoppable: bool = True) -> None:
        """Run the model, on any thread, and leave one answer per request in `answers`.

        A run that fails because of its input is retried in halves until the culprit stands alone:
        n requests cause at most 2n - 1 runs, and a single culprit at most 2 log2(n), rounded up,
        besides the first. A run on the event loop need not be stoppable: nobody leaves meanwhile.
        """
        try:
            if stoppable:
                # Made before `_run` looks who is still there: whoever leaves later finds it.
                self.control = self.batcher.make_control()
            self._run(self.tickets)
        except Exception as error:  # noqa: BLE001 - a bug of ours: everyone still gets an answer
            missing = len(self.tickets) - len(self.answers)
            self.answers += [our_failure(error)] * missing

    def left(self) -> None:
        """One of the callers is gone. The last one stops the run."""
        self.present -= 1
        if not self.present and self.control is not None:
            self.control.stop()

    def _run(self, tickets: list[Ticket]) -> None:
        if not self.present or all(ticket.reply is None for ticket in tickets):
            self.answers += [GONE] * len(tickets)  # nobody waits for these any more
            return
        try:
            self.answers += self._run_together(tickets)
        except RowsDoNotFollow as error:
            self.batcher.cannot_batch = str(error)
            for ticket in tickets:
                self._run([ticket])
        except (InvalidInput, InferenceFailed) as error:
            if len(tickets) == 1 or not _blames_input(error):
                self.answers += [error] * len(tickets)
            else:
                half = len(tickets) // 2
                self._run(tickets[:half])
                self._run(tickets[half:])

    def _run_together(self, tickets: list[Ticket]) -> list[Outputs]:
        plan = self.batcher.padding
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
            run = self.batcher.run_exclusively if self.exclusive else self.batcher.run
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
    """What callers are told of a bug."""
    failure = InferenceFailed("the server failed while running this batch", blames_input=False)
    failure.__cause__ = error
    return failure


def _blames_input(error: CohortError) -> bool:
    return not isinstance(error, InferenceFailed) or error.blames_input
