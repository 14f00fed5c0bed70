"""How requests may be put together: the operator's policy and the decision made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from app.tensors import Arrays

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

    def unbatched(self) -> BatchPolicy:
        """The same policy with batching off."""
        return replace(self, max_batch_size=1)


class RowCost(NamedTuple):
    """What rows of any length are measured by: a row as it was profiled, of so many `elements`.

    As many `rows` of that length are enough for a run: longer rows reach the same work sooner.
    """

    elements: int
    rows: float


PAIR = 2
"""Rows of any length gain from one other: 9 % at 128 words in a text encoder, from a third 3 %."""


class QueuedRequest(Protocol):
    """What `next_batch` looks at in a request.

    `length` is how long each of its rows is, in rows as they were profiled.
    """

    @property
    def arrived(self) -> float: ...
    @property
    def rows(self) -> int: ...
    @property
    def length(self) -> float: ...


class BatchDecision(NamedTuple):
    """Run `requests` from the head of the queue at `key`: `rows` in all, here since `arrived`.

    `work` is the rows again, counted in rows of the length that was profiled.
    """

    key: Key
    requests: int
    rows: int
    arrived: float
    work: float


def next_batch(
    queues: Mapping[Key, Sequence[QueuedRequest]],
    policy: BatchPolicy,
    now: float,
    row_cost: RowCost | None = None,
) -> BatchDecision | float:
    """Say which requests run next, or in how many seconds to look again: infinity if none waits.

    The queue whose head is oldest comes first. With `max_queue_delay_ms`, a batch that is not full
    is held until its head has waited that long, and a ripe queue goes before one that is not. With
    a `row_cost`, a run takes fewer of longer rows.
    """
    delay = policy.max_queue_delay_ms / 1000
    chosen: Key = None
    oldest = wait = float("inf")
    for key, queue in queues.items():
        arrived = queue[0].arrived
        if arrived >= oldest:
            continue
        if (
            delay
            and (left := arrived + delay - now) > 0
            and not _is_full(key, queue, largest_run(queue[0], policy, row_cost))
        ):
            wait = min(wait, left)
        else:
            chosen, oldest = key, arrived
    if oldest == float("inf"):
        return wait
    queue = queues[chosen]
    head = queue[0]
    if chosen is None:
        return BatchDecision(None, 1, head.rows, oldest, head.rows * head.length)
    requests, rows = count_together(queue, largest_run(head, policy, row_cost))
    return BatchDecision(chosen, requests, rows, oldest, rows * head.length)


def largest_run(head: QueuedRequest, policy: BatchPolicy, row_cost: RowCost | None) -> int:
    """How many rows as long as those of `head` a run takes at most."""
    if row_cost is None or head.length * policy.max_batch_size <= row_cost.rows:
        return policy.max_batch_size
    return min(policy.max_batch_size, max(PAIR, int(row_cost.rows / head.length)))


def count_together(queue: Sequence[QueuedRequest], max_batch_size: int) -> tuple[int, int]:
    """Count the requests from the head of `queue` that fit into one run, and their rows.

    A request larger than the maximum runs alone and uncut. So does one without rows: many models
    fail on an empty tensor, and that must stay its own failure.
    """
    rows = queue[0].rows
    if rows == 0 or rows >= max_batch_size:
        return 1, rows
    count = 0
    rows = 0
    for waiting in queue:
        more = waiting.rows
        if more == 0 or rows + more > max_batch_size:
            break
        rows += more
        count += 1
    return count, rows


def _is_full(key: Key, queue: Sequence[QueuedRequest], max_batch_size: int) -> bool:
    if key is None:
        return True
    count, rows = count_together(queue, max_batch_size)
    return count < len(queue) or rows >= max_batch_size or not rows


def rows_and_key(inputs: Arrays) -> tuple[int, Key]:
    """Say how many rows a request has, and which requests it may share a run with."""
    rows = -1
    key: list[object] = []
    for name, array in inputs.items():
        shape = array.shape
        if not shape or (rows >= 0 and shape[0] != rows):
            return count_rows(inputs), None
        rows = shape[0]
        key += name, array.dtype.num, shape[1:]
    return (rows, tuple(key)) if key else (1, None)


def rows_and_single_key(inputs: Arrays) -> tuple[int, Key]:
    """Say how many rows a request has that shares its run with none."""
    return count_rows(inputs), None


def count_elements(inputs: Arrays) -> int:
    """The elements of all of `inputs`."""
    return sum([array.size for array in inputs.values()])


def count_rows(inputs: Arrays) -> int:
    """The longest axis 0 among `inputs`; 1 where there is none."""
    return max([array.shape[0] for array in inputs.values() if array.shape], default=1)
