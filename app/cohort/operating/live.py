"""What all versions do, second by second, for as many as look at it.

Nothing runs while nobody looks: whoever's second is over first has the next sample taken, and all
others are given the same one. A history is that of the time in which somebody looked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic, time

import orjson

from cohort.errors import Overloaded
from cohort.metrics import DURATION_BUCKETS, SIZE_BUCKETS, VersionCounts
from cohort.operating.shared_work import Shared, in_turns

SAMPLE_SECONDS = 1.0
HISTORY = 300
"""Samples that are kept."""

BROKEN_OFF_SECONDS = 5.0
"""Without a sample for so long the history begins anew."""

MOST_VIEWERS = 64
MOST_VERSIONS = 50
"""Versions of a sample that are told of: those with the most requests."""

LIVE_BOUNDS = {"durations": DURATION_BUCKETS, "rows": SIZE_BUCKETS}
"""The inclusive upper ends of what is counted in buckets: seconds, and rows."""

VersionKey = tuple[str, ...]
"""A model and its version."""

Counts = Mapping[VersionKey, VersionCounts]

Changes = Mapping[VersionKey, tuple[VersionCounts, int]]
"""What came meanwhile, of each version that was asked, and all its requests so far."""


@dataclass(frozen=True, slots=True)
class LiveSample:
    """What came since the sample before.

    at: When it was taken, in seconds since the epoch.
    seconds: Since the one before.
    queued: Requests in queues.
    versions: Of each version, as JSON: its counts of those seconds, and all requests since the
        process started. They are written once, however many look.
    others: The counts of all other versions together, as JSON.
    """

    at: float
    seconds: float
    queued: int
    versions: Mapping[VersionKey, bytes]
    others: bytes

    def seen_by(self, models: frozenset[str] | None) -> bytes:
        """The sample as JSON, for who may see `models`; None: all of them."""
        written = self.versions.items()
        seen = [said for (model, _), said in written if models is None or model in models]
        head = {"at": self.at, "seconds": round(self.seconds, 3), "queued": self.queued}
        others = self.others if models is None else b"null"
        return b'%b,"others":%b,"versions":[%b]}' % (
            orjson.dumps(head)[:-1], others, b",".join(seen),
        )  # fmt: skip


class LiveView:
    """The samples, and those who look at them.

    since: Gives what came since it was called last.
    queued: How many requests are in queues.
    """

    def __init__(self, since: Callable[[], Awaitable[Changes]], queued: Callable[[], int]) -> None:
        self._since = since
        self._queued = queued
        self._history: deque[LiveSample] = deque(maxlen=HISTORY)
        self._number = 0  # samples that were taken
        self._taken = -1e9  # on the monotonic clock
        self._sampling = Shared(self._sample)
        self.viewers = 0

    async def watch(self, ended: Callable[[], bool]) -> AsyncGenerator[list[LiveSample], None]:
        """The history, and then each sample, until `ended` says so.

        Raises Overloaded in place of the history where as many look as may.
        """
        if self.viewers >= MOST_VIEWERS:
            raise Overloaded(f"{MOST_VIEWERS} others look at the live view already")
        self.viewers += 1
        try:
            await self._have_sample()
            seen = self._number
            yield list(self._history)
            while not ended():
                await asyncio.sleep(max(0.05, self._taken + SAMPLE_SECONDS - monotonic()))
                await self._have_sample()
                new = min(self._number - seen, len(self._history))
                if new > 0:
                    seen = self._number
                    yield list(self._history)[-new:]
        finally:
            self.viewers -= 1

    async def _have_sample(self) -> None:
        if monotonic() - self._taken >= SAMPLE_SECONDS:
            await self._sampling.get(None)

    async def _sample(self) -> None:
        since = await self._since()
        now = monotonic()
        seconds = now - self._taken
        self._taken = now
        if seconds > BROKEN_OFF_SECONDS:
            self._history.clear()
            return  # what came is not that of a second
        busiest = sorted(since, key=lambda key: -since[key][0].requests)[:MOST_VERSIONS]
        written = await in_turns(_written({key: since[key] for key in sorted(busiest)}))
        rest = [counts for key, (counts, _) in since.items() if key not in written]
        others = await in_turns(_together(rest))
        self._number += 1
        self._history.append(
            LiveSample(time(), seconds, self._queued(), written, orjson.dumps(others.plain()))
        )


class ProcessCounts:
    """What came of the requests of this process.

    read: Gives its counts.
    """

    def __init__(self, read: Callable[[], Awaitable[Counts]]) -> None:
        self._read = read
        self._before: Counts = {}

    async def since(self) -> Changes:
        """What came since this was called last."""
        before, self._before = self._before, await self._read()
        return await in_turns(changes(before, self._before))


def changes(before: Counts, now: Counts) -> Generator[None, None, Changes]:
    """What came in between.

    Counts that became less are those of another process, which has counted from nothing. Yields
    wherever others may have their turn, and returns it.
    """
    found: dict[VersionKey, tuple[VersionCounts, int]] = {}
    for key, counts in now.items():
        if counts != before.get(key):
            known = before.get(key, VersionCounts())
            since = counts.plus(known, -1) if counts.continues(known) else counts
            found[key] = since, counts.requests
        yield
    return found


def _together(all_counts: Iterable[VersionCounts]) -> Generator[None, None, VersionCounts]:
    total = VersionCounts()
    for counts in all_counts:
        total = total.plus(counts)
        yield
    return total


def _written(
    since: Changes,
) -> Generator[None, None, dict[VersionKey, bytes]]:
    written: dict[VersionKey, bytes] = {}
    for key, (counts, total) in since.items():
        model, version = key
        said = {"model": model, "version": version, "total": total, **counts.plain()}
        written[key] = orjson.dumps(said)
        yield
    return written
