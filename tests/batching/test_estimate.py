"""Estimates of how long runs and a version's queue take, and refusals that follow from them."""

from __future__ import annotations

from collections import deque
from time import monotonic
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from cohort.batching import Batcher, BatchPolicy
from cohort.batching.estimate import MEASURED_SECONDS, REMEMBERED_SECONDS, SURE_SHARE, Estimate
from cohort.batching.policy import BatchDecision, RowCost, cut_batch
from cohort.errors import Overloaded
from tests.fakes import RecordedEvents, RecordedReply, double

POLICY = BatchPolicy(max_batch_size=4, max_queue_seconds=10.0)


def make() -> Estimate:
    """An estimate for a model that takes 0.1 s for each row."""
    return Estimate(lambda work: 0.1 * work, POLICY)


def test_a_queue_takes_what_its_batches_take_as_long_as_nothing_else_is_known() -> None:
    """Its batches are counted one after another, since it is unknown how many run at once."""
    estimate = make()
    assert estimate.capacity == pytest.approx(100)
    assert estimate.rate() == 0.0
    assert estimate.queue_seconds(40) == pytest.approx(4.0)
    estimate.pace = 2.0
    assert estimate.queue_seconds(40) == pytest.approx(8.0)
    assert estimate.work_within(8.0) == pytest.approx(40)


def test_a_queue_takes_as_long_as_it_was_seen_to() -> None:
    """Its estimate uses the rate at which all slots empty it, until it is empty."""
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
    """Old measurements lose their weight with time."""
    estimate = make()
    now, seen = 1000.0, []
    for seconds in (0.1, 0.4):
        for _ in range(int(6 * REMEMBERED_SECONDS / seconds)):
            now += seconds
            estimate.take(1, now)
            estimate.rate()
        seen.append(estimate.rate())
    assert seen == [pytest.approx(10, rel=0.01), pytest.approx(2.5, rel=0.05)]


def test_runs_that_waited_are_as_short_as_they_were() -> None:
    """Other threads had the interpreter's lock or the processor: a run's own work is no longer."""
    estimate = make()
    for _ in range(100):
        estimate.follow(1, 50.0, own=0.1)
    assert estimate.delayed
    assert estimate.pace > 100
    assert estimate.seconds_for(4) == pytest.approx(0.4)


@pytest.mark.parametrize(("seconds", "own", "expected"), [(0.3, 0.2, 2.0), (0.05, 0.04, 0.5)])
def test_runs_are_as_long_as_their_own_work(seconds: float, own: float, expected: float) -> None:
    """A pace that differs from the profile is learned after some runs."""
    estimate = make()
    for _ in range(100):
        estimate.follow(1, seconds, own)
    assert estimate.seconds_for(1) == pytest.approx(0.1 * expected, rel=0.01)
    assert estimate.pace == pytest.approx(10 * seconds, rel=0.01)


def test_a_run_that_has_others_work_for_it_is_not_short() -> None:
    """A run on several threads or a device uses the processor for less time than it takes."""
    estimate = make()
    for _ in range(100):
        estimate.follow(1, 0.2, own=0.001)
    assert estimate.seconds_for(1) == pytest.approx(0.1)


HUGE = 300_000
"""Work like that of 20 MB of numbers, where a row of 16 was profiled."""


def flat() -> Estimate:
    """An estimate for a model with hardly any work: one row seems to take as long as 32."""
    return Estimate(lambda work: 5e-6, BatchPolicy(max_batch_size=32), known=32)


def test_large_runs_say_nothing_of_short_ones() -> None:
    """Large runs take a thousand times what a line through the profile predicts."""
    estimate = flat()
    estimate.follow(HUGE, 0.003)
    assert estimate.seconds_for(HUGE) == pytest.approx(0.003)
    assert estimate.pace == 1.0
    assert estimate.seconds_for(1) == pytest.approx(5e-6)
    for _ in range(100):
        estimate.follow(HUGE, 0.006)
    assert estimate.seconds_for(HUGE) == pytest.approx(0.006, rel=0.01)


