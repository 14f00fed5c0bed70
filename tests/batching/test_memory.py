"""What is left of a request once it is answered: nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from time import monotonic

import numpy as np
import pytest

from cohort.batching import Batcher, BatchPolicy, Outputs, Ticket
from cohort.errors import InvalidInput
from cohort.scheduling import Scheduler
from cohort.tensors import Arrays
from tests.fakes import ControlledRun, ManualScheduler, RecordedEvents, RecordedReply, assert_empty
from tests.waiting import until


class Payload(np.ndarray[tuple[int, ...], np.dtype[np.float64]]):
    """An array that can be watched: numpy's own take no weak references."""


def payload(value: float = 1.0) -> Payload:
    return np.full((1, 3), value).view(Payload)


def fail_on_negative(inputs: Arrays, control: object = None) -> Outputs:
    x = np.asarray(inputs["x"], float)
    if (x < 0).any():
        raise InvalidInput("negative")
    return [x * 2]


@pytest.fixture(scope="module")
def frozen() -> Iterator[None]:
    """What exists before these tests is left out of each collection, which takes 50 ms with it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def no_collector(frozen: None) -> Iterator[None]:
    """Keep the garbage collector off, so that only reference counts free objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


Ending = Callable[[Batcher, ManualScheduler, list[Ticket]], None]


def answered(batcher: Batcher, scheduler: ManualScheduler, tickets: list[Ticket]) -> None:
    scheduler.run_all(batcher)


def cancelled(batcher: Batcher, scheduler: ManualScheduler, tickets: list[Ticket]) -> None:
    for ticket in tickets:
        ticket.cancel()


def closed(batcher: Batcher, scheduler: ManualScheduler, tickets: list[Ticket]) -> None:
    batcher.close()


async def test_who_left_a_run_hears_of_its_end(no_collector: None) -> None:
    """A caller that left before the run is not notified, since the run is without it."""
    scheduler = ManualScheduler()
    batcher = Batcher(
        fail_on_negative, BatchPolicy(), wake=scheduler.wake, observe=RecordedEvents()
    )
    over: list[str] = []
    queued, running = [batcher.submit({"x": payload()}, lambda *_: None) for _ in range(2)]
    queued.cancel()
    assert not queued.when_over(lambda: over.append("queued"))
    decision = batcher.next_batch(monotonic())
    assert not isinstance(decision, float)
    batch = batcher.take(decision, monotonic())
    running.cancel()
    assert running.when_over(lambda: over.append("running"))
    batch.execute()
    assert not over
    batcher.finish(batch)
    assert over == ["running"]


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 3.0], [1.0, -1.0, 3.0], [-1.0]])
@pytest.mark.parametrize("end", [answered, cancelled, closed])
async def test_inputs_are_released_with_the_reply(
    no_collector: None, values: list[float], end: Ending
) -> None:
    """A caller that keeps its ticket keeps no inputs alive, however the run ends."""
    scheduler = ManualScheduler()
    batcher = Batcher(
        fail_on_negative, BatchPolicy(), wake=scheduler.wake, observe=RecordedEvents()
    )
    watched = []
    tickets = []
    for value in values:
        array = payload(value)
        watched.append(weakref.ref(array))
        tickets.append(batcher.submit({"x": array}, lambda outputs, error: None))
    del array
    assert all(one() is not None for one in watched)
    end(batcher, scheduler, tickets)
    assert [one() for one in watched] == [None] * len(watched)
    assert_empty(batcher)


async def test_threads_hold_no_batch_between_runs(no_collector: None) -> None:
    """A thread that waits for its next batch has released the last one."""
    scheduler = Scheduler(default_slots=1)
    batcher = Batcher(
        fail_on_negative,
        BatchPolicy(),
        wake=scheduler.wake,
        observe=RecordedEvents(),
        seconds_for=lambda rows: 1.0,
    )
    for value in (1.0, -1.0):
        answer = RecordedReply()
        array = payload(value)
        watched = weakref.ref(array)
        batcher.submit({"x": array}, answer)
        del array
        await answer.once()
        answer.calls.clear()  # an error holds its traceback, and that the frames of the run
        # The thread frees it a moment after it handed the batch over; no event reports when.
        await until(lambda: watched() is None)  # noqa: B023
    assert not scheduler._work
    scheduler.close()


async def test_threads_do_not_keep_a_version_that_has_gone(no_collector: None) -> None:
    """An idle thread has let go of the batch it ran last, and so of its batcher and session."""
    scheduler = Scheduler(default_slots=1)
    batcher = Batcher(
        fail_on_negative,
        BatchPolicy(),
        wake=scheduler.wake,
        observe=RecordedEvents(),
        seconds_for=lambda rows: 1.0,
    )
    answer = RecordedReply()
    batcher.submit({"x": payload()}, answer, deadline=monotonic() + 30)
    await answer.once()
    batcher.close()
    watched = weakref.ref(batcher)
    del batcher
    await until(lambda: watched() is None)  # a thread lets go of it, at a low priority
    scheduler.close()


async def test_inputs_cancelled_during_a_run_are_released_after_it(no_collector: None) -> None:
    """They are in use until then."""
    scheduler = Scheduler(default_slots=1)
    with ControlledRun() as run:
        batcher = Batcher(
            run,
            BatchPolicy(),
            wake=scheduler.wake,
            observe=RecordedEvents(),
            seconds_for=lambda rows: 1.0,
        )
        array = payload()
        watched = weakref.ref(array)
        ticket = batcher.submit({"x": array}, RecordedReply())
        stays = RecordedReply()
        batcher.submit({"x": payload()}, stays)
        del array
        await run.started(1)
        ticket.cancel()
        run.feeds.clear()
        run.release()
        await stays.once()
        await until(lambda: watched() is None)
    scheduler.close()


async def test_many_shapes_leave_no_queues() -> None:
    """A thousand shapes have a thousand keys, and no queue remains."""
    scheduler = ManualScheduler()
    policy = BatchPolicy(max_queue_size=2000)
    batcher = Batcher(fail_on_negative, policy, wake=scheduler.wake, observe=RecordedEvents())
    for length in range(1000):
        batcher.submit({"x": np.ones((1, length))}, RecordedReply())
    scheduler.run_all(batcher)
    assert_empty(batcher)
