"""Samples of what all versions do."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.errors import Overloaded
from cohort.metrics import VersionCounts
from cohort.operating import at_once, live
from cohort.operating.live import CountsByProcess, LiveView, changes
from tests.waiting import iterations

CODES = st.dictionaries(st.sampled_from(["OK", "InvalidInput"]), st.integers(1, 5))
COUNTS = st.builds(
    VersionCounts,
    CODES,
    st.dictionaries(st.sampled_from(["", "canary"]), st.integers(1, 5)),
    st.tuples(*[st.integers(0, 5)] * 19),
    st.tuples(*[st.integers(0, 5)] * 12),
)
LABELS = st.tuples(st.sampled_from("ab"), st.sampled_from("12"))
HOST = st.dictionaries(st.sampled_from([0, 7, 8]), st.dictionaries(LABELS, COUNTS))


NOTHING = VersionCounts().rows


def counts(ok: int) -> VersionCounts:
    """Of so many successes."""
    return VersionCounts({"OK": ok}, {"": ok})


@given(HOST, HOST)
def test_what_came_in_between_is_added_to_what_was_there(
    before: CountsByProcess,
    more: CountsByProcess,
) -> None:
    """Over all processes, those that are new or gone among them; nothing is ever taken away."""
    now = {
        process: {
            labels: versions.get(labels, VersionCounts()).plus(
                more.get(process, {}).get(labels, VersionCounts())
            )
            for labels in {**versions, **more.get(process, {})}
        }
        for process, versions in {**{one: {} for one in more}, **before}.items()
    }
    found = at_once(changes(before, now))
    for labels in {labels for versions in now.values() for labels in versions}:
        since, total = found.get(labels, (VersionCounts(), None))
        parts = [versions[labels] for versions in more.values() if labels in versions]
        assert since.requests == sum(part.requests for part in parts)
        assert since.rows == tuple(map(sum, zip(NOTHING, *[p.rows for p in parts], strict=True)))
        if total is not None:
            everything = [versions[labels] for versions in now.values() if labels in versions]
            assert total == sum(one.requests for one in everything)
    assert at_once(changes(now, now)) == {}
    assert at_once(changes(now, {})) == {}


def test_a_worker_that_was_replaced_has_counted_from_nothing() -> None:
    """What it counted at its end is not taken away from what the new one counts."""
    found = at_once(
        changes(
            {0: {("a", "1"): counts(5)}, 7: {("a", "1"): counts(9)}},
            {0: {("a", "1"): counts(6)}, 8: {("a", "1"): counts(2)}},
        )
    )
    assert found == {("a", "1"): (counts(3), 8)}


def test_counts_that_became_less_are_those_of_another_process() -> None:
    """A replica that was started anew at the same address has counted from nothing."""
    before: CountsByProcess = {0: {("a", "1"): counts(5000)}}
    assert at_once(changes(before, {0: {("a", "1"): counts(3)}})) == {("a", "1"): (counts(3), 3)}
    other = VersionCounts({"OK": 6000}, {"": 6000}, (1,) * 19)
    now: CountsByProcess = {0: {("a", "1"): VersionCounts({"OK": 6001}, {"": 6001}, (0,) * 19)}}
    (since, _) = at_once(changes({0: {("a", "1"): other}}, now))["a", "1"]
    assert since.requests == 6001


async def sampled(monkeypatch: pytest.MonkeyPatch, *heard: live.Heard) -> list[dict[str, Any]]:
    """The samples of what is heard, one after the other."""
    monkeypatch.setattr(live, "SAMPLE_SECONDS", 0.01)
    said = iter(heard)

    async def read() -> live.Heard:
        return next(said)

    watched = LiveView(read, int).watch(bool)
    found = await anext(watched)
    while len(found) < len(heard) - 1:
        found += await anext(watched)
    await watched.aclose()
    return [orjson.loads(one.seen_by(None)) for one in found]


async def test_of_many_versions_those_with_most_requests_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No sample is larger than that; the others are counted together, for who may see all."""
    now: live.Heard = {0: {("m", str(number)): counts(number) for number in range(1, 200)}}
    (sample,) = await sampled(monkeypatch, {0: {}}, now)
    assert {int(one["version"]) for one in sample["versions"]} == set(range(150, 200))
    assert sample["others"]["codes"] == {"OK": sum(range(150))}
    part = live.LiveSample(0, 1, 0, {("m", "1"): b"{}"}, b'{"codes":{}}')
    assert orjson.loads(part.seen_by(frozenset("m")))["others"] is None


