"""The scheduler's looks: the queues it reads, when, on which thread and how often."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic
from unittest import mock

import numpy as np
import pytest

from cohort.batching import Batcher, BatchPolicy, Outputs
from cohort.scheduling import INLINE_SECONDS, MAX_READING_SECONDS, Scheduler
from cohort.session.thread_priority import NICENESS
from cohort.tensors import Arrays
from tests.fakes import ControlledRun, RecordedEvents, RecordedReply, double
from tests.waiting import PATIENCE, iterations, until, wait_until

TINY, SHORT, LONG = 1e-5, 0.01, 1.0
CLOCKS = ("scheduling.scheduler", "batching.batch", "batching.batcher", "batching.inline")
"""Modules that measure how long runs take: one whose thread had to wait is not made on the loop."""
Run = Callable[[Arrays, object], Outputs]


def make(
    scheduler: Scheduler,
    run: Run,
    seconds: float,
    *,
    shadow: bool = False,
    size: int = 4,
    delay_ms: float = 0.0,
    exclusively: Run | None = None,
) -> Batcher:
    return Batcher(
        run,
        BatchPolicy(max_batch_size=size, max_queue_delay_ms=delay_ms),
        wake=scheduler.wake,
        observe=RecordedEvents(),
        seconds_for=lambda work: seconds,
        shadow=shadow,
        run_exclusively=exclusively,
    )


def send(batcher: Batcher, requests: int = 1) -> list[RecordedReply]:
    answers = [RecordedReply() for _ in range(requests)]
    for answer in answers:
        batcher.submit({"x": np.ones((1, 1))}, answer)
    return answers


@contextmanager
def clock(read: Callable[[], float]) -> Iterator[None]:
    """Replace the clock by `read`."""
    with ExitStack() as patches:
        for module in CLOCKS:
            patches.enter_context(mock.patch(f"cohort.{module}.monotonic", side_effect=read))
        yield


async def all_of(answers: list[RecordedReply]) -> None:
    for answer in answers:
        await answer.outputs()


class Noted:
    """A run on the loop that notes whose it was."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def run(self, name: str) -> Run:
        def run(inputs: Arrays, control: object) -> Outputs:
            self.order.append(name)
            return double(inputs)

        return run


# --- Slots and threads


async def test_a_device_has_the_slots_it_was_given() -> None:
    """One that is not named has two."""
    scheduler = Scheduler({"cpu": 1})
    for batcher_slots, device in ((1, "cpu"), (2, "cuda")):
        with ControlledRun() as run:
            batcher = Batcher(
                run,
                BatchPolicy().unbatched(),
                wake=scheduler.wake,
                observe=RecordedEvents(),
                seconds_for=lambda work: LONG,
                device=device,
            )
            answers = send(batcher, 5)
            await run.started(batcher_slots)
            run.release(5)
            await all_of(answers)
            assert run.most == batcher_slots
    scheduler.close()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities on Linux only")
async def test_short_runs_have_the_loops_priority_and_others_give_way(scheduler: Scheduler) -> None:
    """A run in the express slot ends before its priority matters."""
    niceness: dict[str, int] = {}

    def noting(name: str) -> Callable[[Arrays], Outputs]:
        def run(inputs: Arrays) -> Outputs:
            niceness[name] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            return double(inputs)

        return run

    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    with ControlledRun(noting("long")) as long, ControlledRun(noting("short")) as short:
        answers = send(make(scheduler, long, LONG), 8)
        await long.started(2)
        answers += send(make(scheduler, short, SHORT))
        await short.started(1)
        short.release()
        long.release(2)
        await all_of(answers)
    assert niceness == {"long": NICENESS, "short": own}


async def test_one_thread_does_all_short_runs_and_ends_with_the_others() -> None:
    """The express slot has one; closing also ends it."""
    scheduler, before = Scheduler(default_slots=1), set(threading.enumerate())
    with ControlledRun() as long, ControlledRun() as short:
        answers = send(make(scheduler, long, LONG))
        await long.started(1)
        quick = make(scheduler, short, SHORT)
        for count in (1, 2):
            once = send(quick)
            await short.started(count)
            short.release()
            await all_of(once)
        started = set(threading.enumerate()) - before
        threads = [one for one in started if one.name == "cohort-run"]
        assert len(threads) == 2
        long.release()
        await all_of(answers)
        scheduler.close()
        for thread in threads:
            await asyncio.to_thread(thread.join, PATIENCE)
            assert not thread.is_alive()


