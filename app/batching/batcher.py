"""The queues of one version: submit, cut, answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic

from app.batching.batch import Batch, Control, Reply, Run, Ticket
from app.batching.events import BatchingOff, Left, Observer
from app.batching.policy import BatchPolicy, Key, next_batch
from app.errors import CohortError, DeadlineExceeded, NotReady, Overloaded
from app.tensors import Arrays


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
        self._watched = float("inf")

    # -- what a caller does

    def submit(self, inputs: Arrays, reply: Reply, *, deadline: float = float("inf")) -> Ticket:
        """Queue a request; `reply(outputs, error)` follows once, on the loop, unless it is cancelled.

        `deadline` is on the monotonic clock. Raises Overloaded, NotReady or DeadlineExceeded.
        """
        if self._closed:
            raise NotReady("this version is being unloaded")
        if self.waiting >= self.policy.max_queue_size:
            raise Overloaded(
                f"{self.waiting} requests wait already, which is this model's max_queue_size",
                retry_after=self._seconds_to_clear(),
            )
        arrived = monotonic()
        if deadline <= arrived:
            raise DeadlineExceeded(0)
        ticket = Ticket(self, inputs, reply, arrived, deadline)
        queue = self._queues.get(ticket.key)
        if queue is None:
            queue = self._queues[ticket.key] = deque()
        queue.append(ticket)
        self.waiting += 1
        if deadline < self._watched:
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
    def oldest(self) -> float:
        """When the request that has waited longest arrived. Some request must be waiting."""
        return min([queue[0].arrived for queue in self._queues.values()])

    def seconds_for(self, rows: int) -> float:
        """How long a run of `rows` should take, by the profile and by what runs took of late."""
        return self._profiled_seconds(rows) * self._pace

    @property
    def next_seconds(self) -> float:
        """How long the run that `cut` would give now should take."""
        rows = min(self.waiting, self.policy.max_batch_size)
        for queue in self._queues.values():
            rows = max(rows, queue[0].rows)
        return self.seconds_for(rows)

    def cut(self, now: float) -> Batch | float:
        """Take the next batch out of the queues, or say how many seconds to wait for it."""
        decision = next_batch(self._queues, self.policy, now)
        if decision is None:
            return float("inf")
        if not decision.requests:
            return decision.wait
        queue = self._queues[decision.key]
        if decision.requests == len(queue):
            tickets = list(queue)
            del self._queues[decision.key]
        else:
            tickets = [queue.popleft() for _ in range(decision.requests)]
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
            expected = max(self._profiled_seconds(first.rows), 1e-6)
            self._pace += 0.1 * (min(first.seconds / expected, 100.0) - self._pace)
        for ticket, answer in zip(batch.tickets, batch.answers, strict=True):
            reply = ticket.reply
            if reply is None:
                continue
            ticket.reply = None
            try:
                if answer.__class__ is list:
                    reply(answer, None)
                else:
                    reply(None, answer)  # type: ignore[arg-type]
            except Exception as error:  # noqa: BLE001 - the rest must still be answered
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
        self._watched = deadline
        if deadline != float("inf"):
            loop = asyncio.get_running_loop()
            self._deadline_timer = loop.call_later(deadline - monotonic(), self._expire)

    def _expire(self) -> None:
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
        except Exception as bug:  # noqa: BLE001 - the rest must still be answered
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
