"""The promised order and admission of requests by priority, kept apart from the server's own.

See decision 0015: each step of priority counts as having arrived HEAD_START seconds
earlier, and may fill so much of a queue. The priority of a request is that of the key it was sent
with, whatever the server made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cohort.batching import Batch, BatchDecision, Batcher, Ticket, ignore
from cohort.tensors import Arrays

HEAD_START = 10.0

SHARES: Mapping[int, float] = {-1: 0.5, 0: 1.0, 1: 1.5}

KEYS: Mapping[int, str] = {-1: "last", 0: "between", 1: "first"}
"""The keys of callers of each priority."""

Place = tuple[float, int]
"""The time at which a request counts as arrived, and its number in that order."""


class Order:
    """The places of all queued requests, and the batches that they were taken in.

    A request may be in several queues, each with a separate place: copies for a shadow are.

    priorities: The priority of each request that was sent, by its id.
    violated: Called with a sentence about what must not be.
    """

    def __init__(self, violated: Callable[[str], None]) -> None:
        self.priorities: dict[int, int] = {}
        self._violated = violated
        self._batches: dict[int, list[list[int]]] = {}  # the ids of their rows, by each id
        self._tickets: dict[Ticket, Place] = {}
        self._count = 0

    def queued(self, batcher: Batcher, ticket: Ticket) -> None:
        """Note that a request, or several coalesced ones, entered a queue."""
        ids = ids_of(ticket.inputs)
        asked_by_nobody = batcher._observe is ignore  # copies, and checks of failed requests
        found = {0 if asked_by_nobody else self.priorities[one] for one in ids}
        if len(found) > 1:
            self._violated(f"requests {ids} of several priorities were coalesced")
        priority = found.pop()
        self._count += 1
        place = ticket.arrived - priority * HEAD_START, self._count
        self._tickets[ticket] = place
        most = int(batcher.policy.max_queue_size * SHARES[priority])
        if batcher.waiting > most:
            self._violated(f"{batcher.waiting} requests wait, {most} may for priority {priority}")

    def taken(self, batcher: Batcher, decision: BatchDecision, batch: Batch) -> None:
        """Check a batch taken from its queue: it must have the first places, in order."""
        places = [self._tickets.pop(ticket) for ticket in batch.tickets]
        if places != sorted(places):
            self._violated(f"a batch is out of order: {places}")
        left = batcher._queues.get(decision.key, ())
        if early := [self._tickets[one] for one in left if self._tickets[one] < places[-1]]:
            self._violated(f"{early} wait while {places[-1]} runs")
        ids = [one for ticket in batch.tickets for one in ids_of(ticket.inputs)]
        for one in set(ids):
            self._batches.setdefault(one, []).append(ids)

    def ran(self, ids: list[int]) -> None:
        """Check the rows of a run: those of a batch that was taken, or some of them in a row."""
        batches = self._batches.get(ids[0], ())  # no batch: it ran at once, from no queue
        if batches and not any(_is_part(ids, batch) for batch in batches):
            self._violated(f"requests ran out of order: {ids}")


def ids_of(inputs: Arrays) -> list[int]:
    """Return the id in each row of a run: that of the request it belongs to."""
    return [int(one) for one in inputs["x"][:, 0]]


def _is_part(ids: Sequence[int], batch: Sequence[int]) -> bool:
    size = len(ids)
    return any(batch[at : at + size] == ids for at in range(len(batch) - size + 1))