def test_what_is_known_of_large_runs_is_taken_for_those_most_like_them() -> None:
    """Before any is seen, a large run is estimated as a number of batches."""
    estimate = flat()
    assert estimate.seconds_for(64) == pytest.approx(1e-5)
    estimate.follow(2**10, 2e-5)
    estimate.follow(2**20, 0.004)
    assert estimate.seconds_for(2**9) == pytest.approx(1e-5)
    assert estimate.seconds_for(2**21) == pytest.approx(0.008)


async def test_large_requests_are_queued_by_what_they_take() -> None:
    """Their estimate is not that of as many requests as they have elements."""
    batcher = Batcher(
        double,
        BatchPolicy(max_batch_size=32, max_queue_seconds=0.02),
        wake=lambda batcher: None,
        observe=RecordedEvents(),
        seconds_for=lambda work: 5e-6,
        known_work=32,
        row_cost=RowCost(16, 32),
    )
    batcher.estimate.follow(HUGE, 0.003)
    row = np.ones((1, 16 * HUGE), np.int8)
    for _ in range(6):
        batcher.submit({"x": row}, RecordedReply())
    assert batcher.seconds_to_clear == pytest.approx(0.018)
    with pytest.raises(Overloaded, match=r"its requests take 0\.018 s"):
        batcher.submit({"x": row}, RecordedReply())
    decision = batcher.next_batch(monotonic())
    assert isinstance(decision, BatchDecision)
    batcher.take(decision, monotonic())
    assert batcher.seconds_to_clear == pytest.approx(0.003 * (6 - decision.requests))
    batcher.submit({"x": row}, RecordedReply()).cancel()
    assert batcher.seconds_to_clear == pytest.approx(0.003 * (6 - decision.requests))
    batcher.close()


async def test_who_would_be_too_late_is_refused_at_once() -> None:
    """The refusal has a time to retry; it needs a known speed of the queue."""
    batcher = Batcher(
        double,
        BatchPolicy(max_batch_size=1),
        wake=lambda batcher: None,
        observe=RecordedEvents(),
        seconds_for=lambda work: 0.1 * work,
    )

    def submit(timeout: float, priority: int = 0) -> None:
        with mock.patch("cohort.batching.batcher.monotonic", return_value=1000.0):
            batcher.submit(
                {"x": np.ones((1, 1))},
                RecordedReply(),
                deadline=1000.0 + timeout,
                priority=priority,
            )

    for _ in range(49):
        submit(30)
    submit(0.5)  # the speed is not yet known
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
    """It is halved, down to one request."""
    queue = deque([SimpleNamespace(rows=2, length=0.5, arrived=0.0, place=0.0)] * 8)
    found = cut_batch(BatchDecision("key", 8, 16, 0.0, 8.0), queue, lambda work: work <= most)  # type: ignore[arg-type]
    assert (None if found is None else (found.requests, found.rows, found.work)) == expected


async def test_deadlines_of_a_long_queue_leave_the_event_loop_time() -> None:
    """A look at all of them is followed by ten times as long without one."""
    batcher = Batcher(double, BatchPolicy(), wake=lambda batcher: None, observe=RecordedEvents())
    replies = [RecordedReply() for _ in range(2)]
    for reply, seconds in zip(replies, (1000, 2000), strict=True):
        batcher.submit({"x": np.ones((1, 1))}, reply, deadline=monotonic() + seconds)
    with mock.patch("cohort.batching.batcher.monotonic", side_effect=[1e9 - 1, 1e9 - 1 + 5.0]):
        batcher._expire()
    assert all(reply.calls for reply in replies)
    late = RecordedReply()
    batcher.submit({"x": np.ones((1, 1))}, late, deadline=monotonic() + 50)
    looked = monotonic()
    with mock.patch("cohort.batching.batcher.monotonic", side_effect=[looked, looked + 9.0]):
        batcher._expire()
    assert batcher._deadlines.earliest == pytest.approx(looked + 99.0)
    batcher.close()