async def test_a_run_with_more_to_come_is_not_exclusive(scheduler: Scheduler) -> None:
    """The rest of its queue runs at the same time; the last of all may have every core."""
    with ControlledRun() as run, ControlledRun() as exclusive:
        batcher = make(scheduler, run, LONG, exclusively=exclusive)
        answers = send(batcher, 5)
        await run.started(2)
        run.release(2)
        await all_of(answers)
        answers = send(batcher, 4)
        await exclusive.started(1)
        exclusive.release()
        await all_of(answers)
        assert (len(run.feeds), len(exclusive.feeds)) == (2, 1)


async def test_many_runs_that_end_at_once_are_collected_together(scheduler: Scheduler) -> None:
    """The loop wakes up once for all runs that threads have finished until then."""
    collect, collected = scheduler._collect, 0

    def counted() -> None:
        nonlocal collected
        collected += 1
        collect()

    scheduler._collect = counted  # type: ignore[method-assign]
    with ControlledRun() as run:
        answers = send(make(scheduler, run, LONG), 8)
        await run.started(2)
        run.release(2)
        wait_until(lambda: len(scheduler._done) == 2)  # without the loop, which does not continue
        await all_of(answers)
    assert collected == 1


# --- On the loop


async def test_a_shadow_runs_on_the_loop_after_all_others(scheduler: Scheduler) -> None:
    """It runs last even if it came first."""
    noted = Noted()
    shadow = make(scheduler, noted.run("shadow"), TINY, shadow=True)
    answers = send(shadow)
    answers += send(make(scheduler, noted.run("one"), TINY))
    answers += send(make(scheduler, noted.run("other"), TINY))
    await all_of(answers)
    assert noted.order == ["one", "other", "shadow"]


async def test_a_shadow_waits_on_the_loop_while_others_wait(scheduler: Scheduler) -> None:
    """Requests that wait for a slot come first."""
    noted = Noted()
    with ControlledRun() as run:
        answers = send(make(scheduler, run, LONG), 12)  # one batch of three has to wait
        await run.started(2)
        answers += send(make(scheduler, noted.run("shadow"), TINY, shadow=True))
        await iterations()
        assert noted.order == []
        run.release(1)
        await run.started(3)
        await until(lambda: noted.order == ["shadow"])
        run.release(2)
        await all_of(answers)


async def test_runs_on_the_loop_go_on_for_a_moment(scheduler: Scheduler) -> None:
    """Batch after batch while time is left, and then the loop has its turn."""
    noted = Noted()
    batcher = make(scheduler, noted.run("tiny"), TINY, size=1)
    now = monotonic()
    with clock(lambda: now):
        answers = send(batcher, 5)
        scheduler._collect_and_dispatch()
        assert len(noted.order) == 5
        answers += send(batcher, 5)

        def run(inputs: Arrays, control: object) -> Outputs:
            nonlocal now
            now += INLINE_SECONDS * 0.6
            return double(inputs)

        slower = make(scheduler, run, TINY, size=1)
        answers += send(slower, 5)
        scheduler._collect_and_dispatch()
        assert (batcher.waiting, slower.waiting) == (0, 3)
    await all_of(answers)


@pytest.mark.parametrize(
    ("away", "runs"),
    [(0.0, 2), (INLINE_SECONDS * 5.8, 10), (60.0, MAX_READING_SECONDS / INLINE_SECONDS / 0.6)],
)
async def test_runs_on_the_loop_go_on_for_as_long_as_it_was_away(
    scheduler: Scheduler, away: float, runs: float
) -> None:
    """They do so after its sockets, within limits, so that a crowd is served, not only read."""
    now = monotonic()

    def run(inputs: Arrays, control: object) -> Outputs:
        nonlocal now
        now += INLINE_SECONDS * 0.6
        return double(inputs)

    with clock(lambda: now):
        batcher = make(scheduler, run, TINY, size=1)
        answers = send(batcher, 200)
        scheduler._collect_and_dispatch()
        assert batcher.waiting == 198
        now += away
        scheduler._collect_and_dispatch()
        assert 198 - batcher.waiting == math.ceil(runs)
        answers[-1].calls.clear()
        batcher.close()
    await all_of(answers[:2])


async def test_a_run_as_long_as_the_loop_may_be_held_is_made_on_it(scheduler: Scheduler) -> None:
    """A run that takes longer is not."""
    threads: list[threading.Thread] = []

    def run(inputs: Arrays, control: object) -> Outputs:
        threads.append(threading.current_thread())
        return double(inputs)

    await all_of(send(make(scheduler, run, INLINE_SECONDS)))
    assert threads == [threading.current_thread()]
    await all_of(send(make(scheduler, run, INLINE_SECONDS * 1.01)))
    assert threads[1] is not threading.current_thread()


