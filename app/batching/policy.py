"""How requests may be put together: the operator's policy and the decision made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

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


class Waiting(Protocol):
    """What `next_batch` looks at in a request."""

    arrived: float
    rows: int


class Cut(NamedTuple):
    """Run `requests` from the head of the queue at `key` now; or, where 0, look again in `wait` s."""

    key: Key
    requests: int
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
