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
CountsByProcess = Mapping[int, Mapping[VersionKey, VersionCounts]]
Heard = Mapping[int, Mapping[VersionKey, VersionCounts] | None]
"""Counts by process; None of one that did not answer in time."""


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

    read: Gives the counts of all processes of the host, by process.
    queued: How many requests are in queues.
    """

    def __init__(self, read: Callable[[], Awaitable[Heard]], queued: Callable[[], int]) -> None:
        self._read = read
        self._queued = queued
        self._history: deque[LiveSample] = deque(maxlen=HISTORY)
        self._number = 0  # samples that were taken
        self._before: CountsByProcess = {}
        self._unheard: set[int] = set()  # processes that have counted, who knows what
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
        before, counts = self._compared(await self._read())
        now = monotonic()
        seconds = now - self._taken
        self._taken, self._before = now, counts
        if seconds > BROKEN_OFF_SECONDS:
            self._history.clear()
            return  # there is nothing yet to compare with
        since = await in_turns(changes(before, counts))
        busiest = sorted(since, key=lambda key: -since[key][0].requests)[:MOST_VERSIONS]
        written = await in_turns(_written({key: since[key] for key in sorted(busiest)}))
        rest = [counts for key, (counts, _) in since.items() if key not in written]
        others = await in_turns(_together(rest))
        self._number += 1
        self._history.append(
            LiveSample(time(), seconds, self._queued(), written, orjson.dumps(others.plain()))
        )

    def _compared(self, heard: Heard) -> tuple[CountsByProcess, CountsByProcess]:
        """What to compare, before and now: of one that was silent, what was heard of it last."""
        before, now = dict(self._before), {}
        for pid, told in heard.items():
            if told is not None and pid in self._unheard:
                before[pid] = told
            counts = before.get(pid) if told is None else told
            if counts is not None:
                now[pid] = counts
        self._unheard = heard.keys() - now.keys()
        return before, now


def changes(
    before: CountsByProcess, now: CountsByProcess
) -> Generator[None, None, dict[VersionKey, tuple[VersionCounts, int]]]:
    """What came in between, of each version that was asked, and all its requests so far.

    A process that was not there before has counted from nothing, and so has one whose counts became
    less: another has taken its place. Yields wherever others may have their turn, and returns it.
    """
    sums: dict[VersionKey, VersionCounts] = {}
    totals: dict[VersionKey, int] = {}
    for process, versions in now.items():
        earlier = before.get(process, {})
        for key, counts in versions.items():
            totals[key] = totals.get(key, 0) + counts.requests
            if counts != earlier.get(key):
                known = earlier.get(key, VersionCounts())
                since = counts.plus(known, -1) if counts.continues(known) else counts
                sums[key] = sums.get(key, VersionCounts()).plus(since)
            yield
    return {key: (sums[key], totals[key]) for key in sums}


def _together(all_counts: Iterable[VersionCounts]) -> Generator[None, None, VersionCounts]:
    total = VersionCounts()
    for counts in all_counts:
        total = total.plus(counts)
        yield
    return total


def _written(
    since: Mapping[VersionKey, tuple[VersionCounts, int]],
) -> Generator[None, None, dict[VersionKey, bytes]]:
    written: dict[VersionKey, bytes] = {}
    for key, (counts, total) in since.items():
        model, version = key
        said = {"model": model, "version": version, "total": total, **counts.plain()}
        written[key] = orjson.dumps(said)
        yield
    return written
