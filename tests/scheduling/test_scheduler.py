"""Runs of several models on the loop, in slots and in the express slot."""

from __future__ import annotations

import asyncio
import threading
from time import monotonic

import numpy as np
import pytest

from cohort.batching import Batcher, BatchPolicy, Outputs
from cohort.errors import DeadlineExceeded
from cohort.scheduling import Scheduler
from cohort.tensors import Arrays
from tests.fakes import ControlledRun, RecordedEvents, RecordedReply, assert_empty, double, let_pass
from tests.waiting import PATIENCE, iterations, until

TINY, SHORT, LONG = 1e-5, 0.01, 1.0
POLICY = BatchPolicy(max_batch_size=4)


def row(value: float = 1.0) -> Arrays:
    return {"x": np.array([[value]])}


def make(
    scheduler: Scheduler,
    run: ControlledRun,
    seconds: float = LONG,
    *,
    policy: BatchPolicy = POLICY,
    device: str = "cpu",
    shadow: bool = False,
    seen: RecordedEvents | None = None,
) -> Batcher:
    return Batcher(
        run,
        policy,
        wake=scheduler.wake,
        observe=seen or RecordedEvents(),
        make_control=run.make_control,
        seconds_for=lambda rows: seconds,
        device=device,
        shadow=shadow,
    )


def tiny(scheduler: Scheduler, threads: list[str] | None = None) -> Batcher:
    def run(inputs: Arrays, control: object) -> Outputs:
        if threads is not None:
            threads.append(threading.current_thread().name)
        return double(inputs)

    return Batcher(
        run, POLICY, wake=scheduler.wake, observe=RecordedEvents(), seconds_for=lambda rows: TINY
    )


def send(batcher: Batcher, requests: int) -> list[RecordedReply]:
    answers = [RecordedReply() for _ in range(requests)]
    for answer in answers:
        batcher.submit(row(), answer)
    return answers


async def all_of(answers: list[RecordedReply]) -> None:
    for answer in answers:
        await answer.outputs()


async def test_what_is_parsed_in_one_turn_runs_together(scheduler: Scheduler) -> None:
    """No request waits on purpose, and still one run serves all that came at once."""
    seen = RecordedEvents()
    with ControlledRun() as run:
        run.release(10)
        answers = send(make(scheduler, run, seen=seen), 4)
        await all_of(answers)
    assert [ran.requests for ran in seen.runs] == [4]


async def test_the_rest_gathers_while_a_batch_runs(scheduler: Scheduler) -> None:
    """If all slots are taken, requests become one batch, which starts when a slot is free."""
    with ControlledRun() as run:
        batcher = make(scheduler, run)
        answers = []
        for runs in (1, 2):
            answers += send(batcher, 1)
            await run.started(runs)
        answers += send(batcher, 2)
        await iterations()
        answers += send(batcher, 1)
        await iterations()
        assert len(run.feeds) == 2
        run.release(1)
        await run.started(3)
        assert run.feeds[2]["x"].shape == (3, 1)
        run.release(10)
        await all_of(answers)
        assert_empty(batcher)


async def test_slots_are_never_exceeded(scheduler: Scheduler) -> None:
    """Two runs are in progress at once and no third, however many wait in however many models."""
    with ControlledRun() as run:
        batchers = [make(scheduler, run) for _ in range(5)]
        answers = [answer for batcher in batchers for answer in send(batcher, 9)]
        for runs in range(2, 12):
            await run.started(runs)
            run.release(1)
        run.release(100)
        await all_of(answers)
        assert run.most == 2


async def test_devices_have_slots_of_their_own(scheduler: Scheduler) -> None:
    """A CPU full of long runs leaves the GPU to its own requests."""
    with ControlledRun() as slow, ControlledRun() as quick:
        waiting = send(make(scheduler, slow), 12)
        await slow.started(2)
        on_gpu = send(make(scheduler, quick, device="cuda"), 1)
        await quick.started(1)
        quick.release()
        await all_of(on_gpu)
        slow.release(10)
        await all_of(waiting)


