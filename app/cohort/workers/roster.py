"""Which workers are to be started, and which retired. Pure: no clock and no process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FIRST_EMPTY_SECONDS, MAX_EMPTY_SECONDS = 1.0, 30.0
"""How long a worker's place stays empty after one in it ended before it was ready."""

FIRST_ALONE_SECONDS = 10.0
"""How long the first worker may have the machine for itself before the others start, too.

They find in the cache what it has inspected and measured.
"""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker, as its parent sees it.

    pid: Its process.
    place: Which of the workers that there should be it is, from 0.
    started: When, in seconds on the monotonic clock.
    accepting: Whether it takes connections.
    ready: Whether it would answer that it is ready.
    settled: Whether its first models are loaded, or could not be.
    retiring: Whether it was told to end.
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
    """Have a worker answer what it has, and end."""

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
    """Say what is to be done for `count` workers that were all started at `outdated` or later.

    An older one serves until another one in its place does as well; one place is renewed at a time.

    not_before: When a worker may start in a place, at the earliest; default: now.
    warm: Whether the first start is over; until then there is only the first worker.
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
        return changes  # one thing after the other
    if len({one.place for one in staying}) < len(staying):
        return changes  # the newer one has still to become as ready as the one that it replaces
    old = [one for one in staying if one.started < outdated]
    if old and warm:
        place = min(old, key=lambda one: one.started).place
        if now >= blocked.get(place, now):
            changes.append(StartWorker(place))
    return changes


def retry_seconds(failures: int) -> float:
    """How long to wait once so many workers in a row ended in a place before they were ready."""
    if not failures:
        return 0.0
    return min(FIRST_EMPTY_SECONDS * 2.0 ** min(failures - 1, 16), MAX_EMPTY_SECONDS)


def judge_among(members: Sequence[WorkerView]) -> int:
    """The process that judges rollouts for all: the oldest that is ready; 0: none."""
    able = [one for one in members if one.accepting and not one.retiring]
    first = min(able, key=lambda one: (not one.ready, one.started, one.place), default=None)
    return 0 if first is None else first.pid
