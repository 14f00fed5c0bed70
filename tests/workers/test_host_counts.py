"""Counts of all workers since a moment."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from hypothesis import given
from hypothesis import strategies as st

from cohort.metrics import VersionCounts
from cohort.operating import at_once
from cohort.operating.live import Counts
from cohort.workers.host_counts import OWN, CountsByProcess, HostCounts, changes_of_all
from cohort.workers.link import WorkerAnswers
from tests.workers.fake_link import FakeLink, answer, siblings_of

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
    """Return counts with `ok` successes."""
    return VersionCounts({"OK": ok}, {"": ok})


@given(HOST, HOST)
def test_what_came_in_between_is_added_to_what_was_there(
    before: CountsByProcess,
    more: CountsByProcess,
) -> None:
    """Counts of new and ended processes are included; nothing is ever subtracted."""
    now = {
        process: {
            labels: versions.get(labels, VersionCounts()).plus(
                more.get(process, {}).get(labels, VersionCounts())
            )
            for labels in {**versions, **more.get(process, {})}
        }
        for process, versions in {**{one: {} for one in more}, **before}.items()
    }
    found = at_once(changes_of_all(before, now))
    for labels in {labels for versions in now.values() for labels in versions}:
        since, total = found.get(labels, (VersionCounts(), None))
        parts = [versions[labels] for versions in more.values() if labels in versions]
        assert since.requests == sum(part.requests for part in parts)
        assert since.rows == tuple(map(sum, zip(NOTHING, *[p.rows for p in parts], strict=True)))
        if total is not None:
            everything = [versions[labels] for versions in now.values() if labels in versions]
            assert total == sum(one.requests for one in everything)
    assert at_once(changes_of_all(now, now)) == {}
    assert at_once(changes_of_all(now, {})) == {}


def test_a_worker_that_was_replaced_has_counted_from_nothing() -> None:
    """Its last counts are not subtracted from those of the new one."""
    found = at_once(
        changes_of_all(
            {0: {("a", "1"): counts(5)}, 7: {("a", "1"): counts(9)}},
            {0: {("a", "1"): counts(6)}, 8: {("a", "1"): counts(2)}},
        )
    )
    assert found == {("a", "1"): (counts(3), 8)}


async def changes_heard(*heard: Mapping[int, Counts | None]) -> list[dict[str, tuple[int, int]]]:
    """Return the changes since the first answer, by model: requests then, and all so far."""
    link = FakeLink()
    said = iter(heard)

    async def own() -> Counts:
        return now[OWN] or {}

    host = HostCounts(own, siblings_of(link))
    found = []
    for now in said:
        link.answers["live"] = WorkerAnswers(
            tuple(
                answer(pid, counts=[(*key, one.plain()) for key, one in told.items()])
                for pid, told in now.items()
                if told is not None and pid != OWN
            ),
            silent=tuple(pid for pid, told in now.items() if told is None),
        )
        found.append(await host.since())
    return [{key[0]: (one.requests, total) for key, (one, total) in each.items()} for each in found]


async def test_a_worker_that_was_silent_is_not_counted_anew() -> None:
    """It counts neither once more nor from the first look on; a new one has counted from 0."""
    key = ("a", "1")
    _, *found = await changes_heard(
        {OWN: {key: counts(5)}, 7: {key: counts(100_001)}, 8: None},
        {OWN: {key: counts(6)}, 7: None, 8: None},
        {OWN: {key: counts(6)}, 7: {key: counts(100_003)}, 8: {key: counts(500)}},
        {
            OWN: {key: counts(6)},
            7: {key: counts(100_003)},
            8: {key: counts(504)},
            9: {key: counts(3)},
        },
    )
    assert found == [{"a": (1, 100_007)}, {"a": (2, 100_509)}, {"a": (7, 100_516)}]


async def test_a_worker_that_fails_to_answer_is_silent() -> None:
    """Its earlier counts stay in the total."""
    link = FakeLink(live=WorkerAnswers((answer(7, counts=[("a", "1", counts(3).plain())]),)))

    async def own() -> Counts:
        return {("a", "1"): counts(1)}

    host = HostCounts(own, siblings_of(link))
    assert await host.since() == {("a", "1"): (counts(4), 4)}
    link.answers["live"] = WorkerAnswers((answer(7, error="busy"),))
    assert await host.since() == {}


def test_counts_go_through_json() -> None:
    """Workers send them to each other as JSON."""
    said = orjson.loads(orjson.dumps(counts(3).plain()))
    assert VersionCounts.read(said) == counts(3)