async def test_the_oldest_request_goes_first_across_models(scheduler: Scheduler) -> None:
    """A busy model does not starve a quiet one: slots go by age."""
    with ControlledRun() as busy, ControlledRun() as quiet:
        one, other = make(scheduler, busy), make(scheduler, quiet)
        answers = send(one, 12)  # three batches, of which two start
        await busy.started(2)
        answers += send(other, 1)
        answers += send(one, 8)
        await iterations()
        busy.release(1)
        await busy.started(3)
        busy.release(1)
        await quiet.started(1)
        assert len(busy.feeds) == 3
        busy.release(10)
        quiet.release(10)
        await all_of(answers)


async def test_a_short_run_passes_long_ones(scheduler: Scheduler) -> None:
    """If a slow model holds every slot, a short run still starts; one at a time."""
    with ControlledRun() as slow, ControlledRun() as short:
        held = send(make(scheduler, slow), 12)
        await slow.started(2)
        quick = make(scheduler, short, SHORT)
        first = send(quick, 4)
        await short.started(1)
        second = send(quick, 1)
        await iterations()
        assert len(short.feeds) == 1
        short.release(2)
        await all_of(first + second)
        assert (slow.most, short.most) == (2, 1)
        slow.release(10)
        await all_of(held)


async def test_an_inline_run_needs_no_slot(scheduler: Scheduler) -> None:
    """A tiny model runs on the loop itself, whatever else is going on."""
    threads: list[str] = []
    with ControlledRun() as slow, ControlledRun() as short:
        held = send(make(scheduler, slow), 12)
        await slow.started(2)
        held += send(make(scheduler, short, SHORT), 1)
        await short.started(1)
        await all_of(send(tiny(scheduler, threads), 9))
        assert threads == [threading.current_thread().name] * 3
        slow.release(10)
        short.release(10)
        await all_of(held)


async def test_only_short_runs_on_the_cpu_go_inline(scheduler: Scheduler) -> None:
    """A short run on a GPU waits for its device: it never holds the loop."""
    with ControlledRun() as run:
        answers = send(make(scheduler, run, TINY, device="cuda"), 1)
        await run.started(1)
        run.release()
        await all_of(answers)


@pytest.mark.parametrize("policy", [POLICY, POLICY.unbatched()], ids=["batched", "one by one"])
async def test_a_long_batch_of_a_tiny_model_leaves_the_loop(
    scheduler: Scheduler, policy: BatchPolicy
) -> None:
    """What counts is how long this run takes, by its rows, also where requests run alone."""
    inline: list[bool] = []
    loop_thread = threading.current_thread()

    def run(inputs: Arrays, control: object) -> Outputs:
        inline.append(threading.current_thread() is loop_thread)
        return double(inputs)

    batcher = Batcher(
        run,
        policy,
        wake=scheduler.wake,
        observe=RecordedEvents(),
        seconds_for=lambda rows: rows * TINY,
    )
    for inputs in ({"x": np.ones((1000, 1))}, row()):
        answer = RecordedReply()
        batcher.submit(inputs, answer)  # type: ignore[arg-type]
        await answer.outputs()
    assert inline[:2] == [False, True]  # a thread repeats the second where the machine was slow


async def test_shadows_wait_for_everybody(scheduler: Scheduler) -> None:
    """A shadow run starts when a slot is free and no other run wants it."""
    with ControlledRun() as run, ControlledRun() as behind:
        shadow = make(scheduler, behind, shadow=True)
        mirrored = send(shadow, 1)
        answers = send(make(scheduler, run), 12)
        await run.started(2)
        run.release(1)
        await run.started(3)
        assert not behind.feeds
        run.release(1)
        await behind.started(1)
        behind.release()
        run.release(10)
        await all_of(answers + mirrored)


async def test_an_inline_shadow_waits_too_and_is_not_forgotten(scheduler: Scheduler) -> None:
    """Shadows are last on the loop as well; they run when the last of the others has gone."""
    with ControlledRun() as slow:
        held = send(make(scheduler, slow), 12)
        await slow.started(2)
        shadow = Batcher(
            double,
            POLICY,
            wake=scheduler.wake,
            observe=RecordedEvents(),
            seconds_for=lambda rows: TINY,
            shadow=True,
        )
        mirrored = send(shadow, 1)
        await iterations()
        assert not mirrored[0].calls
        slow.release(1)
        await slow.started(3)
        await all_of(mirrored)
        slow.release(10)
        await all_of(held)


