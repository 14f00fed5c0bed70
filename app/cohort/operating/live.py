"""Samples of all versions' activity, one a second, shared by all viewers.

Sampling runs only while a viewer is connected. The first viewer whose second has passed takes the
next sample; all others reuse it. The history covers only times with a viewer.
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
"""After this time without a sample the history starts again."""

MAX_VIEWERS = 64
MAX_VERSIONS = 50
"""Versions listed in a sample: those with the most requests."""

LIVE_BOUNDS = {"durations": DURATION_BUCKETS, "rows": SIZE_BUCKETS}
"""The inclusive upper ends of the buckets: seconds, and rows."""

VersionKey = tuple[str, ...]
"""A model and its version."""

Counts = Mapping[VersionKey, VersionCounts]

Changes = Mapping[VersionKey, tuple[VersionCounts, int]]
"""The counts since the last sample of each active version, and all its requests so far."""


@dataclass(frozen=True, slots=True)
class LiveSample:
    """The activity since the previous sample.

    at: When it was taken, in seconds since the epoch.
    seconds: Time since the previous sample.
    queued: Requests in queues.
    versions: For each version, as JSON: its counts of those seconds, and all requests since the
        process started. They are encoded once for all viewers.
    others: The counts of all other versions together, as JSON.
    """

    at: float
    seconds: float
    queued: int
    versions: Mapping[VersionKey, bytes]
    others: bytes

    def limited_to(self, models: frozenset[str] | None) -> bytes:
        """Return the sample as JSON, for callers with access to `models`; None: all models."""
        written = self.versions.items()
        texts = [text for (model, _), text in written if models is None or model in models]
        head = {"at": self.at, "seconds": round(self.seconds, 3), "queued": self.queued}
        others = self.others if models is None else b"null"
        return b'%b,"others":%b,"versions":[%b]}' % (
            orjson.dumps(head)[:-1], others, b",".join(texts),
        )  # fmt: skip


class LiveView:
    """The samples and their viewers.

    since: Returns the changes since its last call.
    queued: Returns the number of requests in queues.
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
        """Yield the history, and then each sample, until `ended` returns True.

        Raises Overloaded at the start if the maximum of viewers is reached.
        """
        if self.viewers >= MAX_VIEWERS:
            raise Overloaded(f"the live view already has {MAX_VIEWERS} viewers; close one")
        self.viewers += 1
        try:
            await self._have_sample()
            sent = self._number
            yield list(self._history)
            while not ended():
                await asyncio.sleep(max(0.05, self._taken + SAMPLE_SECONDS - monotonic()))
                await self._have_sample()
                new = min(self._number - sent, len(self._history))
                if new > 0:
                    sent = self._number
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
            return  # the changes are of more than a second
        busiest = sorted(since, key=lambda key: -since[key][0].requests)[:MAX_VERSIONS]
        written = await in_turns(_written({key: since[key] for key in sorted(busiest)}))
        rest = [counts for key, (counts, _) in since.items() if key not in written]
        others = await in_turns(_together(rest))
        self._number += 1
        self._history.append(
            LiveSample(time(), seconds, self._queued(), written, orjson.dumps(others.plain()))
        )


class ProcessCounts:
    """The counts of this process and their changes.

    read: Returns the counts.
    """

    def __init__(self, read: Callable[[], Awaitable[Counts]]) -> None:
        self._read = read
        self._before: Counts = {}

    async def since(self) -> Changes:
        """Return the changes since the last call."""
        before, self._before = self._before, await self._read()
        return await in_turns(changes(before, self._before))


def changes(before: Counts, now: Counts) -> Generator[None, None, Changes]:
    """Return the difference of two counts.

    If a count is lower than before, another process started at zero; then its whole count is the
    difference. Yields after each version, so that other work can run.
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
        sample = {"model": model, "version": version, "total": total, **counts.plain()}
        written[key] = orjson.dumps(sample)
        yield
    return written
