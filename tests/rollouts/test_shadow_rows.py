"""Copies of requests that were answered together: run as one, and judged one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from cohort.batching import Outputs
from cohort.errors import CohortError, InferenceFailed, NotReady, Overloaded
from cohort.registry import State
from cohort.rollouts import Compared, Dropped
from cohort.rollouts.shadow import QUEUE_SIZE, ShadowRunner
from cohort.tensors import Arrays
from tests.rollouts.engines import INPUT, OUTPUT, LiveRig

COUNTS = (1, 2, 1)


def rig(shadow: str = "{version: 3}") -> tuple[LiveRig, ShadowRunner]:
    """Version 1 answers, version 3 is its shadow."""
    one = LiveRig(f"variants: {{stable: {{version: 1, weight: 1}}}}, shadow: {shadow}")
    assert one.live.shadow is not None
    return one, one.live.shadow


def rows(count: int) -> Arrays:
    return {INPUT.name: np.arange(count, dtype=np.float32).reshape(-1, 1)}


def best(*places: int) -> Outputs:
    """Scores of rows, the highest at these places."""
    return [np.eye(3, dtype=np.float32)[[*places]]]


def copy(one: LiveRig, counts: Sequence[int], *, version: int = 1) -> None:
    """Copy requests that were answered together, each row with its first score as the best."""
    one.live.copy_rows(version, rows(sum(counts)), [OUTPUT], best(*[0] * sum(counts)), counts)


async def test_a_group_is_copied_as_one_and_compared_by_request() -> None:
    """A request disagrees where any of its rows does."""
    one, runner = rig()
    copy(one, COUNTS)
    (request,) = one.queue(3).requests
    assert (request.requests, request.inputs["x"].ravel().tolist()) == (3, [0, 1, 2, 3])
    request.answer(best(0, 0, 1, 0))
    compared = await one.events.wait_for(Compared, 3)
    assert [event.disagrees for event in compared] == [False, True, False]
    assert (runner.compared, runner.disagreed, runner.dropped) == (3, 1, 0)
    assert one.engines[3].leases.count == 0


def test_nothing_is_copied_to_the_version_that_answered() -> None:
    """A request is not copied to the version that answered it."""
    one, _ = rig()
    copy(one, COUNTS, version=3)
    assert one.copies(3) == 0


@pytest.mark.parametrize("sample", [0.0, 0.5])
def test_a_sample_is_of_whole_requests(sample: float) -> None:
    """Those that are drawn keep their own rows."""
    one, _ = rig(f"{{version: 3, sample: {sample}}}")
    counts = [1, 3] * 20
    copy(one, counts)
    requests = [request for queue in one.engines[3].side_queues for request in queue.requests]
    sent = [value for request in requests for value in request.inputs["x"].ravel()]
    whole, at = [], 0
    for count in counts:
        mine = [float(at + number) for number in range(count)]
        whole += mine if mine[0] in sent else []
        at += count
    assert sent == whole
    assert len(sent) < sum(counts)
    assert bool(sent) is (sample > 0)


@pytest.mark.parametrize(
    "answer",
    [
        (None, InferenceFailed("bad")),
        (best(0), None),
        ([np.float32(1)], None),
    ],
    ids=["failed", "rows do not follow", "no rows"],
)
async def test_what_may_be_one_requests_doing_is_tried_for_each(
    answer: tuple[Outputs | None, CohortError | None],
) -> None:
    """The result is as if each had been copied alone."""
    one, runner = rig()
    copy(one, COUNTS)
    one.queue(3).requests[0].answer(*answer)
    again = one.queue(3).requests[1:]
    assert [request.inputs["x"].ravel().tolist() for request in again] == [[0], [1, 2], [3]]
    again[0].answer(best(0))
    again[1].answer(None, InferenceFailed("bad"))
    again[2].answer(best(0))
    compared = await one.events.wait_for(Compared, 3)
    assert sorted(event.disagrees for event in compared) == [False, False, True]
    assert (runner.compared, runner.failed) == (3, 1)


@pytest.mark.parametrize("error", [Overloaded(""), NotReady("")])
def test_copies_that_were_not_run_are_dropped(error: CohortError) -> None:
    """Copies that were not run are dropped, and are not evidence."""
    one, runner = rig()
    copy(one, COUNTS)
    one.queue(3).requests[0].answer(None, error)
    assert one.events == [Dropped("m", 3, 3)]
    assert (runner.compared, runner.dropped) == (0, 3)
    one.states[3] = State.LOADING
    copy(one, COUNTS)
    assert one.events[1:] == [Dropped("m", 3, 3)]


def test_as_many_are_copied_as_there_is_room_for() -> None:
    """The others are dropped; what runs counts as well."""
    one, runner = rig()
    copy(one, [1] * (QUEUE_SIZE - 2))
    copy(one, COUNTS)
    assert one.copies(3) == QUEUE_SIZE
    assert one.events == [Dropped("m", 3, 1)]
    assert one.queue(3).requests[1].inputs["x"].ravel().tolist() == [0, 1, 2]
    copy(one, COUNTS)
    assert runner.dropped == 4
    one.queue(3).answer_all(error=NotReady(""))
    copy(one, COUNTS)
    assert one.copies(3) == 3


async def test_those_that_wait_to_be_compared_are_bounded() -> None:
    """Twice a queue of them may wait, however they came."""
    one, runner = rig()
    for _ in range(3):
        copy(one, [1] * QUEUE_SIZE)
        one.queue(3).requests[-1].answer(best(*[0] * QUEUE_SIZE))
    assert one.events == [Dropped("m", 3, QUEUE_SIZE)]
    await one.events.wait_for(Compared, 2 * QUEUE_SIZE)
    assert runner.compared == 2 * QUEUE_SIZE
