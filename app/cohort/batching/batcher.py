"""The queues of one version: requests are submitted, batched and replied to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic, thread_time

from cohort.batching.batch import Batch, Reply, Run, RunControl, Runner, Ticket, insert_by_place
from cohort.batching.deadlines import DeadlineTimer
from cohort.batching.estimate import Estimate
from cohort.batching.events import (
    BatchingDisabled,
    BatchObserver,
    Ran,
    RequestCancelled,
    call_reply,
    emit,
)
from cohort.batching.inline import InlineRuns, RunResult
from cohort.batching.output_limit import NO_LIMIT, OutputLimit
from cohort.batching.policy import (
    HEAD_START_SECONDS,
    MAX_QUEUES,
    BatchDecision,
    BatchPolicy,
    Key,
    RowCost,
    count_elements,
    cut_batch,
    next_batch,
    share_for,
)
from cohort.batching.samples import Sampler, sample_row
from cohort.batching.stacking import FIRST_AXIS, Stacking
from cohort.batching.watchdog import STALL_SECONDS, InlineRun
from cohort.errors import CohortError, DeadlineExceeded, InferenceFailed, NotReady, Overloaded
from cohort.tensors import Arrays


class Batcher:
    """Queues the requests of one version, batches them, and calls their replies.

    run: Runs the model; called from any thread.
    policy: The batch policy, as the operator's config allows and the profile chose it.
    wake: Called with this batcher when it has requests. The scheduler then calls `next_batch`,
        `take` and, once the batch has executed, `finish`.
    observe: Called with each BatchEvent, on the event loop.
    run_exclusively: Runs the model on more threads while no other run is in progress; default
        `run`.
    make_control: Makes the RunControl that stops a batch's runs; by default runs are not stopped.
    seconds_for: Estimates the duration of a run in seconds, from its number of rows of the profiled
        length; default 0.001.
    known_work: The largest number of rows that was profiled; default: infinite.
    row_cost: The profiled cost of one row, for a model whose rows differ in length; default None:
        all rows have the same length.
    device: The device that runs use, such as "cpu" or "cuda:0"; default "cpu".
    shadow: True if these requests run only while no other request waits for the device; default
        False.
    stacking: Joins and splits requests that share a run; default: along axis 0.
    unpredictable: Why the duration of a run cannot be estimated, so that no run uses the event loop
        or the express slot; default "".
    output_limit: The maximum bytes of outputs of a request; default: no limit.
    inline_run: Records runs on the event loop for the watchdog; default: not watched.
    sampler: Receives samples of requests that shared a run; default None: no samples.
    name: The model and version, for operators; default "".

    estimate: Estimates of its runs.
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
        known_work: float = float("inf"),
        row_cost: RowCost | None = None,
        device: str = "cpu",
        shadow: bool = False,
        stacking: Stacking = FIRST_AXIS,
        unpredictable: str = "",
        output_limit: OutputLimit = NO_LIMIT,
        inline_run: InlineRun | None = None,
        sampler: Sampler | None = None,
        name: str = "",
    ) -> None:
        self.policy, self.name = policy, name
        self.device, self.shadow = device, shadow
        self.row_cost, self.stacking = row_cost, stacking
        self.waiting = 0  # requests
        self._work = 0.0  # their work, in rows of the profiled length
        self.running: set[Batch] = set()
        self._runner = Runner(run, run_exclusively or run, make_control, stacking, output_limit)
        self.inline = InlineRuns(
            InlineRun() if inline_run is None else inline_run,
            self._runner,
            device=device,
            unpredictable=unpredictable,
            observe=observe,
        )
        self._rows_and_key, self._elements = stacking.rows_alone, count_elements
        if policy.batches:
            self._rows_and_key, self._elements = stacking.rows_and_key, stacking.elements
        self._wake, self._observe, self._sampler = wake, observe, sampler
        self.estimate = Estimate(seconds_for, policy, known_work)
        self.seconds_for = self.estimate.seconds_for
        self._queues: dict[Key, deque[Ticket]] = {}
        self._closed = False
        self._prioritized = False  # True once requests had different priorities
        self._deadlines = DeadlineTimer()

    # -- for callers

    def submit(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        requests: int = 1,
        priority: int = 0,
    ) -> Ticket:
        """Queue a request; its reply is called once, on the event loop, unless it is cancelled.

        inputs: The arrays by name, already checked against the model's inputs.
        reply: Called with the outputs or the error.
        deadline: Seconds on the monotonic clock; default never.
        timeout: The limit behind the deadline in seconds, for messages; default: the time left.
        requests: The number of coalesced requests in this one; default 1.
        priority: Each step is a head start in the queue, and changes the part of the queue that the
            request may fill; default 0.

        Raises Overloaded, NotReady or DeadlineExceeded.
        """
        if self._closed:
            raise NotReady("this version is being unloaded")
        estimate = self.estimate
        most, capacity = self.policy.max_queue_size, estimate.capacity
        place = arrived = monotonic()
        if priority:
            self._prioritized = True
            place -= priority * HEAD_START_SECONDS
            share = share_for(priority)
            most, capacity = int(most * share), capacity * share
        if self.waiting + requests > most:
            raise self._full(f"{self.waiting} of {most} requests", "size")
        if timeout is None:
            timeout = max(deadline - arrived, 0.0)
        if deadline <= arrived:
            raise DeadlineExceeded(timeout)
        rows, key = self._rows_and_key(inputs)
        if len(self._queues) >= MAX_QUEUES and key not in self._queues:
            key = None
        length = 1.0
        if self.row_cost is not None and rows:
            length = self._elements(inputs) / (self.row_cost.elements * rows)
        weight = estimate.weight(rows * length)
        work = self._work + weight
        if self.waiting:
            if work * estimate.pace > capacity:
                raise self._full()
            if priority <= 0:
                estimate.check_in_time(self._work, weight, deadline - arrived, timeout)
        ticket = Ticket(
            inputs,
            reply,
            rows=rows,
            key=key,
            length=length,
            weight=weight,
            arrived=arrived,
            place=place,
            deadline=deadline,
            timeout=timeout,
            requests=requests,
            on_cancel=self._on_cancel,
        )
        queue = self._queues.get(ticket.key)
        if queue is None:
            queue = self._queues[ticket.key] = deque()
        if self._prioritized and queue and queue[-1].place > place:
            insert_by_place(queue, ticket)
        else:
            queue.append(ticket)
        self.waiting += requests
        self._work = work
        if deadline < self._deadlines.earliest:
            self._deadlines.set(deadline, self._expire)
        self._wake(self)
        return ticket

    def run_now(self, inputs: Arrays, arrived: float, rows: int, requests: int) -> RunResult | None:
        """Run on the event loop and return the outputs or the error; None if it must be submitted.

        For short runs only: it bypasses the scheduler and cannot be cancelled. `inputs` hold `rows`
            rows of `requests` requests. The first of them `arrived` at this time, in seconds on the
            monotonic clock. Raises NotReady.
        """
        if self._closed:
            raise NotReady("this version is being unloaded")
        if self.waiting or not self.inline.allowed:
            return None
        on_processor = thread_time() if self.estimate.delayed else None
        started = monotonic()
        if (result := self.inline.run(inputs, started)) is None:
            return None
        outputs, error, seconds = result
        if requests > 1 and outputs and self._sampler and started >= self._sampler.due:
            self._sampler.take(sample_row(inputs, outputs, rows, started))
        if error is None:
            own = None if on_processor is None else thread_time() - on_processor
            self.estimate.follow(rows, seconds, own)
        emit(self._observe, Ran(rows, requests, seconds, [(started - arrived, requests)]))
        return outputs, error

    def _on_cancel(self, ticket: Ticket) -> None:
        emit(self._observe, RequestCancelled("queued" if ticket.batch is None else "running"))
        self._drop(ticket)

    # -- for the scheduler

    def next_batch(self, now: float) -> BatchDecision | float:
        """Return the next batch, or the seconds until the next decision; see `next_batch`."""
        return next_batch(self._queues, self.policy, now, self.row_cost)

    def cut(self, decision: BatchDecision, seconds: float) -> BatchDecision | None:
        """Return the first requests of a batch whose run takes at most `seconds`, or None."""
        queue = self._queues[decision.key]
        return cut_batch(decision, queue, lambda work: self.seconds_for(work) <= seconds)

    def take(self, decision: BatchDecision, now: float) -> Batch:
        """Take a batch out of the queues. `decision` must be the last result of `next_batch`."""
        key, requests = decision.key, decision.requests
        queue = self._queues[key]
        if requests == len(queue):
            tickets = list(queue)
            del self._queues[key]
        else:
            tickets = [queue.popleft() for _ in range(requests)]
        expected = float("inf") if self.inline.unpredictable else self.seconds_for(decision.work)
        batch = Batch(self._runner, tickets, decision, expected=expected, now=now)
        for ticket in tickets:
            ticket.batch = batch
            self.waiting -= ticket.requests
            self._work -= ticket.weight
        if not self.waiting:
            self._work = 0.0  # removes rounding errors
            self.estimate.run_empty()
        else:
            self.estimate.take(sum([ticket.weight for ticket in tickets]), now)
        self.running.add(batch)
        return batch

    def execute_inline(self, batch: Batch, now: float) -> bool:
        """Execute a batch on the event loop and finish it; False if a thread must execute it.

        It returns False if the watchdog stopped the run. `now` is in seconds on the monotonic
        clock.
        """
        current = self.inline.current
        current.running = current.control
        current.since = now
        batch.execute(current.running)
        current.since = 0.0
        batch.control = None  # the control is reused by the next run
        seconds = batch.runs[-1].seconds if batch.runs else 0.0
        if seconds > STALL_SECONDS or current.running is not current.control:
            failed = next((one for one in batch.results if isinstance(one, InferenceFailed)), None)
            if self.inline.stalled(batch.feeds, seconds, failed):
                batch.results, batch.runs, batch.first_success = [], [], None
                return False
        self.finish(batch)
        return True

    def finish(self, batch: Batch) -> None:
        """Call the replies of an executed batch. A reply that raises does not affect the others."""
        self.running.discard(batch)
        if batch.cannot_batch and self.policy.batches:
            self.disable_batching(batch.cannot_batch)
        for each in batch.runs:
            emit(self._observe, each)
        if self._sampler is not None:
            batch.offer(self._sampler)
        runner, success = self._runner, batch.first_success
        ran_as_profiled = not batch.exclusive or runner.run_exclusively == runner.run
        if ran_as_profiled and success is not None and success.rows:
            own = batch.on_processor if self.device == "cpu" else None
            self.estimate.follow(success.rows * batch.work / batch.rows, success.seconds, own)
        ran = success or next(reversed(batch.runs), None)
        for ticket, result in zip(batch.tickets, batch.results, strict=True):
            reply, over = ticket.reply, ticket.over
            ticket.reply = ticket.batch = ticket.key = ticket.over = None
            ticket.inputs = NO_INPUTS
            if reply is None:
                if over is not None:
                    over()
                continue
            if ran is not None:
                ticket.times = batch.started - ticket.arrived, ran.seconds, ran
            if isinstance(result, CohortError):
                call_reply(reply, None, result)
            else:
                call_reply(reply, result, None)
        batch.feeds = NO_INPUTS  # the caller may keep the batch until the next one
        batch.results = []  # an error's traceback refers to this frame: a cycle with all inputs
        if self._closed and not self.running:
            self._deadlines.clear()

    # -- closing

    @property
    def idle(self) -> bool:
        """True if no request is queued or running."""
        return not self.waiting and not self.running

    def close(self) -> None:
        """Accept no more requests and fail queued ones with NotReady. Runs in flight finish."""
        self._closed = True
        for ticket in [ticket for queue in self._queues.values() for ticket in queue]:
            self._fail(ticket, NotReady("this version is being unloaded"))
        if not self.running:
            self._deadlines.clear()

    # -- deadlines

    def _expire(self) -> None:
        now = monotonic()
        for ticket in list(self._open_tickets()):
            if ticket.deadline <= now:
                self._fail(ticket, DeadlineExceeded(ticket.timeout))
        earliest = min([one.deadline for one in self._open_tickets()], default=float("inf"))
        looked = monotonic()  # checking thousands is slow: pause ten times as long
        self._deadlines.set(max(earliest, looked + 10 * (looked - now)), self._expire)

    def _open_tickets(self) -> Iterator[Ticket]:
        for queue in self._queues.values():
            yield from queue
        for batch in self.running:
            for ticket in batch.tickets:
                if ticket.reply is not None:
                    yield ticket

    def _fail(self, ticket: Ticket, error: CohortError) -> None:
        reply, ticket.reply = ticket.reply, None
        if reply is None:
            return
        self._drop(ticket)
        call_reply(reply, None, error)

    def _drop(self, ticket: Ticket) -> None:
        if ticket.batch is not None:
            ticket.batch.drop_one()  # the run uses its inputs: `finish` releases them
            return
        queue = self._queues[ticket.key]
        queue.remove(ticket)
        self.waiting -= ticket.requests
        self._work = self._work - ticket.weight if self.waiting else 0.0
        if not queue:
            del self._queues[ticket.key]
        ticket.inputs = NO_INPUTS

    def disable_batching(self, reason: str) -> None:
        """Run requests one by one from now on."""
        self.policy = self.policy.unbatched()
        self.estimate.bound(self.policy)
        self._rows_and_key, self._elements = self.stacking.rows_alone, count_elements
        self._sampler = None
        emit(self._observe, BatchingDisabled(reason))

    def room_for(self, priority: int) -> int:
        """Return how many more requests of one row of the profiled length may be queued."""
        share = share_for(priority)
        by_work = int(self.estimate.capacity * share / self.estimate.pace - self._work)
        return max(min(int(self.policy.max_queue_size * share) - self.waiting, by_work), 0)

    def check_room(self, priority: int) -> None:
        """Raise Overloaded if a request of one row and of this priority cannot be queued."""
        if self.waiting and not self.room_for(priority):
            raise self._full()

    @property
    def seconds_to_clear(self) -> float:
        """The estimated time of the queued requests."""
        return self.estimate.queue_seconds(self._work)

    def _full(self, contents: str = "", limit: str = "seconds") -> Overloaded:
        wait = self.seconds_to_clear
        why = f"{contents or f'its requests take {wait:.3g} s'} (max_queue_{limit})"
        return Overloaded(f"the model's queue is full: {why}", retry_after=wait)


NO_INPUTS: Arrays = {}  # for tickets that no longer need their inputs
