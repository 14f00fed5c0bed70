"""A worker's view of the others of its host."""

from __future__ import annotations

from typing import Any

import pytest

from cohort.operating import Readiness
from cohort.workers.siblings import Siblings
from tests.workers.fake_link import NOT, READY, FakeLink, siblings_of, worker


@pytest.mark.parametrize(
    ("own", "workers", "expected"),
    [
        (READY, [worker(1), worker(2)], READY),
        (NOT, [worker(1), worker(2)], NOT),
        (READY, [worker(1), worker(2, ready=False)], Readiness(False, "worker 2: no")),
        (READY, [worker(1), worker(2, ready=False, settled=False)], READY),
        (READY, [worker(1), worker(2, ready=False, retiring=True)], READY),
        (READY, [worker(1), {"pid": 2, "place": 2, "retiring": False}], READY),
        (NOT, [worker(1, settled=False), worker(2)], READY),
        (NOT, [worker(1, settled=False)], NOT),
        (NOT, [], NOT),
    ],
)
def test_the_host_is_ready_where_all_are_that_connections_are_given_to(
    own: Readiness, workers: list[dict[str, Any]], expected: Readiness
) -> None:
    """A worker that starts or retires does not count while there are others."""
    siblings = siblings_of(FakeLink(), *workers, judge=2)
    assert siblings.readiness(own) == expected
    assert not siblings.judges


def test_a_worker_that_retires_speaks_for_the_host() -> None:
    """It drains, and a probe on its last connection gets the state of the others."""
    siblings = siblings_of(FakeLink(), worker(1, retiring=True), worker(2))
    siblings.retiring = True
    assert siblings.readiness(NOT) == READY


def test_the_host_is_live_where_all_workers_are() -> None:
    """A fault of one worker that only a restart fixes is reported with its place."""
    siblings = siblings_of(FakeLink(), worker(1), worker(2, live=False, live_reason="stuck"))
    assert siblings.liveness(READY) == Readiness(False, "worker 2: stuck")
    assert siblings.liveness(NOT) == NOT


async def test_a_worker_that_nobody_knows_yet_asks_nobody() -> None:
    """Until it is connected, it reports its own state, judges alone and waits for no other."""
    early = Siblings(0, pid=1)
    assert early.readiness(NOT) == NOT
    assert early.liveness(READY) == READY
    assert early.judges
    assert (await early.ask("health")).answers == ()
    await early.have_done("load", {"model": "m"})