async def test_a_longer_batch_behind_a_short_one_leaves_the_loop(scheduler: Scheduler) -> None:
    """Each batch is judged by its own expected time."""
    on_loop: list[bool] = []

    def run(inputs: Arrays, control: object) -> Outputs:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return double(inputs)

    batcher = Batcher(
        run,
        BatchPolicy(max_batch_size=4),
        wake=scheduler.wake,
        observe=RecordedEvents(),
        seconds_for=lambda work: TINY if work < 2 else LONG,
    )
    answers = send(batcher)
    for _ in range(3):
        answers.append(RecordedReply())
        batcher.submit({"x": np.ones((1, 2))}, answers[-1])
    with mock.patch("cohort.scheduling.scheduler.monotonic", return_value=monotonic()):
        await all_of(answers)
    assert on_loop == [True, False]


# --- Gathering, and looking again


async def test_many_requests_are_one_look(scheduler: Scheduler) -> None:
    """This holds for all requests of one iteration, for any version."""
    look = scheduler._collect_and_dispatch
    with mock.patch.object(scheduler, "_collect_and_dispatch", wraps=look) as looks:
        answers = send(make(scheduler, Noted().run("one"), TINY), 3)
        answers += send(make(scheduler, Noted().run("other"), TINY), 3)
        scheduler.gather(lambda: None)
        await all_of(answers)
        assert looks.call_count == 1
        await all_of(send(make(scheduler, Noted().run("one"), TINY)))
        assert looks.call_count == 2


async def test_what_is_gathered_is_collected_before_the_look(scheduler: Scheduler) -> None:
    """Its submissions run with earlier ones; it is called once for each time it was requested."""
    noted = Noted()
    batcher = make(scheduler, noted.run("tiny"), TINY)
    answers = send(batcher)
    scheduler.gather(lambda: answers.extend(send(batcher)))
    await iterations()
    await all_of(answers)
    assert (len(answers), noted.order) == (2, ["tiny"])


async def test_gathering_alone_wakes_the_scheduler(scheduler: Scheduler) -> None:
    """It is called once, even if it fails: other queues are still read."""
    gathered: list[str] = []

    def fail() -> None:
        gathered.append("failed")
        raise ZeroDivisionError

    noted = Noted()
    scheduler.gather(fail)
    answers = send(make(scheduler, noted.run("tiny"), TINY))
    loop, errors = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda loop, context: errors.append(context["exception"]))
    await all_of(answers)
    assert gathered == ["failed"]
    assert [type(error) for error in errors] == [ZeroDivisionError]


async def test_a_batch_that_is_held_costs_nothing_meanwhile(scheduler: Scheduler) -> None:
    """It is read when a request comes and when it is due, not all the time."""
    noted = Noted()
    batcher = make(scheduler, noted.run("held"), TINY, delay_ms=1e6)
    with mock.patch.object(batcher, "next_batch", wraps=batcher.next_batch) as looks:
        answers = send(batcher)
        await iterations(100)
        assert looks.call_count == 1
        answers += send(batcher, 3)
        await all_of(answers)
    assert noted.order == ["held"]


async def test_a_batch_due_sooner_replaces_the_timer(scheduler: Scheduler) -> None:
    """One timer exists at a time, for the batch due first; a later one changes nothing."""
    noted = Noted()
    timers = []
    answers = []
    for name, delay_ms in (("late", 1e6), ("soon", 1e5), ("later", 1e7)):
        answers += send(make(scheduler, noted.run(name), TINY, delay_ms=delay_ms))
        await iterations()
        timers.append(scheduler._timer)
    late, soon, later = timers
    assert late is not None
    assert soon is not None
    assert late.cancelled()
    assert soon is later
    assert not soon.cancelled()


async def test_a_timer_that_fires_early_counts_as_on_time(scheduler: Scheduler) -> None:
    """uvloop's timers may be 1 ms early: a batch due then runs without another look."""
    noted = Noted()
    batcher = make(scheduler, noted.run("held"), TINY, delay_ms=1e6)
    answers = send(batcher)
    await iterations()
    assert scheduler._timer is not None
    due = scheduler._timer_due
    scheduler._timer.cancel()
    with mock.patch("cohort.scheduling.scheduler.monotonic", return_value=due - 0.0009):
        scheduler._on_timer()
    await all_of(answers)
    assert noted.order == ["held"]
