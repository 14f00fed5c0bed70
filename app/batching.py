"""Which requests run together.

A batcher belongs to one loaded version. Requests wait in one queue per shape key (all dimensions
but axis 0), the oldest head is served first, and whoever has a free slot (`app.scheduling`) cuts the
next batch. There are no locks: everything here but `Batch.execute` happens on the event loop, and
`execute` touches its own batch only. There is no window either: while one batch runs the next one
gathers, which costs nobody a wait.

Every request is answered exactly once, or not at all if its caller left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import NamedTuple, Protocol

import numpy as np

from app.errors import (
    CohortError,
    DeadlineExceeded,
    InferenceFailed,
    InvalidInput,
    NotReady,
    Overloaded,
)
from app.tensors import Array, Arrays

Outputs = list[Array]
Reply = Callable[[Outputs | None, CohortError | None], None]
Key = tuple[object, ...] | None
"""What must be equal for requests to run together; None runs alone."""


@dataclass(frozen=True, slots=True)
class Padding:
    """How an input whose length differs between callers is made to fit."""

    axis: int = 1
    value: float = 0
    multiple: int = 16


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """`batching:` in a model's config.

    `max_batch_size` counts rows and 1 turns batching off; `max_queue_delay_ms` is how long the
    oldest request may be held back on purpose (0: never); `max_queue_size` counts requests;
    `latency_budget_ms` bounds a batch's run; `trust` batches although rows influence each other.
    """

    max_batch_size: int = 32
    max_queue_delay_ms: float = 0.0
    max_queue_size: int = 512
    latency_budget_ms: float = 50.0
    pad: Mapping[str, Padding] = field(default_factory=dict)
    trust: bool = False

    @property
    def batches(self) -> bool:
        return self.max_batch_size > 1

    def alone(self) -> BatchPolicy:
        """The same policy with batching off."""
        return replace(self, max_batch_size=1)


class Ran(NamedTuple):
    """One run of the model: `waits` are the seconds its requests had queued, `seconds` the run's."""

    rows: int
    requests: int
    seconds: float
    waits: Sequence[float]


class Left(NamedTuple):
    """A caller left while `queued` or `running`."""

    stage: str


class BatchingOff(NamedTuple):
    """The model's outputs showed, under load, that its requests cannot share a run."""

    reason: str


Observer = Callable[[Ran | Left | BatchingOff], None]


class Control(Protocol):
    """A run's emergency brake, pulled from another thread."""

    def stop(self) -> None: ...


Run = Callable[[Arrays, Control | None], Outputs]


class Ticket:
    """One request between `submit` and its reply. `reply` is None once answered or left."""

    __slots__ = ("arrived", "batch", "batcher", "deadline", "inputs", "key", "reply", "rows")

    def __init__(
        self, batcher: Batcher, inputs: Arrays, reply: Reply, arrived: float, deadline: float
    ) -> None:
        self.batcher = batcher
        self.inputs = inputs
        self.reply: Reply | None = reply
        self.arrived = arrived
        self.deadline = deadline
        self.rows, self.key = batcher.place(inputs)
        self.batch: Batch | None = None

    def cancel(self) -> None:
        """Leave: the queue forgets the request, and a run nobody waits for any more is stopped."""
        if self.reply is not None:
            self.reply = None
            self.batcher.left(self)


class Waiting(Protocol):
    """What `next_batch` looks at in a request."""

    arrived: float
    rows: int


class Cut(NamedTuple):
    """Run `count` requests from the head of the queue at `key` now, or look again after `wait`."""

    key: Key
    count: int
    wait: float


def next_batch(
    queues: Mapping[Key, Sequence[Waiting]], policy: BatchPolicy, now: float
) -> Cut | None:
    """Say which requests run next; None where none waits.

    The queue whose head is oldest comes first. With `max_queue_delay_ms`, a batch that is not full
    is held until its head has waited that long, and a queue that is ripe goes before one that is not.
    """
    ready: Cut | None = None
    oldest = float("inf")
    wait = float("inf")
    for key, queue in queues.items():
        arrived = queue[0].arrived
        if arrived >= oldest:
            continue
        count, full = (1, True) if key is None else count_together(queue, policy.max_batch_size)
        left = 0.0 if full else arrived + policy.max_queue_delay_ms / 1000 - now
        if left <= 0:
            ready, oldest = Cut(key, count, 0.0), arrived
        else:
            wait = min(wait, left)
    if ready is None and queues:
        return Cut(None, 0, wait)
    return ready


def count_together(queue: Sequence[Waiting], max_batch_size: int) -> tuple[int, bool]:
    """Count the requests from the head that fit into one run, and say whether the run is full.

    A request larger than the maximum runs alone and uncut. So does one without rows: many models
    fail on an empty tensor, and that must stay its own failure.
    """
    rows = queue[0].rows
    if rows == 0 or rows >= max_batch_size:
        return 1, True
    count = 0
    rows = 0
    for waiting in queue:
        if waiting.rows == 0 or rows + waiting.rows > max_batch_size:
            return count, True
        rows += waiting.rows
        count += 1
    return count, rows == max_batch_size