async def test_a_worker_that_was_silent_is_not_counted_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither for once nor from the first look on; a new one has counted from nothing."""
    key = ("a", "1")
    samples = await sampled(
        monkeypatch,
        {0: {key: counts(5)}, 7: {key: counts(100_001)}, 8: None},
        {0: {key: counts(6)}, 7: None, 8: None},
        {0: {key: counts(6)}, 7: {key: counts(100_003)}, 8: {key: counts(500)}},
        {
            0: {key: counts(6)},
            7: {key: counts(100_003)},
            8: {key: counts(504)},
            9: {key: counts(3)},
        },
    )
    told = [[(one["codes"]["OK"], one["total"]) for one in each["versions"]] for each in samples]
    assert told == [[(1, 100_007)], [(2, 100_509)], [(7, 100_516)]]


def test_counts_go_through_json() -> None:
    """As workers tell them to each other."""
    said = orjson.loads(orjson.dumps(counts(3).plain()))
    assert VersionCounts.read(said) == counts(3)


async def test_a_sample_tells_of_the_models_that_its_viewer_may_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As JSON, which is written once for all viewers."""
    monkeypatch.setattr(live, "SAMPLE_SECONDS", 0.01)
    seen = 0

    async def read() -> CountsByProcess:
        nonlocal seen
        seen += 1
        return {0: {("a", "1"): counts(2 * seen), ("b", "2"): counts(3 * seen)}}

    view = LiveView(read, lambda: 7)
    watched = view.watch(bool)
    assert await anext(watched) == []
    (sample,) = await anext(watched)
    await watched.aclose()
    whole = orjson.loads(sample.seen_by(None))
    assert (whole["queued"], whole["at"]) == (7, sample.at)
    assert [(one["model"], one["total"]) for one in whole["versions"]] == [("a", 4), ("b", 6)]
    assert whole["versions"][0] == {
        "model": "a", "version": "1", "total": 4, "codes": {"OK": 2}, "variants": {"": 2},
        "durations": [0] * 19, "rows": [0] * 12,
    }  # fmt: skip
    assert whole["others"]["codes"] == {}
    part = orjson.loads(sample.seen_by(frozenset({"b", "c"})))
    assert part == whole | {"versions": whole["versions"][1:], "others": None}
    assert orjson.loads(sample.seen_by(frozenset()))["versions"] == []
    assert next(iter(sample.versions.values())) in sample.seen_by(None)


async def test_one_sample_is_taken_for_all_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    """And none once they have left."""
    monkeypatch.setattr(live, "SAMPLE_SECONDS", 0.05)
    reads = 0

    async def read() -> CountsByProcess:
        nonlocal reads
        reads += 1
        await iterations(1)
        return {0: {("a", "1"): counts(reads)}}

    view = LiveView(read, int)
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
    """What came in the meantime is not shown as if it were that of a second."""
    monkeypatch.setattr(live, "SAMPLE_SECONDS", 0.01)
    total = 0

    async def read() -> CountsByProcess:
        return {0: {("a", "1"): counts(total)}} if total else {}

    view = LiveView(read, int)
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
    monkeypatch.setattr(live, "MOST_VIEWERS", 2)

    async def read() -> CountsByProcess:
        return {}

    view = LiveView(read, int)
    looking = [view.watch(bool) for _ in range(5)]
    found = await asyncio.gather(*map(anext, looking), return_exceptions=True)
    assert found[:2] == [[], []]
    assert [str(one) for one in found[2:]] == ["2 others look at the live view already"] * 3
    assert all(isinstance(one, Overloaded) for one in found[2:])
    await looking[0].aclose()
    assert await anext(view.watch(bool)) == []
