"""Queued requests, and the batches that run them."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from time import monotonic, thread_time
from typing import Any, Protocol

from cohort.batching.events import Ran, Times
from cohort.batching.output_limit import OutputLimit
from cohort.batching.policy import BatchDecision, Key
from cohort.batching.samples import Sample, Sampler, choose_below, sample_row
from cohort.batching.stacking import Outputs, RowsDoNotFollow, Stacking
from cohort.errors import CohortError, DeadlineExceeded, InferenceFailed, InvalidInput, NotReady
from cohort.tensors import Arrays

Reply = Callable[[Outputs | None, CohortError | None], None]
"""Called once: with the outputs in the model's order and None, or with None and the error."""


class RunControl(Protocol):
    """Stops a run that is in progress."""

    def stop(self) -> None:
        """Stop the run soon, from any thread; the run then raises InferenceFailed."""


Run = Callable[[Arrays, Any], Outputs]
"""Takes the inputs and the session's RunControl, or None. Returns the outputs in order."""


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs the batches of one version.

    run: Runs the model; called from any thread.
    run_exclusively: Runs the model while no other run is in progress, on more threads.
    make_control: Makes the RunControl of one batch; None if runs cannot be stopped.
    stacking: Joins and splits requests.
    output_limit: The maximum bytes of outputs of a request.
    """

    run: Run
    run_exclusively: Run
    make_control: Callable[[], RunControl | None]
    stacking: Stacking
    output_limit: OutputLimit


class Ticket:
    """One queued request, between `submit` and its reply.

    After the reply or a cancellation, `reply` is None and the ticket no longer refers to its inputs
    and batch. A caller may keep the ticket for any time.

    inputs: The arrays by name.
    reply: Called with the result.
    rows: The length of axis 0.
    key: Requests with equal keys may share a run.
    length: The length of each row, as a multiple of the profiled row.
    weight: Its part of the queue's work, in rows of that length.
    arrived, deadline: Seconds on the monotonic clock.
    place: Its arrival, adjusted for priority, on the same clock.
    timeout: The limit behind the deadline in seconds, for the message.
    requests: The number of coalesced requests in this one.
    on_cancel: Called with this ticket when it is cancelled.

    times: After its run, the seconds that it waited, those of its run, and the run; None before.
    over: Called at the end of a run that continued without it; None: not needed.
    """

    __slots__ = (
        "_on_cancel",
        "arrived",
        "batch",
        "deadline",
        "inputs",
        "key",
        "length",
        "over",
        "place",
        "reply",
        "requests",
        "rows",
        "timeout",
        "times",
        "weight",
    )  # fmt: skip

    def __init__(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        rows: int,
        key: Key,
        length: float,
        weight: float,
        arrived: float,
        place: float,
        deadline: float,
        timeout: float,
        requests: int,
        on_cancel: Callable[[Ticket], None],
    ) -> None:
        self.inputs = inputs
        self.reply: Reply | None = reply
        self.rows = rows
        self.key = key
        self.length = length
        self.weight = weight
        self.arrived = arrived
        self.place = place
        self.deadline = deadline
        self.timeout = timeout
        self.requests = requests
        self.batch: Batch | None = None
        self.times: Times | None = None
        self.over: Callable[[], None] | None = None
        self._on_cancel = on_cancel

    def cancel(self) -> None:
        """Leave the queue. A run whose requests are all cancelled is stopped."""
        if self.reply is not None:
            self.reply = None
            self._on_cancel(self)

    def when_over(self, then: Callable[[], None]) -> bool:
        """Call `then` once its run has ended; return False if it is not in a run."""
        if self.batch is None:
            return False
        self.over = then
        return True


def insert_by_place(queue: deque[Ticket], ticket: Ticket) -> None:
    """Put a request before all that have a later place."""
    queue.insert(bisect_right(queue, ticket.place, key=attrgetter("place")), ticket)


class Batch:
    """Requests that share a run, from leaving the queue until their replies are called.

    runner: Runs the model.
    tickets: The requests, in the order of their rows.
    decision: The decision that chose them.
    expected: The estimated duration of the run, in seconds.
    now: When they left the queue, in seconds on the monotonic clock.

    rows, work: The rows of all requests, and the same in rows of the profiled length.
    waits: Seconds in the queue and the number of requests, for each ticket.
    exclusive: True if no other run is in progress; set by the scheduler before `execute`.
    pending: The number of tickets that are neither cancelled nor past their deadline.
    results: After `execute`, the outputs or the error of each ticket.
    started: When they left the queue, in seconds on the monotonic clock.
    feeds: After `execute`, the inputs of its last run.
    runs: After `execute`, every run of the model for the batch.
    first_success: The first of `runs` that succeeded; None if all failed.
    on_processor: The processor time of that run, in seconds.
    unwanted: When it was stopped because no caller waited, in seconds on the monotonic clock; 0
        while a caller waits.
    device_lost: After `execute`, the driver's message about a permanent failure of the device; else
        "".
    cannot_batch: After `execute`, why requests of this version cannot share a run; "" if they can.
    """

    __slots__ = (
        "_runner", "cannot_batch", "control", "device_lost", "exclusive", "expected", "feeds",
        "first_success", "on_processor", "pending", "results", "rows", "runs", "started", "tickets",
        "unwanted", "waits", "work",
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
        self.pending = len(tickets)
        self.waits = [(now - ticket.arrived, ticket.requests) for ticket in tickets]
        self.expected = expected
        self.started = now
        self.exclusive = False
        self.control: RunControl | None = None
        self.feeds: Arrays = {}
        self.results: list[Outputs | CohortError] = []
        self.runs: list[Ran] = []
        self.first_success: Ran | None = None
        self.on_processor = 0.0
        self.unwanted = 0.0
        self.device_lost = self.cannot_batch = ""

    def execute(self, control: RunControl | None = None) -> None:
        """Run the model, on any thread, and store one result per ticket in `results`.

        A run that fails because of its input is retried in halves until the request at fault runs
        alone. With n requests, this causes at most 2n - 1 runs. A single request at fault causes at
        most 2 log2(n) runs, rounded up, in addition to the first. `control` is for runs on the
        event loop. By default one is made, which stops the runs when all requests are cancelled.
        Raises nothing.
        """
        try:
            # Made before `_run` checks for cancelled tickets: a later cancellation finds it.
            self.control = self._runner.make_control() if control is None else control
            self._run(self.tickets)
        except BaseException as bug:  # noqa: BLE001 - every request gets a reply, the thread lives
            missing = len(self.tickets) - len(self.results)
            self.results += [internal_failure(bug)] * missing

    def offer(self, sampler: Sampler) -> None:
        """Give the sampler one request, if a sample is due and several shared the only run."""
        if self.started >= sampler.due and (sample := self._sample()) is not None:
            sampler.take(sample)

    def _sample(self) -> Sample | None:
        tickets = self.tickets
        chosen = choose_below(len(tickets), self.started)
        ticket, answer = tickets[chosen], self.results[chosen]
        if len(self.runs) > 1 or isinstance(answer, CohortError) or not ticket.rows:
            return None
        if ticket.requests > 1:  # coalesced, along axis 0
            return sample_row(ticket.inputs, answer, ticket.rows, self.started)
        if len(tickets) == 1:
            return None
        together = max(2, self.rows // ticket.rows)  # a run of the same size, of requests like it
        place = sum([one.rows for one in tickets[:chosen]]) // ticket.rows
        return Sample(ticket.inputs, answer, min(place, together - 1), together)

    def drop_one(self) -> None:
        """Count one ticket less in `pending`; at 0 the run is stopped."""
        self.pending -= 1
        if not self.pending:
            self.unwanted = monotonic()
            if self.control is not None:
                self.control.stop()

    def _run(self, tickets: list[Ticket]) -> None:
        if not self.pending or all(ticket.reply is None for ticket in tickets):
            self.results += [CANCELLED] * len(tickets)
            return
        try:
            self.results += self._run_joined(tickets)
        except RowsDoNotFollow as error:
            self.cannot_batch = str(error)
            for ticket in tickets:
                self._run([ticket])
        except (NotReady, DeadlineExceeded) as error:  # raised by the process that runs the model
            self.results += [error] * len(tickets)
        except (InvalidInput, InferenceFailed) as error:
            if isinstance(error, InferenceFailed) and error.device_lost:
                self.device_lost = str(error)
            if len(tickets) == 1 or not _blames_input(error):
                self.results += [error] * len(tickets)
            else:
                half = len(tickets) // 2
                self._run(tickets[:half])
                self._run(tickets[half:])

    def _run_joined(self, tickets: list[Ticket]) -> Sequence[Outputs | CohortError]:
        stacking, limit = self._runner.stacking, self._runner.output_limit
        joined = None
        if len(tickets) == 1:
            rows = tickets[0].rows
            if rows > limit.max_rows:
                limit.check_rows(rows)
            feeds = tickets[0].inputs
        else:
            rows = self.rows if tickets is self.tickets else sum([one.rows for one in tickets])
            joined = stacking.join([ticket.inputs for ticket in tickets])
            feeds = joined.feeds
        self.feeds = feeds
        succeeded = False
        on_processor, started = thread_time(), monotonic()
        try:
            run = self._runner.run_exclusively if self.exclusive else self._runner.run
            outputs = run(feeds, self.control)
            succeeded = True
        finally:
            waits = () if self.runs else self.waits
            requests_run = sum([one.requests for one in tickets])
            padding = 0.0 if joined is None else joined.padding
            ran = Ran(rows, requests_run, monotonic() - started, waits, padding)
            self.runs.append(ran)
            if succeeded and self.first_success is None:
                self.first_success = ran
                self.on_processor = thread_time() - on_processor
        if joined is None:
            parts = [outputs]
        else:
            parts = stacking.split(outputs, [ticket.rows for ticket in tickets], joined)
        if limit.measured or rows > limit.max_rows:
            return [limit.checked(part) for part in parts]
        return parts


CANCELLED = InferenceFailed("the request was cancelled", blames_input=False)
"""The result of a cancelled ticket, whose reply is not called."""


def internal_failure(bug: BaseException) -> InferenceFailed:
    """Return the error that callers get for a bug, without the bug's message."""
    failure = InferenceFailed("the server failed while running this batch", blames_input=False)
    failure.__cause__ = bug
    return failure


def _blames_input(error: CohortError) -> bool:
    return not isinstance(error, InferenceFailed) or error.blames_input
