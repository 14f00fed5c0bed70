"""A short run waits for at most one long run, and no run waits indefinitely."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic
from typing import Any
from unittest import mock

import numpy as np
import pytest

from cohort.batching import Batcher, BatchPolicy, Ran
from cohort.scheduling import (
    EXPRESS_RATIO,
    OVERSTAY_SECONDS,
    Choice,
    QueueHead,
    Scheduler,
    Slots,
    next_run,
    seconds_to_express,
)
from cohort.scheduling.devices import Device
from tests.fakes import ControlledRun, RecordedEvents, RecordedReply
from tests.waiting import iterations, until

LONG, SHORT = 0.5, 0.001
A_DAY, A_MINUTE = 86_400.0, 60.0
"""The same where none may overstay, however slow the machine is."""

ONE = BatchPolicy(max_batch_size=1)
PATIENT = replace(ONE, max_queue_seconds=100 * A_DAY)


def make(
    scheduler: Scheduler,
    run: ControlledRun,
    seconds: float,
    *,
    policy: BatchPolicy = ONE,
    unpredictable: str = "",
) -> Batcher:
    return Batcher(
        run,
        policy,
        wake=scheduler.wake,
        observe=RecordedEvents(),
        make_control=run.make_control,
        seconds_for=lambda rows: seconds * rows,
        unpredictable=unpredictable,
    )


def send(batcher: Batcher, requests: int = 1) -> list[RecordedReply]:
    answers = [RecordedReply() for _ in range(requests)]
    for answer in answers:
        batcher.submit({"x": np.ones((1, 1))}, answer)
    return answers


async def finish(runs: list[ControlledRun], answers: list[RecordedReply]) -> None:
    for run in runs:
        run.release(1000)
    for answer in answers:
        await answer.outputs()


@pytest.mark.parametrize("unpredictable", ["", "it has a loop"])
async def test_a_short_request_waits_for_one_long_run_at_most(
    scheduler: Scheduler, unpredictable: str
) -> None:
    """This holds with many older ones, and with the express slot held or closed to it."""
    with ControlledRun() as slow, ControlledRun() as other, ControlledRun() as short:
        answers = send(make(scheduler, slow, A_DAY, policy=PATIENT), 12)
        await slow.started(2)
        answers += send(make(scheduler, other, A_MINUTE))  # and it does not end
        await other.started(1)
        answers += send(make(scheduler, short, A_MINUTE, unpredictable=unpredictable))
        await iterations()
        assert not short.feeds
        slow.release()
        await short.started(1)
        assert len(slow.feeds) == 2
        await finish([slow, other, short], answers)


async def test_a_run_that_stays_on_the_express_slot_counts_as_a_long_one(
    scheduler: Scheduler,
) -> None:
    """When a long one has ended, short ones pass the next as they did before."""
    with ControlledRun() as slow, ControlledRun() as other, ControlledRun() as short:
        held = send(make(scheduler, slow, LONG), 12)
        await slow.started(2)
        held += send(make(scheduler, other, SHORT))
        await other.started(1)
        since = monotonic()
        limit = max(OVERSTAY_SECONDS, SHORT * EXPRESS_RATIO)
        await until(lambda: monotonic() - since > limit)
        slow.release()
        await until(lambda: any(answer.calls for answer in held))
        await iterations()
        assert len(slow.feeds) == 2  # its slot is the other's
        batcher = make(scheduler, short, SHORT)
        for number in range(1, 4):
            (answer,) = send(batcher)
            await short.started(number)
            short.release()
            await answer.outputs()
        await finish([slow, other, short], held)


async def test_a_run_that_goes_on_is_long_whatever_was_expected(scheduler: Scheduler) -> None:
    """A wrong profile delays others for no longer than a few of their runs."""
    with ControlledRun() as slow, ControlledRun() as short:
        answers = send(make(scheduler, slow, SHORT), 12)
        await slow.started(2)
        answers += send(make(scheduler, short, SHORT))
        await short.started(1)
        await finish([slow, short], answers)


async def test_a_crowd_of_short_requests_does_not_close_the_express_slot_to_itself(
    scheduler: Scheduler,
) -> None:
    """Together they would take too long for it, so that fewer of them run at once."""
    with ControlledRun() as slow, ControlledRun() as short:
        answers = send(make(scheduler, slow, LONG), 12)
        await slow.started(2)
        crowd = make(scheduler, short, LONG / 16, policy=BatchPolicy(max_batch_size=16))
        answers += send(crowd, 16)
        await short.started(1)
        (rows,) = {len(feed) for feed in short.feeds[0].values()}
        assert rows == 4
        await finish([slow, short], answers)


def test_what_overtakes_gets_a_quarter_of_the_time() -> None:
    """Runs that overtake may use a quarter of the overtaken run's time; an excess is owed."""

    def batch(seconds: float) -> Any:
        ran = Ran(1, 1, seconds, ())
        return mock.Mock(runs=[ran], device_lost="", expected=seconds, started=0.0)

    device = Device("cpu", 1, lambda batch: None)
    short, long_for_a_short_one = batch(0.1), batch(1.0)
    device.start(batch(LONG), likely=LONG)
    assert device.free_slots(0.0).credit == pytest.approx(LONG / 4)
    device.start(batch(SHORT), likely=SHORT)
    assert device.free_slots(0.0).credit == pytest.approx(LONG / 4)
    device.start(short, likely=LONG / 4, overtakes=True)
    assert device.free_slots(0.0).credit == pytest.approx(0.0)
    device.end(short)
    assert device.free_slots(0.0).credit == pytest.approx(LONG / 4 - 0.1)
    device.start(long_for_a_short_one, likely=0.0, overtakes=True)
    device.end(long_for_a_short_one)
    owed = LONG / 4 - 0.1 - 1.0
    assert device.free_slots(0.0).credit == pytest.approx(owed)
    device.start(batch(LONG), likely=LONG)
    assert device.free_slots(0.0).credit == pytest.approx(owed + LONG / 4)
    device.close()


