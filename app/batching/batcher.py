"""The queues of one version: submit, cut, answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic

from app.batching.batch import Batch, Reply, Run, RunControl, Runner, Ticket, our_failure
from app.batching.events import BatchingOff, BatchObserver, Left, Ran
from app.batching.padding import PadPlan
from app.batching.policy import (
    BatchDecision,
    BatchPolicy,
    Key,
    RowCost,
    count_elements,
    next_batch,
    rows_and_key,
    rows_and_single_key,
)
from app.errors import (
    CohortError,
    DeadlineExceeded,
    InferenceFailed,
    InvalidInput,
    NotReady,
    Overloaded,
)
from app.tensors import Arrays

TIMER_STEP = 0.001
"""uvloop's timers count whole milliseconds and were seen to fire 0.4 ms early."""


class Batcher:
    """Queue, batch and answer the requests of one version.

    run: Runs the model; called from any thread.
    policy: What the operator's config allows and the profile chose.
    wake: Called with this batcher when requests wait. The scheduler then calls `next_batch`, `take`
        and, once the batch has executed, `finish`.
    observe: Called with each Ran, Left and BatchingOff event, on the event loop.
    run_exclusively: Runs the model while no other run is in progress, on more threads; default
        `run`.
    make_control: Makes the RunControl that stops a batch's runs; by default runs are not stopped.
    seconds_for: Estimates the seconds that a run takes, from its number of rows of the length that
        was profiled; default 1 ms.
    row_cost: The cost of one row as it was profiled, where rows may differ in length; default None:
        all rows are equally long.
    device: The device that runs use, as the scheduler names it; default "cpu".
    shadow: Whether these requests run only while no other request waits for the device; default
        False.
    padding: How requests of different lengths share a run; default None: they do not.
    """

    def __init__(
        self,
        run: Run,
        policy: BatchPolicy,
        *,
        wake: Callable[[Batcher], None],
        observe: BatchObserver,
        run_exclusively: Run | None = None,
        make_control: Callable[[], RunControl | None] = lambda: None,
        seconds_for: Callable[[float], float] = lambda work: 0.001,
        row_cost: RowCost | None = None,
        device: str = "cpu",
        shadow: bool = False,
        padding: PadPlan | None = None,
    ) -> None:
        self.run = run
        self.policy = policy
        self.device = device
        self.shadow = shadow
        self.row_cost = row_cost
        self.padding = padding if padding is not None and padding.inputs else None
        self.waiting = 0  # requests
        self.running: set[Batch] = set()
        self._runner = Runner(run, run_exclusively or run, make_control, self.padding)
        self._rows_and_key = rows_and_single_key
        self._elements = count_elements
        if policy.batches:
            plan = self.padding
            self._rows_and_key = rows_and_key if plan is None else plan.rows_and_key
            self._elements = count_elements if plan is None else plan.elements
        self._wake = wake
        self._observe = observe
        self._profiled_seconds = seconds_for
        self._pace = 1.0  # what runs take of late, as a multiple of the profile
        self._queues: dict[Key, deque[Ticket]] = {}
        self._closed = False
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._earliest_deadline = float("inf")  # that the timer is set for

    # -- what a caller does

    def submit(
        self, inputs: Arrays, reply: Reply, *, deadline: float = float("inf"), requests: int = 1
    ) -> Ticket:
        """Queue a request; `reply(outputs, error)` follows once, on the loop, unless it cancels.

        `deadline` is on the monotonic clock; `requests` says how many callers share it.
        Raises Overloaded, NotReady or DeadlineExceeded.
        """
        if self._closed:
            raise NotReady("this version is being unloaded")
        if self.waiting + requests > self.policy.max_queue_size:
            raise Overloaded(
                f"{self.waiting} requests wait already, which is this model's max_queue_size",
                retry_after=self._seconds_to_clear(),
            )
        arrived = monotonic()
        if deadline <= arrived:
            raise DeadlineExceeded(0)
        rows, key = self._rows_and_key(inputs)
        length = 1.0
        if self.row_cost is not None and rows:
            length = self._elements(inputs) / (self.row_cost.elements * rows)
        ticket = Ticket(
            inputs,
            reply,
            rows=rows,
            key=key,
            length=length,
            arrived=arrived,
            deadline=deadline,
            requests=requests,
            left=self._forget,
        )
        queue = self._queues.get(ticket.key)
        if queue is None:
            queue = self._queues[ticket.key] = deque()
        queue.append(ticket)
        self.waiting += requests
        if deadline < self._earliest_deadline:
            self._set_timer(deadline)
        self._wake(self)
        return ticket

    def run_now(
        self, inputs: Arrays, reply: Reply, *, arrived: float, rows: int, requests: int
    ) -> bool:
        """Run on the loop, now, and `reply`; or say that others wait already, who come first.

        For those who know that the run is short: it has no ticket that could be cancelled, and
        nothing of the scheduler's part. Raises NotReady.
        """
        if self._closed:
            raise NotReady("this version is being unloaded")
        if self.waiting:
            return False
        started = monotonic()
        outputs, error = None, None
        try:
            outputs = self.run(inputs, None)
        except (InvalidInput, InferenceFailed) as failure:
            error = failure
        except Exception as bug:  # noqa: BLE001 - a bug of ours: everyone still gets an answer
            error = our_failure(bug)
        ran = Ran(rows, requests, monotonic() - started, [(started - arrived, requests)])
        self._tell(ran)
        if error is None:
            self._learn(ran, 1.0)
        reply(outputs, error)
        return True

    def _forget(self, ticket: Ticket) -> None:
        """Drop a ticket whose caller cancelled."""
        self._tell(Left("queued" if ticket.batch is None else "running"))
        self._drop(ticket)

    # -- what the scheduler does

    def next_batch(self, now: float) -> BatchDecision | float:
        """Say what `take` would take next, or in how many seconds to look again."""
        return next_batch(self._queues, self.policy, now, self.row_cost)

    def seconds_for(self, work: float) -> float:
        """How long a run of `work` should take, by the profile and by what runs took of late."""
        return self._profiled_seconds(work) * self._pace

    def take(self, decision: BatchDecision, now: float) -> Batch:
        """Take a batch out of the queues. `decision` is what `next_batch` just gave."""
        key, requests = decision.key, decision.requests
        queue = self._queues[key]
        if requests == len(queue):
            tickets = list(queue)
            del self._queues[key]
        else:
            tickets = [queue.popleft() for _ in range(requests)]
        expected = self.seconds_for(decision.work)
        batch = Batch(self._runner, tickets, decision, expected=expected, now=now)
        for ticket in tickets:
            ticket.batch = batch
            self.waiting -= ticket.requests
        self.running.add(batch)
        return batch

    def finish(self, batch: Batch) -> None:
        """Answer everyone in an executed batch, one by one; one reply's failure is its own."""
        self.running.discard(batch)
        if batch.cannot_batch and self.policy.batches:
            self._turn_off(batch.cannot_batch)
        for ran in batch.runs:
            self._tell(ran)
        runner = self._runner
        ran_as_profiled = not batch.exclusive or runner.run_exclusively == runner.run
        if ran_as_profiled and batch.timed is not None and batch.timed.rows:
            self._learn(batch.timed, batch.work / batch.rows)
        for ticket, answer in zip(batch.tickets, batch.answers, strict=True):
            reply = ticket.reply
            ticket.reply = ticket.batch = None
            ticket.inputs = NOTHING
            if reply is None:
                continue
            try:
                if isinstance(answer, CohortError):
                    reply(None, answer)
                else:
                    reply(answer, None)
            except Exception as error:  # noqa: BLE001 - the rest must still be answered
                _report(error, "a reply failed")
        batch.answers = []  # an error's traceback leads back here: a circle, with all the inputs
        if self._closed and not self.running:
            self._set_timer(float("inf"))

    # -- the end

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def close(self) -> None:
        """Take no more requests; those that still wait are told so. Running ones finish."""
        self._closed = True
        for ticket in [ticket for queue in self._queues.values() for ticket in queue]:
            self._refuse(ticket, NotReady("this version is being unloaded"))
        if not self.running:
            self._set_timer(float("inf"))

    # -- deadlines: one timer for all, set for the earliest there was

    def _set_timer(self, deadline: float) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        self._earliest_deadline = deadline
        if deadline != float("inf"):
            wait = max(deadline - monotonic(), 0.0) + TIMER_STEP  # late rather than early
            self._deadline_timer = asyncio.get_running_loop().call_later(wait, self._expire)

    def _expire(self) -> None:
        now = monotonic()
        for ticket in list(self._open_tickets()):
            if ticket.deadline <= now:
                self._refuse(ticket, DeadlineExceeded(ticket.deadline - ticket.arrived))
        self._set_timer(
            min([ticket.deadline for ticket in self._open_tickets()], default=float("inf"))
        )

    def _open_tickets(self) -> Iterator[Ticket]:
        for queue in self._queues.values():
            yield from queue
        for batch in self.running:
            for ticket in batch.tickets:
                if ticket.reply is not None:
                    yield ticket

    def _refuse(self, ticket: Ticket, error: CohortError) -> None:
        reply = ticket.reply
        if reply is None:
            return
        ticket.reply = None
        self._drop(ticket)
        try:
            reply(None, error)
        except Exception as bug:  # noqa: BLE001 - the rest must still be answered
            _report(bug, "a reply failed")

    def _drop(self, ticket: Ticket) -> None:
        if ticket.batch is not None:
            ticket.batch.left()  # its inputs are in use: `finish` lets go of them
            return
        queue = self._queues[ticket.key]
        queue.remove(ticket)
        self.waiting -= ticket.requests
        if not queue:
            del self._queues[ticket.key]
        ticket.inputs = NOTHING

    # -- what is learnt

    def _learn(self, ran: Ran, length: float) -> None:
        """Follow what runs take; one that was disturbed, however badly, moves the pace by 30 %."""
        ratio = ran.seconds / max(self._profiled_seconds(ran.rows * length), 1e-6)
        self._pace += 0.1 * (min(ratio, 4.0 * self._pace) - self._pace)

    def _turn_off(self, reason: str) -> None:
        self.policy = self.policy.unbatched()
        self._rows_and_key, self._elements = rows_and_single_key, count_elements
        self._tell(BatchingOff(reason))

    def _seconds_to_clear(self) -> float:
        most = self.policy.max_batch_size
        return self.waiting / most * self.seconds_for(most)

    def _tell(self, event: Ran | Left | BatchingOff) -> None:
        try:
            self._observe(event)
        except Exception as error:  # noqa: BLE001 - callers must still be answered
            _report(error, "an observer failed")


NOTHING: Arrays = {}


def _report(error: Exception, message: str) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
