"""What runs and the queue of a version should take, and who is refused by that."""

from __future__ import annotations

from collections import deque
from time import monotonic
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from app.batching import Batcher, BatchPolicy
from app.batching.estimate import MEASURED_SECONDS, REMEMBERED_SECONDS, SURE_SHARE, Estimate
from app.batching.policy import BatchDecision, cut_batch
from app.errors import Overloaded
from tests.fakes import RecordedEvents, RecordedReply, double

POLICY = BatchPolicy(max_batch_size=4, max_queue_seconds=10.0)


def make() -> Estimate:
    """Of a model that takes 0.1 s for each row."""
    return Estimate(lambda work: 0.1 * work, POLICY)


def test_a_queue_takes_what_its_batches_take_as_long_as_nothing_else_is_known() -> None:
    """One after the other: how many run at once is not known here."""
    estimate = make()
    assert estimate.capacity == pytest.approx(100)
    assert estimate.rate() == 0.0
    assert estimate.queue_seconds(40) == pytest.approx(4.0)
    estimate.pace = 2.0
    assert estimate.queue_seconds(40) == pytest.approx(8.0)
    assert estimate.work_within(8.0) == pytest.approx(40)


def test_a_queue_takes_as_long_as_it_was_seen_to() -> None:
    """By the rate at which it is emptied, on every slot it gets, until it is empty."""
    estimate = make()
    for take in range(11):
        assert estimate.rate() == 0.0 or take > 2
        estimate.take(4, 1000 + take * MEASURED_SECONDS / 2)
    rate = 4 / (MEASURED_SECONDS / 2)
    assert estimate.rate() == pytest.approx(rate)
    assert estimate.queue_seconds(64) == pytest.approx(64 / rate)
    estimate.run_empty()
    assert estimate.rate() == 0.0


def test_a_rate_follows_what_changes() -> None:
    """Of what is long ago ever less is left."""
    estimate = make()
    now, seen = 1000.0, []
    for seconds in (0.1, 0.4):
        for _ in range(int(6 * REMEMBERED_SECONDS / seconds)):
            now += seconds
            estimate.take(1, now)
            estimate.rate()
        seen.append(estimate.rate())
    assert seen == [pytest.approx(10, rel=0.01), pytest.approx(2.5, rel=0.05)]


async def test_who_would_be_too_late_is_refused_at_once() -> None:
    """Where it is known how long the queue takes; with the time after which to come again."""
    batcher = Batcher(
        double,
        BatchPolicy(max_batch_size=1),
        wake=lambda batcher: None,
        observe=RecordedEvents(),
        seconds_for=lambda work: 0.1 * work,
    )

    def submit(timeout: float, priority: int = 0) -> None:
        batcher.submit(
            {"x": np.ones((1, 1))},
            RecordedReply(),
            deadline=monotonic() + timeout,
            priority=priority,
        )

    for _ in range(49):
        submit(30)
    submit(0.5)  # nobody knows yet
    batcher.estimate.take(1, 1000.0)
    batcher.estimate.take(10, 1001.0)
    submit(5.2 / SURE_SHARE)
    with pytest.raises(Overloaded, match="too long for a limit of 5 s") as refused:
        submit(5.0)
    assert refused.value.retry_after == pytest.approx(5.1)
    submit(5.0, priority=1)  # which goes before the others
    batcher.close()


@pytest.mark.parametrize(
    ("most", "expected"), [(4.0, (4, 8, 4.0)), (2.5, (2, 4, 2.0)), (1.0, (1, 2, 1.0)), (0.9, None)]
)
def test_a_batch_is_cut_until_it_fits(most: float, expected: tuple[int, int, float] | None) -> None:
    """In halves, down to one request."""
    queue = deque([SimpleNamespace(rows=2, length=0.5, arrived=0.0, place=0.0)] * 8)
    found = cut_batch(BatchDecision("key", 8, 16, 0.0, 8.0), queue, lambda work: work <= most)  # type: ignore[arg-type]
    assert (None if found is None else (found.requests, found.rows, found.work)) == expected


async def test_deadlines_of_a_long_queue_leave_the_event_loop_time() -> None:
    """A look at all of them is followed by ten times as long without one."""
    batcher = Batcher(double, BatchPolicy(), wake=lambda batcher: None, observe=RecordedEvents())
    replies = [RecordedReply() for _ in range(2)]
    for reply, seconds in zip(replies, (0.001, 0.002), strict=True):
        batcher.submit({"x": np.ones((1, 1))}, reply, deadline=monotonic() + seconds)
    with mock.patch("app.batching.batcher.monotonic", side_effect=[1e9 - 1, 1e9 - 1 + 5.0]):
        batcher._expire()
    assert all(reply.calls for reply in replies)
    late = RecordedReply()
    batcher.submit({"x": np.ones((1, 1))}, late, deadline=monotonic() + 50)
    looked = monotonic()
    with mock.patch("app.batching.batcher.monotonic", side_effect=[looked, looked + 9.0]):
        batcher._expire()
    assert batcher._deadlines.earliest == pytest.approx(looked + 99.0)
    batcher.close()