def head(place: float, likely: float, *, shadow: bool = False) -> QueueHead:
    return QueueHead(place, float("inf"), "cpu", shadow, likely)


@pytest.mark.parametrize(
    ("heads", "credit", "expected"),
    [
        ([head(1, LONG), head(2, SHORT)], 1.0, Choice(1, express=False, overtakes=True)),
        ([head(1, LONG), head(2, SHORT)], 0.0, Choice(0, express=False)),
        ([head(1, LONG), head(2, LONG / 3)], LONG, Choice(0, express=False)),
        ([head(1, LONG), head(2, SHORT, shadow=True)], 1.0, Choice(0, express=False)),
        (
            [head(1, LONG), head(3, SHORT), head(2, SHORT)],
            1.0,
            Choice(2, express=False, overtakes=True),
        ),
    ],
    ids=["much shorter", "no credit", "not short enough", "a shadow", "the oldest short one"],
)
def test_a_much_shorter_run_overtakes(
    heads: list[QueueHead], credit: float, expected: Choice
) -> None:
    """It overtakes while the device has credit for it."""
    slots = Slots(1, express=True, running=[LONG], credit=credit)
    assert next_run(heads, {"cpu": slots}) == expected


@pytest.mark.parametrize(
    ("seconds", "running", "express", "expected"),
    [
        (1.0, [3.0, 10.0], True, 1.0),
        (1.0, [3.0, 10.0], False, float("inf")),
        (float("inf"), [3.0], True, float("inf")),
    ],
)
def test_when_the_express_slot_opens(
    seconds: float, running: list[float], express: bool, expected: float
) -> None:
    """It opens once the shortest run in flight lasts four times as long; never if it is taken."""
    slots = Slots(0, express=express, running=running)
    assert seconds_to_express([QueueHead(1, seconds, "cpu", False)], {"cpu": slots}) == expected
