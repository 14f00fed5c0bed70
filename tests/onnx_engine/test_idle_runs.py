"""Runs of a measurement: in idle moments, one at a time, and never in anybody's way for long."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from cohort.batching import Batcher, BatchPolicy, Outputs
from cohort.errors import InferenceFailed
from cohort.onnx_engine import idle_runs
from cohort.onnx_engine.idle_runs import IdleRuns, RunSlots, Stopped
from cohort.profiling import OutOfTime
from cohort.scheduling import Scheduler
from cohort.tensors import Arrays
from tests.fakes import ControlledRun, RecordedEvents, RecordedReply
from tests.waiting import PATIENCE, until

FEEDS: Arrays = {"x": np.ones((1, 2), np.float32)}


class Rig:
    """A scheduler of one slot, a model that callers use, and one that is measured."""

    def __init__(self, *, limit: float = PATIENCE) -> None:
        loop = asyncio.get_running_loop()
        self.scheduler = Scheduler({"cpu": 1})
        self.served, self.measured = ControlledRun(), ControlledRun()
        self.closed = False
        slots = RunSlots(loop, self.scheduler.wake, lambda: self.scheduler.started)
        self.runs = IdleRuns(slots, limit=limit, closed=lambda: self.closed)
        self.batcher = Batcher(
            self.served,
            BatchPolicy(max_batch_size=1),
            wake=self.scheduler.wake,
            observe=RecordedEvents(),
            seconds_for=lambda work: 1.0,
        )
        self.device = "cpu"

    # the used part of the measured session

    def control(self) -> object:
        return self.measured.make_control()

    def run(self, feeds: Arrays, control: object) -> Outputs:
        return self.measured(feeds, control)

    def measure(self) -> asyncio.Task[Outputs]:
        """Run once, on a thread that waits for it."""
        session: Any = self
        return asyncio.create_task(asyncio.to_thread(self.runs.of(session), FEEDS))

    def ask(self) -> RecordedReply:
        """Send a caller's request."""
        reply = RecordedReply()
        self.batcher.submit(FEEDS, reply)
        return reply


@asynccontextmanager
async def rig(**options: Any) -> AsyncIterator[Rig]:
    made = Rig(**options)
    with made.served, made.measured:
        yield made
    made.scheduler.close()


async def test_a_run_begins_once_no_request_runs_or_waits() -> None:
    """It returns the model's outputs; its seconds count, the wait does not."""
    async with rig() as it:
        first, second = it.ask(), it.ask()
        await it.served.started(1)
        measuring = it.measure()
        it.served.release()
        await it.served.started(2)
        assert not it.measured.feeds
        it.served.release()
        await it.measured.started(1)
        assert (len(first.calls), len(second.calls)) == (1, 1)
        it.measured.release()
        (output,) = await measuring
        np.testing.assert_array_equal(output, np.full((1, 2), 2))
        assert it.runs.clock() > 0
        assert not it.runs.disturbed


async def test_what_a_run_was_given_is_freed_with_it() -> None:
    """It does not wait for the collector, which runs rarely: a measurement has large inputs."""
    async with rig() as it:
        session: Any = it
        given = np.ones((1, 2), np.float32)
        alive = weakref.ref(given)
        measuring = asyncio.create_task(asyncio.to_thread(it.runs.of(session), {"x": given}))
        del given
        gc.disable()
        try:
            await it.measured.started(1)
            it.measured.release()
            await measuring
            it.measured.feeds.clear()
            await until(lambda: alive() is None)
        finally:
            gc.enable()


async def test_a_request_waits_for_no_more_than_the_run_in_progress() -> None:
    """Measurements give way between two runs, however many there are."""
    async with rig() as it:
        measuring = [it.measure(), it.measure()]
        await it.measured.started(1)
        asked = it.ask()
        it.measured.release()
        await it.served.started(1)
        assert len(it.measured.feeds) == 1
        it.served.release()
        await asked.outputs()
        it.measured.release(10)
        await asyncio.gather(*measuring)


async def test_a_disturbed_run_does_not_count() -> None:
    """A run that began during it used the same caches and memory."""
    async with rig() as it:
        measuring = it.measure()
        await it.measured.started(1)
        it.scheduler.started += 1  # on the express slot, say
        it.measured.release()
        await it.measured.started(2)
        it.measured.release()
        await measuring
        assert not it.runs.disturbed


async def test_a_server_that_is_never_idle_is_measured_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After some patience a run is queued as a request is, and what it shows is not final."""
    monkeypatch.setattr(idle_runs, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(idle_runs, "CHECK_RUN_SECONDS", 0.01)
    async with rig() as it:
        for _ in range(3):
            it.ask()
        await it.served.started(1)
        measuring, released = it.measure(), 0

        def serve() -> bool:
            """There is always a request that waits."""
            nonlocal released
            if it.batcher.waiting < 3:
                it.ask()
            elif len(it.served.feeds) > released:
                it.served.release()
                released += 1
            return bool(it.measured.feeds)

        await until(serve)
        it.measured.release(10)
        it.served.release(1000)
        await measuring
        assert it.runs.disturbed


@pytest.mark.parametrize("waiting", [True, False])
async def test_nobody_waits_for_the_measurement_of_a_closed_version(
    monkeypatch: pytest.MonkeyPatch, waiting: bool
) -> None:
    """A waiting run is dropped, and one in progress is stopped."""
    monkeypatch.setattr(idle_runs, "CHECK_RUN_SECONDS", 0.01)
    async with rig() as it:
        if waiting:
            it.ask()
            await it.served.started(1)
        measuring = it.measure()
        if not waiting:
            await it.measured.started(1)
        it.closed = True
        with pytest.raises(Stopped):
            await measuring
        await until(lambda: waiting or it.measured.controls[-1].stopped)


async def test_a_run_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped as a request's run would be, and the measurement ends."""
    monkeypatch.setattr(idle_runs, "CHECK_RUN_SECONDS", 0.01)
    async with rig(limit=0.05) as it:
        measuring = it.measure()
        await it.measured.started(1)
        with pytest.raises(OutOfTime, match=r"a run took longer than 0\.05 s"):
            await measuring
        await until(lambda: it.measured.controls[-1].stopped)


async def test_a_measurement_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends however often its runs are disturbed."""
    monkeypatch.setattr(idle_runs, "MAX_SECONDS", -1.0)
    async with rig() as it:
        with pytest.raises(OutOfTime, match="it took longer than"):
            await it.measure()


async def test_what_a_run_raises_is_raised() -> None:
    """If the model refuses, its error is the result."""

    def refuse(inputs: Arrays) -> Outputs:
        raise InferenceFailed("no")

    async with rig() as it:
        it.measured = ControlledRun(refuse)
        it.measured.release(10)
        with pytest.raises(InferenceFailed, match="no"):
            await it.measure()