async def test_the_next_batch_starts_before_replies(scheduler: Scheduler) -> None:
    """The model works while a slow caller receives its answer."""
    with ControlledRun() as run:
        batcher = make(scheduler, run)
        order: list[str] = []
        cut = batcher.take

        def noted(*args: object) -> object:
            order.append("dispatched")
            return cut(*args)  # type: ignore[arg-type]

        batcher.take = noted  # type: ignore[method-assign, assignment]
        for _ in range(12):
            batcher.submit(row(), lambda outputs, error: order.append("replied"))
        await run.started(2)
        order.clear()
        run.release(1)
        await run.started(3)
        run.release(10)
        await until(lambda: batcher.idle)
        assert order[:2] == ["dispatched", "replied"]


async def test_a_caller_who_leaves_mid_run_does_not_hold_up_the_rest(scheduler: Scheduler) -> None:
    """When one of three leaves, the run continues and the others get their answers."""
    seen = RecordedEvents()
    with ControlledRun() as run:
        batcher = make(scheduler, run, seen=seen)
        answers = [RecordedReply() for _ in range(3)]
        tickets = [batcher.submit(row(i), answer) for i, answer in enumerate(answers)]
        await run.started(1)
        tickets[1].cancel()
        assert not run.controls[0].stopped
        run.release()
        assert (await answers[0].outputs())[0].tolist() == [[0.0]]
        assert (await answers[2].outputs())[0].tolist() == [[4.0]]
        assert answers[1].calls == []
        assert seen.left == ["running"]
        assert_empty(batcher)


async def test_a_run_nobody_waits_for_is_stopped(scheduler: Scheduler) -> None:
    """When the last caller has left, the slot is given back at once and no reply is called."""
    with ControlledRun() as run:
        batcher = make(scheduler, run)
        answers = [RecordedReply() for _ in range(3)]
        tickets = [batcher.submit(row(), answer) for answer in answers]
        await run.started(1)
        for ticket in tickets:
            assert not run.controls[0].stopped
            ticket.cancel()
        assert run.controls[0].stopped
        await until(lambda: batcher.idle)
        assert [answer.calls for answer in answers] == [[], [], []]
        assert len(run.feeds) == 1


async def test_a_batch_everyone_left_before_it_began_is_not_run(scheduler: Scheduler) -> None:
    """A caller who leaves between the cut and the run costs no run."""
    with ControlledRun() as run:
        batcher = make(scheduler, run)
        ticket = batcher.submit(row(), RecordedReply())
        cut = batcher.next_batch(monotonic())
        assert not isinstance(cut, float)
        batch = batcher.take(cut, monotonic())
        ticket.cancel()
        batch.execute()
        batcher.finish(batch)
        assert not run.feeds
        assert_empty(batcher)


async def test_a_deadline_passes_during_the_run(scheduler: Scheduler) -> None:
    """The late caller gets the error once, while the run continues for the others."""
    with ControlledRun() as run:
        batcher = make(scheduler, run)
        hasty, patient = RecordedReply(), RecordedReply()
        deadline = monotonic() + 1000
        batcher.submit(row(), hasty, deadline=deadline)
        batcher.submit(row(), patient, deadline=deadline + 1000)
        await run.started(1)
        let_pass(batcher, deadline)
        assert isinstance(await hasty.error(), DeadlineExceeded)
        assert not run.controls[0].stopped
        run.release()
        await patient.outputs()
        assert len(hasty.calls) == 1


async def test_a_run_whose_callers_are_all_out_of_time_is_stopped(scheduler: Scheduler) -> None:
    """A deadline is a way of leaving."""
    with ControlledRun() as run:
        batcher = make(scheduler, run)
        answers = [RecordedReply(), RecordedReply()]
        deadline = monotonic() + 1000
        for answer in answers:
            batcher.submit(row(), answer, deadline=deadline)
        await run.started(1)
        let_pass(batcher, deadline)
        for answer in answers:
            assert isinstance(await answer.error(), DeadlineExceeded)
        assert run.controls[0].stopped


