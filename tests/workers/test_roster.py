"""Which workers are started and retired."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cohort.workers.roster import (
    MAX_EMPTY_SECONDS,
    RetireWorker,
    StartWorker,
    WorkerView,
    judge_among,
    next_changes,
    retry_seconds,
)


def worker(pid: int, place: int, started: float = 1.0) -> WorkerView:
    """One that does all it should."""
    return WorkerView(pid, place, started, accepting=True, ready=True, settled=True)


def test_the_first_worker_starts_alone() -> None:
    """The others find in the cache what it has made; where one ends, its place is filled again."""
    assert next_changes([], 3, now=1, warm=False) == [StartWorker(0)]
    first = worker(7, 0)
    assert next_changes([first], 3, now=1, warm=False) == []
    assert next_changes([first], 3, now=1) == [StartWorker(1), StartWorker(2)]
    assert next_changes([first, worker(8, 2)], 3, now=1) == [StartWorker(1)]
    assert next_changes([first, worker(8, 1)], 2, now=1) == []


def test_a_place_whose_workers_end_stays_empty_for_a_while() -> None:
    """The pause grows each time, up to a limit."""
    assert next_changes([], 1, now=4.9, not_before={0: 5.0}) == []
    assert next_changes([], 1, now=5.0, not_before={0: 5.0}) == [StartWorker(0)]
    assert [retry_seconds(count) for count in range(5)] == [0, 1, 2, 4, 8]
    assert retry_seconds(1000) == MAX_EMPTY_SECONDS


def test_outdated_workers_are_replaced_one_after_the_other() -> None:
    """The older one of a place serves until the newer one does."""
    old = [worker(1, 0, 1), worker(2, 1, 2)]
    assert next_changes(old, 2, now=9, outdated=5) == [StartWorker(0)]
    starting = WorkerView(3, 0, 6)
    assert next_changes([*old, starting], 2, now=9, outdated=5) == []
    assert next_changes([*old, worker(3, 0, 6)], 2, now=9, outdated=5) == [RetireWorker(1)]
    retiring = replace(old[0], retiring=True)
    members = [retiring, old[1], worker(3, 0, 6)]
    assert next_changes(members, 2, now=9, outdated=5) == [StartWorker(1)]
    members = [worker(3, 0, 6), old[1], worker(4, 1, 7)]
    assert next_changes(members, 2, now=9, outdated=5) == [RetireWorker(2)]
    assert next_changes([worker(3, 0, 6), worker(4, 1, 7)], 2, now=9, outdated=5) == []


def test_a_newer_worker_that_is_worse_replaces_nobody() -> None:
    """A release that cannot load a model does not take over from one that has it."""
    settled = replace(worker(3, 0, 6), ready=False)
    members = [worker(1, 0, 1), worker(2, 1, 2), settled]
    assert next_changes(members, 2, now=9, outdated=5) == []
    members[0] = replace(members[0], ready=False)
    assert next_changes(members, 2, now=9, outdated=5) == [RetireWorker(1)]


@pytest.mark.parametrize("order", [1, -1])
def test_the_oldest_ready_worker_judges(order: int) -> None:
    """It must not retire and must take connections. Without a ready worker another one judges."""
    one, two = worker(1, 0, 5), worker(2, 1, 3)
    assert judge_among([one, two][::order]) == 2
    assert judge_among([one, replace(two, retiring=True)][::order]) == 1
    assert judge_among([one, replace(two, ready=False)][::order]) == 1
    assert judge_among([replace(two, ready=False)]) == 2
    assert judge_among([WorkerView(9, 0, 1)]) == 0
