"""Faults of devices, their runs and their threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest

from cohort.batching import Batcher, BatchPolicy, Outputs
from cohort.errors import InferenceFailed
from cohort.scheduling import Scheduler
from cohort.tensors import Arrays
from tests.fakes import ControlledRun, RecordedEvents, RecordedReply, double
from tests.waiting import until

NOT_AT_ALL, FOR_EVER = -1.0, 1e9


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler({"cpu": 2})
    yield scheduler
    scheduler.close()


def make(scheduler: Scheduler, run: object, name: str = "model m, version 1") -> Batcher:
    return Batcher(
        run,  # type: ignore[arg-type]
        BatchPolicy(max_batch_size=1),
        wake=scheduler.wake,
        observe=RecordedEvents(),
        seconds_for=lambda rows: 1.0,
        name=name,
    )


def row() -> Arrays:
    return {"x": np.ones((1, 1))}


async def test_a_run_that_nobody_waits_for_and_that_goes_on_is_stuck(scheduler: Scheduler) -> None:
    """The fault names its model; once the run has ended there is no fault."""
    with ControlledRun() as run:
        batcher = make(scheduler, run)
        ticket = batcher.submit(row(), RecordedReply())
        await run.started(1)
        assert scheduler.faults(NOT_AT_ALL) == []  # a caller waits for it
        ticket.cancel()
        assert scheduler.faults(FOR_EVER) == []  # it has time to stop
        (fault,) = scheduler.faults(NOT_AT_ALL)
        assert fault.kind == "run_stuck"
        assert not fault.lasting
        assert "model m" in str(fault)
        assert "model m" not in fault.text
        run.release()
        await until(lambda: batcher.idle)
        assert scheduler.faults(NOT_AT_ALL) == []


async def test_a_device_whose_every_slot_is_stuck_needs_a_restart(scheduler: Scheduler) -> None:
    """One stuck run is its model's fault; if all slots are stuck, nothing else runs there."""
    with ControlledRun() as run:
        batcher = make(scheduler, run)
        tickets = [batcher.submit(row(), RecordedReply()) for _ in range(2)]
        await run.started(2)
        for ticket in tickets:
            ticket.cancel()
        assert [one.lasting for one in scheduler.faults(NOT_AT_ALL)] == [True, True]
        run.release(2)
        await until(lambda: batcher.idle)


async def test_a_lost_device_stays_so_until_a_run_succeeds(scheduler: Scheduler) -> None:
    """The fault has the driver's message; only a restart is known to fix it."""
    fails = True

    def run(inputs: Arrays, control: object) -> Outputs:
        if fails:
            raise InferenceFailed("an illegal access", blames_input=False, device_lost=True)
        return double(inputs)

    batcher = make(scheduler, run)
    answer = RecordedReply()
    batcher.submit(row(), answer)
    _, error = await answer.once()
    assert isinstance(error, InferenceFailed)
    (fault,) = scheduler.faults(FOR_EVER)
    assert (fault.kind, fault.lasting) == ("device_lost", True)
    assert fault.text == "cpu failed: an illegal access"
    fails = False
    answer = RecordedReply()
    batcher.submit(row(), answer)
    await answer.outputs()
    assert scheduler.faults(FOR_EVER) == []


async def test_a_thread_that_the_system_refuses_is_asked_for_again(scheduler: Scheduler) -> None:
    """The request waits until then, and the process gives the reason."""
    refused = RuntimeError("can't start new thread")
    answer = RecordedReply()
    with mock.patch.object(threading.Thread, "start", side_effect=refused):
        batcher = make(scheduler, double)
        batcher.submit(row(), answer)
        await until(lambda: batcher.running)
        (fault,) = scheduler.faults(FOR_EVER)
        assert fault.kind == "thread_missing"
    assert scheduler.faults(FOR_EVER) == []
    await answer.outputs()


async def test_a_thread_outlives_whatever_a_run_raises(scheduler: Scheduler) -> None:
    """This includes a BaseException: the request fails, and the next one is answered."""

    def run(inputs: Arrays, control: object) -> Outputs:
        raise SystemExit(1)

    answers = [RecordedReply() for _ in range(4)]
    for answer in answers:
        make(scheduler, run).submit(row(), answer)
        _, error = await answer.once()
        assert isinstance(error, InferenceFailed)
