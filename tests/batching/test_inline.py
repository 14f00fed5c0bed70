"""Runs on the event loop that take far longer than expected."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic, thread_time
from typing import Any
from unittest import mock

import numpy as np
import pytest

from cohort.batching import (
    Batcher,
    BatchPolicy,
    InlineRun,
    InlineStall,
    LeftLoop,
    Outputs,
    Ran,
    Watchdog,
)
from cohort.batching.watchdog import STALL_SECONDS
from cohort.errors import InferenceFailed
from cohort.scheduling import Scheduler
from cohort.tensors import Arrays
from tests.fakes import ManualScheduler, RecordedEvents, RecordedReply, double
from tests.waiting import PATIENCE, until

ONE = {"x": np.ones((1, 2), "f4")}


class Control:
    """Stops the runs that wait for it."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.stopped.set()


class EndlessOnLoop:
    """A model that ends on any thread except the one that made it."""

    def __init__(self) -> None:
        self._loop = threading.current_thread()
        self.ran: list[bool] = []  # True if on the loop

    def __call__(self, inputs: Arrays, control: Control | None) -> Outputs:
        on_loop = threading.current_thread() is self._loop
        self.ran.append(on_loop)
        if on_loop:
            assert control is not None
            assert control.stopped.wait(PATIENCE)
            raise InferenceFailed("the run was stopped", blames_input=False)
        return double(inputs)


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    watchdog = Watchdog(Control, limit=0.01)
    watchdog.start()
    yield watchdog
    watchdog.close()


def make(
    model: EndlessOnLoop, watchdog: Watchdog, seen: RecordedEvents, scheduler: Scheduler
) -> Batcher:
    return Batcher(
        model,
        BatchPolicy(),
        wake=scheduler.wake,
        observe=seen,
        make_control=Control,
        seconds_for=lambda work: 1e-5,
        inline_run=watchdog.inline,
    )


async def test_a_stopped_run_is_answered_from_a_thread(watchdog: Watchdog) -> None:
    """A run that does not end on the loop is stopped there, and its caller still gets outputs."""
    model, seen, scheduler = EndlessOnLoop(), RecordedEvents(), Scheduler()
    batcher = make(model, watchdog, seen, scheduler)
    reply, beside = RecordedReply(), RecordedReply()
    batcher.submit(ONE, reply)
    batcher.submit(ONE, beside)
    np.testing.assert_array_equal((await reply.outputs())[0], double(ONE)[0])
    await beside.outputs()
    assert model.ran[0]
    stalls = [event for event in seen.events if isinstance(event, InlineStall)]
    assert [stall.stopped for stall in stalls] == [True]
    runs = [event for event in seen.events if isinstance(event, Ran)]
    assert sum(requests for ran in runs for _, requests in ran.waits) == 2
    await until(lambda: batcher.idle)
    scheduler.close()


class StoppedAtOnce(EndlessOnLoop):
    """A model whose run on the loop is stopped before it has taken any time."""

    watchdog: Watchdog

    def __call__(self, inputs: Arrays, control: Control | None) -> Outputs:
        if threading.current_thread() is self._loop:
            self.watchdog.stop_run(self.watchdog.inline.since)
        return super().__call__(inputs, control)


async def test_a_run_that_is_stopped_as_it_begins_is_answered_from_a_thread() -> None:
    """This happens if the machine is busy between the decision and the run."""
    model, seen, scheduler = StoppedAtOnce(), RecordedEvents(), Scheduler()
    model.watchdog = Watchdog(Control)
    batcher = make(model, model.watchdog, seen, scheduler)
    reply = RecordedReply()
    batcher.submit(ONE, reply)
    np.testing.assert_array_equal((await reply.outputs())[0], double(ONE)[0])
    assert model.ran[0]
    await until(lambda: batcher.idle)
    scheduler.close()


async def test_a_stopped_coalesced_run_is_to_be_submitted(watchdog: Watchdog) -> None:
    """No caller was answered, and no run is on the loop until a run was timed again."""
    model, seen, scheduler = EndlessOnLoop(), RecordedEvents(), Scheduler()
    batcher = make(model, watchdog, seen, scheduler)
    assert batcher.run_now(ONE, monotonic(), 1, 1) is None
    assert not batcher.inline.allowed
    assert batcher.run_now(ONE, monotonic(), 1, 1) is None
    assert model.ran.count(True) == 1
    await until(lambda: batcher.inline.allowed)  # the thread's run was short
    scheduler.close()