def delayed(scheduler: Scheduler, seconds: float, delay: float, seen: RecordedEvents) -> Batcher:
    policy = BatchPolicy(max_batch_size=4, max_queue_delay_ms=delay)
    return Batcher(
        double, policy, wake=scheduler.wake, observe=seen, seconds_for=lambda rows: seconds
    )


@pytest.mark.parametrize("seconds", [TINY, LONG], ids=["on the loop", "on threads"])
async def test_a_delayed_batch_runs_when_its_delay_is_over(
    scheduler: Scheduler, seconds: float
) -> None:
    """Requests of later turns join those held by max_queue_delay_ms."""
    seen = RecordedEvents()
    batcher = delayed(scheduler, seconds, 300, seen)
    answers = send(batcher, 1)
    await iterations()
    answers += send(batcher, 1)
    await all_of(answers)
    (ran,) = seen.runs
    assert ran.requests == 2
    assert max(ran.waits)[0] >= 0.298


@pytest.mark.parametrize("seconds", [TINY, LONG], ids=["on the loop", "on threads"])
async def test_a_full_batch_is_not_held(scheduler: Scheduler, seconds: float) -> None:
    """There is nothing to wait for when no more would fit."""
    seen = RecordedEvents()
    batcher = delayed(scheduler, seconds, 1000 * PATIENCE, seen)
    await all_of(send(batcher, 4))
    assert [ran.requests for ran in seen.runs] == [4]


async def test_closing_ends_the_threads(scheduler: Scheduler) -> None:
    """Threads end after the run they are in; none is left behind."""
    others = set(threading.enumerate())
    with ControlledRun() as run:
        answers = send(make(scheduler, run), 1)
        await run.started(1)
        threads = [
            one
            for one in threading.enumerate()
            if one not in others and one.name.startswith("cohort")
        ]
        assert threads
        scheduler.close()
        run.release()
        await all_of(answers)
        for thread in threads:
            await asyncio.to_thread(thread.join, PATIENCE)
            assert not thread.is_alive()


async def test_nothing_is_left_to_do_when_all_is_answered(scheduler: Scheduler) -> None:
    """No batcher is remembered, no slot held and no timer running."""
    with ControlledRun() as run:
        run.release(1000)
        batchers = [make(scheduler, run, seconds) for seconds in (SHORT, LONG)]
        batchers.append(tiny(scheduler))
        answers = [answer for batcher in batchers for answer in send(batcher, 10)]
        await all_of(answers)
        await iterations()
        for batcher in batchers:
            assert_empty(batcher)
        assert not scheduler._work
        assert not scheduler._done
        assert scheduler._timer is None
        assert not any(device.running for device in scheduler._devices.values())


async def test_only_a_run_with_nothing_beside_it_is_alone(scheduler: Scheduler) -> None:
    """Whatever runs or waits for the device at its start counts; what comes later does not."""
    with ControlledRun() as run, ControlledRun() as exclusive:

        def make_one() -> Batcher:
            return Batcher(
                run,
                POLICY,
                wake=scheduler.wake,
                observe=RecordedEvents(),
                run_exclusively=exclusive,
                seconds_for=lambda work: LONG,
            )

        first, second = make_one(), make_one()
        answers = send(first, 1)
        await exclusive.started(1)
        answers += send(second, 1)
        await run.started(1)
        exclusive.release(10)
        run.release(10)
        await all_of(answers)
        answers = send(first, 1) + send(second, 1)
        await all_of(answers)
        assert (len(exclusive.feeds), len(run.feeds)) == (1, 3)
        await all_of(send(second, 1))
        assert (len(exclusive.feeds), len(run.feeds)) == (2, 3)


async def test_lone_runs_teach_nothing_about_the_others(scheduler: Scheduler) -> None:
    """They take other threads; the estimate for runs next to others stays the same."""
    batcher = Batcher(
        lambda inputs, control: double(inputs),
        POLICY,
        wake=scheduler.wake,
        observe=RecordedEvents(),
        run_exclusively=lambda inputs, control: double(inputs),
        seconds_for=lambda work: LONG,
    )
    for _ in range(20):
        await all_of(send(batcher, 1))
    assert batcher.seconds_for(1) == LONG