class Batch:
    """Requests that share a run, from being cut until everyone is answered."""

    __slots__ = ("answers", "batcher", "control", "expected", "rows", "runs", "tickets", "waits")

    def __init__(self, batcher: Batcher, tickets: list[Ticket], now: float) -> None:
        self.batcher = batcher
        self.tickets = tickets
        self.rows = sum([ticket.rows for ticket in tickets])
        self.waits = [now - ticket.arrived for ticket in tickets]
        self.expected = batcher.seconds_for(self.rows)
        self.control: Control | None = None
        self.answers: list[Outputs | CohortError] = []
        self.runs: list[Ran] = []

    def execute(self) -> None:
        """Run the model, on any thread, and leave one answer per request in `answers`.

        A run that fails because of its input is retried in halves until the culprit stands alone:
        at most 2n - 1 runs for n requests, of which a single culprit causes 2 log2(n).
        """
        try:
            self._run(self.tickets)
        except Exception as error:  # a bug of ours: everyone still gets an answer
            failure = InferenceFailed("the server failed while running this batch")
            failure.__cause__ = error
            self.answers += [failure] * (len(self.tickets) - len(self.answers))

    def _run(self, tickets: list[Ticket]) -> None:
        if len(self.runs) and all([ticket.reply is None for ticket in tickets]):
            self.answers += [GONE] * len(tickets)  # nobody waits for this half
            return
        try:
            self.answers += self._run_together(tickets)
        except _RowsDoNotFollow as error:
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

    def _run_together(self, tickets: list[Ticket]) -> Iterator[Outputs] | list[Outputs]:
        started = monotonic()
        rows = self.rows if tickets is self.tickets else sum([ticket.rows for ticket in tickets])
        try:
            if len(tickets) == 1:
                return [self.batcher.run(tickets[0].inputs, self.control)]
            names = tickets[0].inputs
            feeds = {name: np.concatenate([one.inputs[name] for one in tickets]) for name in names}
            return split(self.batcher.run(feeds, self.control), tickets, rows)
        finally:
            waits = () if self.runs else self.waits
            self.runs.append(Ran(rows, len(tickets), monotonic() - started, waits))


GONE = InferenceFailed("the caller left", blames_input=False)


class _RowsDoNotFollow(Exception):
    pass


def split(outputs: Outputs, tickets: Sequence[Waiting], rows: int) -> list[Outputs]:
    """Cut each output along axis 0 into one part per request, as views.

    Raises _RowsDoNotFollow where an output does not have one row per input row.
    """
    for position, output in enumerate(outputs):
        if output.__class__ is not np.ndarray or not output.ndim or output.shape[0] != rows:
            shape = getattr(output, "shape", "not a tensor")
            raise _RowsDoNotFollow(f"{rows} input rows gave output {position} of shape {shape}")
    parts = []
    start = 0
    for ticket in tickets:
        end = start + ticket.rows
        parts.append([output[start:end] for output in outputs])
        start = end
    return parts


def _blames_input(error: CohortError) -> bool:
    return not isinstance(error, InferenceFailed) or error.blames_input


