"""A side queue follows its version, whichever engine that has."""

from __future__ import annotations

import pytest

from cohort.errors import CohortError, NotReady, Overloaded
from cohort.registry import State
from cohort.rollouts.side_queue import SideQueue
from cohort.tensors import Arrays
from tests.rollouts.engines import LiveRig, inputs, make_engine


def rig() -> LiveRig:
    return LiveRig("variants: {a: {version: 1, weight: 1}}")


def queue_of(rig: LiveRig, *, model: str = "m", version: int = 2) -> SideQueue:
    return SideQueue(rig.catalog, model, version, max_requests=3, shadow=True)


def nothing(outputs: Arrays | None, error: CohortError | None) -> None:
    """A reply that does nothing."""


@pytest.mark.parametrize(("model", "version"), [("other", 2), ("m", 9)])
def test_a_version_that_does_not_exist_is_not_ready(model: str, version: int) -> None:
    """It may come yet: the copy is refused, and nothing else happens."""
    with pytest.raises(NotReady, match=f"version {version} is not ready"):
        queue_of(rig(), model=model, version=version).submit(inputs(), nothing)


def test_a_version_that_is_loading_is_not_ready() -> None:
    """It does not matter if it was ready before."""
    here = rig()
    queue = queue_of(here)
    queue.submit(inputs(), nothing)
    here.states[2] = State.LOADING
    with pytest.raises(NotReady):
        queue.submit(inputs(), nothing)
    assert here.engines[2].leases.count == 1


def test_a_reloaded_version_gets_a_new_side_queue() -> None:
    """The one on the engine before is closed, and its copies are cancelled."""
    here = rig()
    queue = queue_of(here)
    before, after = here.engines[2], make_engine()
    queue.submit(inputs(), nothing)
    queue.submit(inputs(), nothing)
    assert len(before.side_queues) == 1
    here.engines = {**here.engines, 2: after}
    queue.submit(inputs(), nothing)
    assert before.side_queues[-1].closed
    assert (before.side_queues[-1].waiting, after.side_queues[-1].waiting) == (0, 1)
    assert not after.side_queues[-1].closed
    assert (before.leases.count, after.leases.count) == (0, 1)


def test_a_closed_side_queue_can_be_opened_again() -> None:
    """A cleared rollback opens it."""
    here = rig()
    queue = queue_of(here)
    queue.close()
    queue.submit(inputs(), nothing)
    queue.close()
    assert here.queue(2).closed
    queue.submit(inputs(), nothing)
    assert len(here.engines[2].side_queues) == 2


def test_copies_may_take_just_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is larger than that waits alone."""
    size = sum(array.nbytes for array in inputs().values())
    monkeypatch.setattr("cohort.rollouts.side_queue.MAX_WAITING_BYTES", 2 * size)
    queue = queue_of(rig())
    for _ in range(2):
        queue.submit(inputs(), nothing)
    with pytest.raises(Overloaded, match="over its memory limit"):
        queue.submit(inputs(), nothing)
