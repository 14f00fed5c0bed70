"""Decisions which workers to start and retire. Pure: without clock and processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FIRST_EMPTY_SECONDS, MAX_EMPTY_SECONDS = 1.0, 30.0
"""Time that a place stays empty after a worker in it ended before it was ready."""

FIRST_ALONE_SECONDS = 10.0
"""Maximum time that the first worker runs alone before the others start.

They find its inspections and measurements in the cache.
"""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as its parent sees it.

    pid: Its process.
    place: Its number among the configured workers, from 0.
    started: Its start, in seconds on the monotonic clock.
    accepting: True if it takes connections.
    ready: True if it reports that it is ready.
    settled: True if the loads of its first models have ended.
    retiring: True if it was asked to end.
    """

    pid: int
    place: int
    started: float
    accepting: bool = False
    ready: bool = False
    settled: bool = False
    retiring: bool = False


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a worker in a place."""

    place: int


@dataclass(frozen=True, slots=True)
class RetireWorker:
    """Let a worker finish its requests, and end."""

    pid: int


def next_changes(
    members: Sequence[WorkerView],
    count: int,
    *,
    now: float,
    outdated: float = 0.0,
    not_before: Mapping[int, float] | None = None,
    warm: bool = True,
) -> list[StartWorker | RetireWorker]:
    """Return the changes that lead to `count` workers, all started at `outdated` or later.

    An older worker serves until a new one in its place does as well; one place is renewed at a
    time.

    not_before: The earliest start of a worker in a place; default: now.
    warm: True if the first start has ended; until then only the first worker runs.
    """
    staying = [one for one in members if not one.retiring]
    blocked = not_before or {}
    changes: list[StartWorker | RetireWorker] = []
    for place in range(count if warm else 1):
        here = [one for one in staying if one.place == place]
        if not here and now >= blocked.get(place, now):
            changes.append(StartWorker(place))
        newest = max(here, key=lambda one: one.started, default=None)
        if newest is not None and newest.settled:
            older = [one for one in here if one is not newest]
            if newest.ready or not any(one.ready for one in older):
                changes += [RetireWorker(one.pid) for one in older]
    if changes or any(not one.settled for one in staying if one.started >= outdated):
        return changes  # one change at a time
    if len({one.place for one in staying}) < len(staying):
        return changes  # the new worker is not as ready as the old one yet
    old = [one for one in staying if one.started < outdated]
    if old and warm:
        place = min(old, key=lambda one: one.started).place
        if now >= blocked.get(place, now):
            changes.append(StartWorker(place))
    return changes


def retry_seconds(failures: int) -> float:
    """Return the wait after a number of consecutive workers in a place ended before `settled`."""
    if not failures:
        return 0.0
    return min(FIRST_EMPTY_SECONDS * 2.0 ** min(failures - 1, 16), MAX_EMPTY_SECONDS)


def judge_among(members: Sequence[WorkerView]) -> int:
    """Return the process that judges rollouts: the oldest ready one; 0 if there is no worker."""
    able = [one for one in members if one.accepting and not one.retiring]
    first = min(able, key=lambda one: (not one.ready, one.started, one.place), default=None)
    return 0 if first is None else first.pid
