"""The request counts of all workers, for the live view."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping

from cohort.metrics import VersionCounts
from cohort.operating import in_turns
from cohort.operating.live import Changes, Counts, VersionKey, changes
from cohort.workers.siblings import Siblings

OWN = 0
"""Key of this process."""

CountsByProcess = Mapping[int, Counts]
Received = Mapping[int, Counts | None]
"""Counts by process; None for a process that did not answer in time."""


class HostCounts:
    """The request counts of all workers.

    own: Returns the counts of this worker.
    siblings: The other workers.
    """

    def __init__(self, own: Callable[[], Awaitable[Counts]], siblings: Siblings) -> None:
        self._own = own
        self._siblings = siblings
        self._before: CountsByProcess = {}
        self._unknown: set[int] = set()  # processes with unknown counts

    async def since(self) -> Changes:
        """Return the changes since the last call."""
        before, self._before = self._compared(await self._receive())
        return await in_turns(changes_of_all(before, self._before))

    async def _receive(self) -> Received:
        found = await self._siblings.ask("live")
        received: dict[int, Counts | None] = dict.fromkeys(found.silent)
        for one in found.answers:
            received[one.pid] = None if one.error else _read(one.content["counts"])
        received[OWN] = await self._own()
        return received

    def _compared(self, received: Received) -> tuple[CountsByProcess, CountsByProcess]:
        """Return the counts to compare: for a silent process, its last known counts."""
        before, now = dict(self._before), {}
        for pid, counted in received.items():
            if counted is not None and pid in self._unknown:
                before[pid] = counted
            counts = before.get(pid) if counted is None else counted
            if counts is not None:
                now[pid] = counts
        self._unknown = received.keys() - now.keys()
        return before, now


def changes_of_all(before: CountsByProcess, now: CountsByProcess) -> Generator[None, None, Changes]:
    """Return the changes in all processes; a new process has counted from zero."""
    sums: dict[VersionKey, VersionCounts] = {}
    totals: dict[VersionKey, int] = {}
    for process, counts in now.items():
        for key, one in counts.items():
            totals[key] = totals.get(key, 0) + one.requests
        found = yield from changes(before.get(process, {}), counts)
        for key, (since, _) in found.items():
            sums[key] = sums.get(key, VersionCounts()).plus(since)
    return {key: (sums[key], totals[key]) for key in sums}


def _read(written: list[tuple[str, str, Mapping[str, object]]]) -> Counts:
    return {(model, version): VersionCounts.read(counts) for model, version, counts in written}