class Batcher:
    """Queue, cut and answer the requests of one version.

    `run` runs the model on any thread. `seconds_for(rows)` estimates a run. `wake(batcher)` tells
    the scheduler that requests wait; it then calls `cut` and, once the batch has executed, `finish`.
    """

    def __init__(
        self,
        run: Run,
        policy: BatchPolicy,
        *,
        wake: Callable[[Batcher], None],
        observe: Observer,
        make_control: Callable[[], Control | None] = lambda: None,
        seconds_for: Callable[[int], float] = lambda rows: 0.001,
        device: str = "cpu",
        shadow: bool = False,
    ) -> None:
        self.run = run
        self.policy = policy
        self.device = device
        self.shadow = shadow
        self.make_control = make_control
        self.cannot_batch = ""
        self.waiting = 0
        self.running: set[Batch] = set()
        self._wake = wake
        self._observe = observe
        self._profiled_seconds = seconds_for
        self._pace = 1.0
        self._queues: dict[Key, deque[Ticket]] = {}
        self._closed = False
        self._deadline_timer: asyncio.TimerHandle | None = None

    # -- what a caller does

    def submit(self, inputs: Arrays, reply: Reply, *, deadline: float = float("inf")) -> Ticket:
        """Queue a request; `reply(outputs, error)` follows once, on the loop, unless it is cancelled.

        `deadline` is on the monotonic clock. Raises Overloaded, NotReady or DeadlineExceeded.
        """
        if self.waiting >= self.policy.max_queue_size:
            raise Overloaded(
                f"{self.waiting} requests wait already, which is this model's max_queue_size",
                retry_after=self._seconds_to_clear(),
            )
        if self._closed:
            raise NotReady("this version is being unloaded")
        arrived = monotonic()
        if deadline <= arrived:
            raise DeadlineExceeded(0)
        ticket = Ticket(self, inputs, reply, arrived, deadline)
        queue = self._queues.get(ticket.key)
        if queue is None:
            queue = self._queues[ticket.key] = deque()
        queue.append(ticket)
        self.waiting += 1
        timer = self._deadline_timer
        if timer is None or deadline < timer.when():
            self._watch(deadline)
        self._wake(self)
        return ticket

    def place(self, inputs: Arrays) -> tuple[int, Key]:
        """Say how many rows a request has and which requests it may run with."""
        if not self.policy.batches:
            return 1, None
        rows = -1
        key = []
        for array in inputs.values():
            shape = array.shape
            if not shape or (rows >= 0 and shape[0] != rows):
                return 1, None
            rows = shape[0]
            key.append(shape[1:])
        return (rows, tuple(key)) if key else (1, None)

    def left(self, ticket: Ticket) -> None:
        """Forget a ticket whose caller is gone."""
        batch = ticket.batch
        self._observe(Left("queued" if batch is None else "running"))
        self._drop(ticket)

    # -- what the scheduler does

    @property
    def oldest(self) -> float | None:
        """When the request that has waited longest arrived; None where none waits."""
        if not self._queues:
            return None
        return min([queue[0].arrived for queue in self._queues.values()])

    def seconds_for(self, rows: int) -> float:
        """How long a run of `rows` should take, by the profile and by what runs took of late."""
        return self._profiled_seconds(rows) * self._pace

    @property
    def next_seconds(self) -> float:
        """How long the run that `cut` would give now should take."""
        return self.seconds_for(min(self.waiting, self.policy.max_batch_size))

    def cut(self, now: float) -> Batch | float:
        """Take the next batch out of the queues, or say how many seconds to wait for it."""
        decision = next_batch(self._queues, self.policy, now)
        if decision is None:
            return float("inf")
        if not decision.count:
            return decision.wait
        queue = self._queues[decision.key]
        if decision.count == len(queue):
            tickets = list(queue)
            del self._queues[decision.key]
        else:
            tickets = [queue.popleft() for _ in range(decision.count)]
        self.waiting -= len(tickets)
        batch = Batch(self, tickets, now)
        for ticket in tickets:
            ticket.batch = batch
        self.running.add(batch)
        return batch

    def finish(self, batch: Batch) -> None:
        """Answer everyone in an executed batch, one by one; one reply's failure is its own."""
        self.running.discard(batch)
        if self.cannot_batch and self.policy.batches:
            self._turn_off(self.cannot_batch)
        for ran in batch.runs:
            self._observe(ran)
        if batch.runs and batch.rows:
            first = batch.runs[0]
            expected = self._profiled_seconds(first.rows)
            self._pace += 0.1 * (min(first.seconds / expected, 100.0) - self._pace)
        for ticket, answer in zip(batch.tickets, batch.answers, strict=True):
            reply = ticket.reply
            if reply is None:
                continue
            ticket.reply = None
            try:
                if answer.__class__ is list:
                    reply(answer, None)  # type: ignore[arg-type]
                else:
                    reply(None, answer)  # type: ignore[arg-type]
            except Exception as error:
                _report(error)

    # -- the end

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def close(self) -> None:
        """Take no more requests; those that still wait are told so. Running ones finish."""
        self._closed = True
        for ticket in [ticket for queue in self._queues.values() for ticket in queue]:
            self._refuse(ticket, NotReady("this version is being unloaded"))
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()

    # -- deadlines: one timer for all, set for the earliest

    def _watch(self, deadline: float) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        if deadline != float("inf"):
            loop = asyncio.get_running_loop()
            self._deadline_timer = loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._deadline_timer = None
        now = monotonic()
        earliest = float("inf")
        for ticket in list(self._open_tickets()):
            if ticket.deadline <= now:
                self._refuse(ticket, DeadlineExceeded(ticket.deadline - ticket.arrived))
            else:
                earliest = min(earliest, ticket.deadline)
        self._watch(earliest)

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
        except Exception as bug:
            _report(bug)

    def _drop(self, ticket: Ticket) -> None:
        batch = ticket.batch
        if batch is None:
            queue = self._queues.get(ticket.key)
            if queue is not None and ticket in queue:
                queue.remove(ticket)
                self.waiting -= 1
                if not queue:
                    del self._queues[ticket.key]
        elif batch.control is not None and all(one.reply is None for one in batch.tickets):
            batch.control.stop()

    def _turn_off(self, reason: str) -> None:
        self.policy = self.policy.alone()
        self._observe(BatchingOff(reason))

    def _seconds_to_clear(self) -> float:
        return self.waiting * self.next_seconds / self.policy.max_batch_size


def _report(error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": "a reply failed", "exception": error}
    )