def test_only_the_run_that_is_too_long_is_stopped() -> None:
    """One that ends while it is being stopped leaves the next alone, which can be stopped later."""
    watchdog = Watchdog(Control)
    inline = watchdog.inline
    first = inline.running = inline.control
    inline.since = 5.0
    watchdog.stop_run(4.0)  # it ended, and another began with the same control
    assert not first.stopped.is_set()
    assert inline.control is not first
    watchdog.stop_run(5.0)
    assert first.stopped.is_set()
    assert not inline.control.stopped.is_set()


@pytest.mark.parametrize(("slow", "allowed"), [(2, True), (3, False)])
async def test_a_run_is_slow_only_if_it_is_so_again_and_again(slow: int, allowed: bool) -> None:
    """One of three that is not shows that something else took the time."""
    runs = 0

    def run(inputs: Arrays, control: object) -> Outputs:
        nonlocal runs
        runs += 1
        end = thread_time() + (0.005 if runs <= slow else 0.0)
        while thread_time() < end:
            pass
        return double(inputs)

    seen = RecordedEvents()
    batcher = Batcher(run, BatchPolicy(), wake=ManualScheduler().wake, observe=seen)
    batcher.inline.leave_for_check(ONE, 0.02, stopped=False)
    await until(lambda: batcher.inline.allowed or batcher.inline.unpredictable)
    assert batcher.inline.allowed is allowed
    assert runs == 3


async def test_a_run_that_is_stopped_while_it_is_timed_is_slow() -> None:
    """A thread times the run, stops it at its limit, and the version leaves the loop."""

    def run(inputs: Arrays, control: Any) -> Outputs:
        while not control.stopped.is_set():
            pass
        raise InferenceFailed("stopped", blames_input=False)

    batcher = Batcher(
        run,
        BatchPolicy(),
        wake=ManualScheduler().wake,
        observe=RecordedEvents(),
        make_control=Control,
    )
    with mock.patch("cohort.batching.inline.CHECK_SECONDS", 0.05):
        batcher.inline.leave_for_check(ONE, 0.02, stopped=False)
    await until(lambda: batcher.inline.unpredictable)
    assert not batcher.inline.allowed


async def test_the_second_run_decides() -> None:
    """Short, it brings runs back to the loop; long, it ends them there, with the reason."""
    seen = RecordedEvents()
    batcher = Batcher(double, BatchPolicy(), wake=ManualScheduler().wake, observe=seen)
    batcher.inline.leave_for_check(ONE, 0.02, stopped=False)
    assert not batcher.inline.allowed
    await until(lambda: batcher.inline.allowed)
    assert batcher.inline.unpredictable == ""
    batcher.inline.allowed = False
    batcher.inline.judge(0.02)
    assert not batcher.inline.allowed
    reason = "a run on the event loop took 20 ms, more than 2 ms"
    assert batcher.inline.unpredictable == reason
    assert seen.events == [InlineStall(0.02, stopped=False), LeftLoop(reason)]


def test_unpredictable_runs_never_execute_on_the_loop() -> None:
    """Runs on another device are not allowed on the loop either."""

    def allowed(device: str, unpredictable: str) -> bool:
        batcher = Batcher(
            double,
            BatchPolicy(),
            wake=ManualScheduler().wake,
            observe=RecordedEvents(),
            device=device,
            unpredictable=unpredictable,
            inline_run=InlineRun(),
        )
        return batcher.inline.allowed

    assert allowed("cpu", "")
    assert not allowed("cpu", "the run time of Loop depends on input values")
    assert not allowed("cuda:0", "")


async def test_without_a_thread_to_check_on_a_slow_run_leaves_the_loop(
    watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the system refuses a thread, the run leaves the loop, and its waiters are unharmed."""
    seen, scheduler = RecordedEvents(), Scheduler()
    batcher = make(EndlessOnLoop(), watchdog, seen, scheduler)
    with monkeypatch.context() as refusing:
        refusing.setattr(threading.Thread, "start", mock.Mock(side_effect=RuntimeError))
        batcher.inline.leave_for_check(ONE, STALL_SECONDS * 2, stopped=False)
    assert not batcher.inline.allowed
    assert "a run on the event loop took" in batcher.inline.unpredictable
    scheduler.close()
