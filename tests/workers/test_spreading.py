"""Which worker a new connection goes to."""

from __future__ import annotations

from cohort.workers.spreading import TAKEN_LATE_SECONDS, WorkerLoad, choose_worker


def test_the_fewest_connections_come_first() -> None:
    """Of equals, the one that got fewer is first: connections that close at once go round."""
    assert choose_worker([WorkerLoad(1, 3), WorkerLoad(2, 2), WorkerLoad(3, 4)]) == 2
    assert choose_worker([WorkerLoad(1, 2, given=9), WorkerLoad(2, 2, given=8)]) == 2
    assert choose_worker([]) is None


def test_one_that_takes_nothing_is_passed_over() -> None:
    """It is passed over as long as there is another one, however busy."""
    late = WorkerLoad(1, 0, waiting=TAKEN_LATE_SECONDS * 2)
    assert choose_worker([late, WorkerLoad(2, 90)]) == 2
    assert choose_worker([late]) == 1


def test_one_that_is_not_ready_is_the_last_resort() -> None:
    """It would refuse what a late one may still answer."""
    starting = WorkerLoad(1, 0, ready=False)
    assert choose_worker([starting, WorkerLoad(2, 90, waiting=TAKEN_LATE_SECONDS * 2)]) == 2
    assert choose_worker([starting]) == 1
