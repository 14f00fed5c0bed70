"""Samples of the activity of all versions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import orjson
import pytest

from cohort.errors import Overloaded
from cohort.metrics import VersionCounts
from cohort.operating import at_once, live
from cohort.operating.live import Counts, LiveView, ProcessCounts, changes
from tests.waiting import iterations


def counts(ok: int) -> VersionCounts:
    """Return counts with `ok` successes."""
    return VersionCounts({"OK": ok}, {"": ok})


def test_counts_that_became_less_are_those_of_another_process() -> None:
    """A replica that was restarted at the same address has counted from 0."""
    key = ("a", "1")
    assert at_once(changes({key: counts(5000)}, {key: counts(3)})) == {key: (counts(3), 3)}
    other = VersionCounts({"OK": 6000}, {"": 6000}, (1,) * 19)
    now = VersionCounts({"OK": 6001}, {"": 6001}, (0,) * 19)
    (since, _) = at_once(changes({key: other}, {key: now}))[key]
    assert since.requests == 6001


def view_of(read: Callable[[], Awaitable[Counts]], queued: Callable[[], int] = int) -> LiveView:
    """Return a live view of the counts from `read`."""
    return LiveView(ProcessCounts(read).since, queued)


async def test_of_many_versions_those_with_most_requests_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No sample is larger than that; the others are counted together, for who may see all."""
    monkeypatch.setattr(live, "SAMPLE_SECONDS", 0.01)
    heard: Iterator[Counts] = iter(
        [{}, {("m", str(number)): counts(number) for number in range(1, 200)}]
    )

    async def read() -> Counts:
        return next(heard)

    watched = view_of(read).watch(bool)
    assert await anext(watched) == []
    (taken,) = await anext(watched)
    await watched.aclose()
    sample = orjson.loads(taken.limited_to(None))
    assert {int(one["version"]) for one in sample["versions"]} == set(range(150, 200))
    assert sample["others"]["codes"] == {"OK": sum(range(150))}
    part = live.LiveSample(0, 1, 0, {("m", "1"): b"{}"}, b'{"codes":{}}')
    assert orjson.loads(part.limited_to(frozenset("m")))["others"] is None


async def test_a_sample_tells_of_the_models_that_its_viewer_may_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The JSON is written once for all viewers."""
    monkeypatch.setattr(live, "SAMPLE_SECONDS", 0.01)
    seen = 0

    async def read() -> Counts:
        nonlocal seen
        seen += 1
        return {("a", "1"): counts(2 * seen), ("b", "2"): counts(3 * seen)}

    view = view_of(read, lambda: 7)
    watched = view.watch(bool)
    assert await anext(watched) == []
    (sample,) = await anext(watched)
    await watched.aclose()
    whole = orjson.loads(sample.limited_to(None))
    assert (whole["queued"], whole["at"]) == (7, sample.at)
    assert [(one["model"], one["total"]) for one in whole["versions"]] == [("a", 4), ("b", 6)]
    assert whole["versions"][0] == {
        "model": "a", "version": "1", "total": 4, "codes": {"OK": 2}, "variants": {"": 2},
        "durations": [0] * 19, "rows": [0] * 12,
    }  # fmt: skip
    assert whole["others"]["codes"] == {}
    part = orjson.loads(sample.limited_to(frozenset({"b", "c"})))
    assert part == whole | {"versions": whole["versions"][1:], "others": None}
    assert orjson.loads(sample.limited_to(frozenset()))["versions"] == []
    assert next(iter(sample.versions.values())) in sample.limited_to(None)


async def test_one_sample_is_taken_for_all_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sample is taken once they have left."""
    monkeypatch.setattr(live, "SAMPLE_SECONDS", 0.05)
    reads = 0

    async def read() -> Counts:
        nonlocal reads
        reads += 1
        await iterations(1)
        return {("a", "1"): counts(reads)}

    view = view_of(read)
    seen: list[list[float]] = [[], [], []]

    async def look(place: int) -> None:
        watched = view.watch(lambda: len(seen[place]) >= 5)
        async for samples in watched:
            seen[place] += [one.at for one in samples]

    await asyncio.gather(*map(look, range(3)))
    assert view.viewers == 0
    assert len({at for one in seen for at in one}) <= 6
    assert reads <= 8
    assert all(one == sorted(one) for one in seen)


async def test_who_looks_away_for_long_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts from the pause are not shown as those of one second."""
    monkeypatch.setattr(live, "SAMPLE_SECONDS", 0.01)
    total = 0

    async def read() -> Counts:
        return {("a", "1"): counts(total)} if total else {}

    view = view_of(read)
    first = view.watch(bool)
    assert await anext(first) == []
    await first.aclose()
    monkeypatch.setattr(live, "BROKEN_OFF_SECONDS", 0.0)
    total = 1000
    later = view.watch(bool)
    assert await anext(later) == []
    await later.aclose()
    assert view.viewers == 0


async def test_as_many_may_look_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are refused until one leaves, also where all come at once."""
    monkeypatch.setattr(live, "MAX_VIEWERS", 2)

    async def read() -> Counts:
        return {}

    view = view_of(read)
    looking = [view.watch(bool) for _ in range(5)]
    found = await asyncio.gather(*map(anext, looking), return_exceptions=True)
    assert found[:2] == [[], []]
    assert [str(one) for one in found[2:]] == ["the live view already has 2 viewers; close one"] * 3
    assert all(isinstance(one, Overloaded) for one in found[2:])
    await looking[0].aclose()
    assert await anext(view.watch(bool)) == []
