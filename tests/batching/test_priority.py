"""Requests of several priorities in one queue: who goes first, and who is refused first."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.batching import Batcher, BatchPolicy, next_batch, share_for
from cohort.batching.policy import HEAD_START_SECONDS
from cohort.errors import Overloaded
from tests.batching.test_policy import A, B, Request
from tests.fakes import ManualScheduler, RecordedEvents, RecordedReply, assert_empty, double

ONE = np.ones((1, 2), np.float32)


def make(policy: BatchPolicy | None = None) -> Batcher:
    return Batcher(
        double,
        policy or BatchPolicy(max_batch_size=1),
        wake=ManualScheduler().wake,
        observe=RecordedEvents(),
        seconds_for=lambda work: work,
    )


def submit(batcher: Batcher, priority: int = 0, at: float = 0.0, inputs: object = ONE) -> None:
    with mock.patch("cohort.batching.batcher.monotonic", return_value=at):
        batcher.submit({"x": inputs}, RecordedReply(), priority=priority)  # type: ignore[dict-item]


async def served(batcher: Batcher) -> list[float]:
    """When the requests had arrived, in the order in which they run."""
    scheduler, order = ManualScheduler(), []
    while batcher.waiting:
        order += [ticket.arrived for ticket in scheduler.run_next(batcher, now=1e9)]
    assert_empty(batcher)
    return order


async def test_a_higher_priority_goes_first() -> None:
    """Within one priority, the first to arrive goes first."""
    batcher = make()
    for at, priority in enumerate([0, -1, 0, 1, -1, 1, 0]):
        submit(batcher, priority, at)
    assert await served(batcher) == [3, 5, 0, 2, 6, 1, 4]


async def test_nobody_is_overtaken_for_longer_than_the_head_start() -> None:
    """A request that arrives later than that waits, whatever its priority."""
    batcher = make(BatchPolicy(max_batch_size=1, max_queue_seconds=1e9))
    submit(batcher, 0, at=1.0)
    for later in range(1, 40):
        submit(batcher, 1, at=1.0 + later)
    order = await served(batcher)
    assert order.index(1.0) == HEAD_START_SECONDS - 1


async def test_priorities_share_runs() -> None:
    """A run starts with the first requests by priority and is filled with later ones."""
    batcher = make(BatchPolicy(max_batch_size=4, max_queue_seconds=100))
    for at, priority in enumerate([0, 0, 0, 1, 1, -1]):
        submit(batcher, priority, at)
    first = ManualScheduler().run_next(batcher, now=1e9)
    assert [ticket.arrived for ticket in first] == [3, 4, 0, 1]


async def test_who_leaves_from_the_middle_is_not_served() -> None:
    """A request cancelled in the middle of the queue is removed and not run."""
    batcher = make()
    submit(batcher, 0, 0)
    with mock.patch("cohort.batching.batcher.monotonic", return_value=1.0):
        ticket = batcher.submit({"x": ONE}, RecordedReply(), priority=1)
    submit(batcher, 1, 2)
    ticket.cancel()
    assert await served(batcher) == [2, 0]


@given(st.lists(st.tuples(st.floats(0, 5), st.sampled_from([-1, 0, 1])), max_size=30))
def test_the_order_is_that_of_arrivals_with_their_head_starts(
    steps: list[tuple[float, int]],
) -> None:
    """For any mix, the order is a stable sort by arrival minus the head start."""
    batcher = make(BatchPolicy(max_batch_size=1, max_queue_seconds=1e9))
    now, expected = 0.0, []
    for step, priority in steps:
        now += step
        submit(batcher, priority, now)
        expected.append((now - priority * HEAD_START_SECONDS, now))
    queued = [ticket.arrived for queue in batcher._queues.values() for ticket in queue]
    assert queued == [arrived for _, arrived in sorted(expected, key=lambda one: one[0])]
    batcher.close()


async def test_a_higher_priority_goes_first_among_requests_that_cannot_share_a_run() -> None:
    """Each shape has a separate queue; the one with the first request is served."""
    batcher = make(BatchPolicy(max_batch_size=4, max_queue_seconds=100))
    other = np.ones((1, 3), np.float32)
    submit(batcher, 0, 0)
    submit(batcher, 1, 1, other)
    submit(batcher, 0, 2, other)
    assert await served(batcher) == [1, 2, 0]


@pytest.mark.parametrize("priority", [-1, 0, 1])
async def test_lower_priorities_are_refused_first(priority: int) -> None:
    """Limits count requests and their work; `room_for` returns how many still fit."""
    for policy in (
        BatchPolicy(max_batch_size=1, max_queue_size=4),
        BatchPolicy(max_batch_size=1, max_queue_seconds=4.0),
    ):
        batcher = make(policy)
        fits = int(4 * share_for(priority))
        assert fits == {-1: 2, 0: 4, 1: 6}[priority]
        for taken in range(fits):
            assert batcher.room_for(priority) == fits - taken
            submit(batcher, priority)
        assert batcher.room_for(priority) == 0
        with pytest.raises(Overloaded):
            submit(batcher, priority)
        if priority < 1:
            submit(batcher, priority + 1)
        await served(batcher)


async def test_a_head_start_is_no_delay() -> None:
    """A batch waits for others as long as is configured, from when its oldest request came."""
    policy = BatchPolicy(max_batch_size=8, max_queue_delay_ms=500)

    def wait(*requests: Request, now: float) -> object:
        decision = next_batch({A: sorted(requests, key=lambda one: one.place)}, policy, now)
        return decision if isinstance(decision, float) else decision.requests

    for step in (-1, 0, 1):
        assert wait(Request(1.0, 1, step=step), now=1.2) == pytest.approx(0.3)
        assert wait(Request(1.0, 1, step=step), now=1.5) == 1
    both = Request(1.0, 1), Request(1.4, 1, step=1)
    assert wait(*both, now=1.4) == pytest.approx(0.1)
    assert wait(*both, now=1.5) == 2


def test_the_first_place_of_all_queues_decides() -> None:
    """The decision has that place, and the scheduler uses it to choose a model."""
    queues = {A: [Request(1.0, 1)], B: [Request(9.0, 1, step=1)]}
    decision = next_batch(queues, BatchPolicy(), now=10.0)
    assert not isinstance(decision, float)
    assert (decision.key, decision.place) == (B, 9.0 - HEAD_START_SECONDS)
