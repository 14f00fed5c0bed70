"""What came of the requests of all workers, for the live view."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping

from cohort.metrics import VersionCounts
from cohort.operating import in_turns
from cohort.operating.live import Changes, Counts, VersionKey, changes
from cohort.workers.siblings import Siblings

OWN = 0
"""Stands for this process."""

CountsByProcess = Mapping[int, Counts]
Heard = Mapping[int, Counts | None]
"""Counts by process; None of one that did not answer in time."""


class HostCounts:
    """What came of the requests of all workers.

    own: Gives the counts of this one.
    siblings: The others.
    """

    def __init__(self, own: Callable[[], Awaitable[Counts]], siblings: Siblings) -> None:
        self._own = own
        self._siblings = siblings
        self._before: CountsByProcess = {}
        self._unheard: set[int] = set()  # processes that have counted, who knows what

    async def since(self) -> Changes:
        """What came since this was called last."""
        before, self._before = self._compared(await self._hear())
        return await in_turns(changes_of_all(before, self._before))

    async def _hear(self) -> Heard:
        found = await self._siblings.ask("live")
        heard: dict[int, Counts | None] = dict.fromkeys(found.silent)
        for one in found.answers:
            heard[one.pid] = None if one.error else _read(one.said["counts"])
        heard[OWN] = await self._own()
        return heard

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


def changes_of_all(before: CountsByProcess, now: CountsByProcess) -> Generator[None, None, Changes]:
    """What came in between in all processes; one that was not there has counted from nothing."""
    sums: dict[VersionKey, VersionCounts] = {}
    totals: dict[VersionKey, int] = {}
    for process, counts in now.items():
        for key, one in counts.items():
            totals[key] = totals.get(key, 0) + one.requests
        found = yield from changes(before.get(process, {}), counts)
        for key, (since, _) in found.items():
            sums[key] = sums.get(key, VersionCounts()).plus(since)
    return {key: (sums[key], totals[key]) for key in sums}


def _read(said: list[tuple[str, str, Mapping[str, object]]]) -> Counts:
    return {(model, version): VersionCounts.read(counts) for model, version, counts in said}
