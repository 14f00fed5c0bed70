"""Queue, batch and reply, one batch at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from unittest import mock

import numpy as np
import pytest

from cohort.batching import Batcher, BatchPolicy
from cohort.errors import DeadlineExceeded, InferenceFailed, NotReady, Overloaded
from cohort.tensors import Array, Arrays
from tests.fakes import (
    ManualScheduler,
    RecordedEvents,
    RecordedReply,
    assert_empty,
    double,
    let_pass,
)

ONE = np.ones((1, 2), np.float32)


def make(
    scheduler: ManualScheduler,
    seen: RecordedEvents,
    policy: BatchPolicy | None = None,
    seconds_for: Callable[[float], float] = lambda work: 0.001,
) -> Batcher:
    return Batcher(
        double,
        policy or BatchPolicy(),
        wake=scheduler.wake,
        observe=seen,
        seconds_for=seconds_for,
    )


async def test_requests_run_together_and_each_gets_its_own_rows() -> None:
    """One run for all who wait, one answer each, of as many rows as were sent."""
    scheduler, seen = ManualScheduler(), RecordedEvents()
    batcher = make(scheduler, seen)
    sent = [np.full((rows, 2), value, np.float32) for rows, value in [(1, 5), (3, 7), (2, 9)]]
    answers = [RecordedReply() for _ in sent]
    for array, answer in zip(sent, answers, strict=True):
        batcher.submit({"x": array}, answer)
    scheduler.run_next(batcher)
    for array, answer in zip(sent, answers, strict=True):
        np.testing.assert_array_equal((await answer.outputs())[0], 2 * array)
    (ran,) = seen.runs
    assert (ran.rows, ran.requests, len(ran.waits), ran.padding) == (6, 3, 3, 0.0)
    assert_empty(batcher)


async def test_a_request_alone_is_fed_as_it_came() -> None:
    """Its arrays are not copied, since there are no others to concatenate."""
    scheduler, fed = ManualScheduler(), []

    def run(inputs: Arrays, control: object) -> list[Array]:
        fed.append(inputs["x"])
        return double(inputs)

    batcher = Batcher(run, BatchPolicy(), wake=scheduler.wake, observe=RecordedEvents())
    array = np.ones((2, 3))
    batcher.submit({"x": array}, RecordedReply())
    scheduler.run_all(batcher)
    assert [one is array for one in fed] == [True]


async def test_datatypes_are_never_mixed() -> None:
    """Floats of two sizes, integers and strings wait apart and stay what they are."""
    scheduler, seen = ManualScheduler(), RecordedEvents()
    batcher = make(scheduler, seen)
    kinds: list[Array] = [
        np.array([[1.5]], np.float32),
        np.array([[2.5]], np.float64),
        np.array([[3]], np.int64),
        np.array([["four"]], object),
    ]
    answers = []
    for array in [*kinds, *kinds]:
        answers.append(RecordedReply())
        batcher.submit({"x": array}, answers[-1])
    scheduler.run_all(batcher)
    for array, answer in zip([*kinds, *kinds], answers, strict=True):
        (output,) = await answer.outputs()
        assert output.dtype == array.dtype
        np.testing.assert_array_equal(output, array + array)  # type: ignore[operator]
    assert [ran.requests for ran in seen.runs] == [2] * len(kinds)


async def test_inputs_in_another_order_are_the_same_inputs_or_none_of_ours() -> None:
    """Two callers name inputs in different orders: each gets its own outputs, and both succeed."""
    scheduler, seen = ManualScheduler(), RecordedEvents()
    batcher = make(scheduler, seen)
    first: Arrays = {"a": np.full((1, 2), 1.0), "b": np.full((1, 3), 2.0)}
    second: Arrays = {"b": np.full((1, 2), 3.0), "a": np.full((1, 3), 4.0)}
    answers = [RecordedReply(), RecordedReply()]
    batcher.submit(first, answers[0])
    batcher.submit(second, answers[1])
    scheduler.run_all(batcher)
    assert [out.mean() for out in await answers[0].outputs()] == [2.0, 4.0]
    assert [out.mean() for out in await answers[1].outputs()] == [8.0, 6.0]


async def test_a_full_queue_refuses() -> None:
    """Beyond max_queue_size a caller is refused at once, with the time after which to retry."""
    scheduler, seen = ManualScheduler(), RecordedEvents()
    batcher = make(scheduler, seen, BatchPolicy(max_queue_size=2))
    answers = [RecordedReply(), RecordedReply()]
    for answer in answers:
        batcher.submit({"x": ONE}, answer)
    with pytest.raises(Overloaded, match="max_queue_size") as refused:
        batcher.submit({"x": ONE}, RecordedReply())
    assert refused.value.retry_after > 0
    scheduler.run_all(batcher)
    batcher.submit({"x": ONE}, RecordedReply())
    for answer in answers:
        await answer.outputs()


async def test_a_queue_of_seconds_refuses() -> None:
    """Beyond max_queue_seconds of measured work; the time to come back is how long that takes."""
    scheduler, seen = ManualScheduler(), RecordedEvents()
    policy = BatchPolicy(max_batch_size=2, max_queue_seconds=3.0)
    batcher = make(scheduler, seen, policy, seconds_for=lambda work: work)
    answers = [RecordedReply() for _ in range(3)]
    for number, answer in enumerate(answers):
        assert batcher.room_for(0) == 3 - number
        batcher.submit({"x": ONE}, answer)
    assert batcher.room_for(0) == 0
    batcher.check_room(1)
    with pytest.raises(Overloaded, match="max_queue_seconds"):
        batcher.check_room(0)
    with pytest.raises(Overloaded, match=r"take 3 s \(max_queue_seconds\)") as refused:
        batcher.submit({"x": ONE}, RecordedReply())
    assert refused.value.retry_after == pytest.approx(3.0)
    scheduler.run_all(batcher)
    assert batcher.room_for(0) >= 3  # the runs were faster than the profile
    for answer in answers:
        await answer.outputs()


async def test_an_empty_queue_takes_a_request_of_any_length() -> None:
    """A model that is slower than max_queue_seconds serves one caller after the other."""
    scheduler, seen = ManualScheduler(), RecordedEvents()
    policy = BatchPolicy(max_batch_size=2, max_queue_seconds=0.5)
    batcher = make(scheduler, seen, policy, seconds_for=lambda work: work)
    answer = RecordedReply()
    ticket = batcher.submit({"x": np.ones((4, 2), "f4")}, answer)
    with pytest.raises(Overloaded):
        batcher.submit({"x": ONE}, RecordedReply())
    ticket.cancel()
    batcher.submit({"x": ONE}, answer)
    scheduler.run_all(batcher)
    await answer.outputs()


async def test_a_model_that_slows_down_takes_fewer_requests() -> None:
    """The queue's seconds follow recent runs."""
    scheduler, seen = ManualScheduler(), RecordedEvents()
    policy = BatchPolicy(max_batch_size=1, max_queue_seconds=1e-3)
    batcher = make(scheduler, seen, policy, seconds_for=lambda work: 1e-6)
    before = batcher.room_for(0)
    batcher.submit({"x": ONE}, RecordedReply())
    scheduler.run_all(batcher)
    assert 0 < batcher.room_for(0) < before


async def test_a_leaver_makes_room_in_the_queue() -> None:
    """A caller that leaves while it waits is removed and counted as having left the queue."""
    scheduler, seen = ManualScheduler(), RecordedEvents()
    batcher = make(scheduler, seen, BatchPolicy(max_queue_size=1))
    answer = RecordedReply()
    ticket = batcher.submit({"x": ONE}, answer)
    ticket.cancel()
    ticket.cancel()
    assert seen.left == ["queued"]
    assert_empty(batcher)
    batcher.submit({"x": ONE}, RecordedReply())
    scheduler.run_all(batcher)
    assert answer.calls == []


async def test_a_deadline_that_has_passed_is_refused_at_once() -> None:
    """A request whose caller no longer waits is not queued."""
    batcher = make(ManualScheduler(), RecordedEvents())
    with pytest.raises(DeadlineExceeded, match=r"within 0\.001 ms"):
        batcher.submit({"x": ONE}, RecordedReply(), deadline=monotonic() - 1, timeout=1e-6)
    assert_empty(batcher)


async def test_a_deadline_passes_in_the_queue() -> None:
    """A late caller gets one error and its row is in no run; the others are served."""
    scheduler, seen = ManualScheduler(), RecordedEvents()
    batcher = make(scheduler, seen)
    hasty, patient = RecordedReply(), RecordedReply()
    deadline = monotonic() + 1000
    batcher.submit({"x": ONE}, hasty, deadline=deadline, timeout=0.06)
    batcher.submit({"x": ONE}, patient, deadline=deadline + 1000)
    let_pass(batcher, deadline)
    late = await hasty.error()
    assert isinstance(late, DeadlineExceeded)
    assert str(late) == "no response within 60 ms"
    scheduler.run_all(batcher)
    await patient.outputs()
    assert [ran.requests for ran in seen.runs] == [1]
    assert len(hasty.calls) == 1


async def test_deadlines_in_any_order_all_pass() -> None:
    """A later request with an earlier deadline is not forgotten, and no expiry forgets the next."""
    batcher = make(ManualScheduler(), RecordedEvents())
    start, answers = monotonic() + 1000, {}
    for seconds in (60, 30, 45, 20, 50):
        answers[start + seconds] = RecordedReply()
        batcher.submit({"x": ONE}, answers[start + seconds], deadline=start + seconds)
        assert batcher._deadlines.earliest == min(answers)
    for deadline in sorted(answers):
        assert batcher._deadlines.earliest == deadline
        let_pass(batcher, deadline)
        assert isinstance(await answers[deadline].error(), DeadlineExceeded)
    assert_empty(batcher)
    assert not batcher._deadlines.armed


async def test_timers_that_fire_early_do_not_spin() -> None:
    """uvloop fires up to half a millisecond early: the next look is then at least one later."""
    batcher, answer = make(ManualScheduler(), RecordedEvents()), RecordedReply()
    deadline = monotonic() + 1000
    batcher.submit({"x": ONE}, answer, deadline=deadline)
    with (
        mock.patch("cohort.batching.batcher.monotonic", return_value=deadline - 0.0004),
        mock.patch("cohort.batching.deadlines.monotonic", return_value=deadline - 0.0004),
        mock.patch.object(asyncio.get_running_loop(), "call_later") as timer,
    ):
        batcher._expire()
    ((wait, _), _) = timer.call_args
    assert 0.001 <= wait <= 0.002
    assert not answer.calls
    let_pass(batcher, deadline)
    assert isinstance(await answer.error(), DeadlineExceeded)


async def test_closing_answers_those_who_wait() -> None:
    """A version that closes answers its queue, accepts no more requests and leaves no timer."""
    batcher = make(ManualScheduler(), RecordedEvents())
    answers = [RecordedReply(), RecordedReply()]
    for answer in answers:
        batcher.submit({"x": ONE}, answer, deadline=monotonic() + 1000)
    batcher.close()
    for answer in answers:
        assert isinstance(await answer.error(), NotReady)
    with pytest.raises(NotReady):
        batcher.submit({"x": ONE}, RecordedReply())
    assert_empty(batcher)
    assert not batcher._deadlines.armed


async def test_closing_leaves_a_running_batch_its_deadline() -> None:
    """What runs is finished, its callers' deadlines hold, and the timer goes with the last."""
    batcher = make(ManualScheduler(), RecordedEvents())
    hasty, patient = RecordedReply(), RecordedReply()
    deadline = monotonic() + 1000
    batcher.submit({"x": ONE}, hasty, deadline=deadline)
    batcher.submit({"x": ONE}, patient, deadline=deadline + 1000)
    cut = batcher.next_batch(monotonic())
    assert not isinstance(cut, float)
    batch = batcher.take(cut, monotonic())
    batcher.close()
    let_pass(batcher, deadline)
    assert isinstance(await hasty.error(), DeadlineExceeded)
    assert not batcher.idle
    batch.execute()
    batcher.finish(batch)
    await patient.outputs()
    assert_empty(batcher)
    assert not batcher._deadlines.armed


async def test_a_reply_that_raises_harms_nobody_else() -> None:
    """One caller's broken connection is reported, and the rest get their answers."""
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: reported.append(str(context["exception"]))
    )
    scheduler = ManualScheduler()
    batcher = make(scheduler, RecordedEvents())

    def broken(*_: object) -> None:
        raise ConnectionError("gone")

    rest = [RecordedReply(), RecordedReply()]
    batcher.submit({"x": ONE}, rest[0])
    batcher.submit({"x": ONE}, broken)
    batcher.submit({"x": ONE}, rest[1])
    scheduler.run_next(batcher)
    for answer in rest:
        await answer.outputs()
    batcher.submit({"x": ONE}, broken)
    batcher.submit({"x": ONE}, rest_two := RecordedReply())
    batcher.close()
    assert isinstance(await rest_two.error(), NotReady)
    assert reported == ["gone", "gone"]


async def test_an_observer_that_raises_harms_nobody() -> None:
    """Counting is not worth an answer."""
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: reported.append(context["message"])
    )
    scheduler = ManualScheduler()

    def observe(_: object) -> None:
        raise ValueError("no such metric")

    batcher = Batcher(double, BatchPolicy(), wake=scheduler.wake, observe=observe)
    answer = RecordedReply()
    batcher.submit({"x": ONE}, answer)
    scheduler.run_next(batcher)
    await answer.outputs()
    assert reported == ["an observer failed"]


async def test_a_reply_may_submit_and_cancel() -> None:
    """Replies run in the middle of answering: what they do to the same batcher is safe."""
    scheduler, seen = ManualScheduler(), RecordedEvents()
    batcher = make(scheduler, seen)
    second = RecordedReply()
    again = RecordedReply()

    def reply(*_: object) -> None:
        ticket.cancel()
        batcher.submit({"x": ONE}, again)

    batcher.submit({"x": ONE}, reply)
    ticket = batcher.submit({"x": ONE}, second)
    scheduler.run_all(batcher)
    await again.outputs()
    assert second.calls == []
    assert_empty(batcher)


async def test_failing_runs_do_not_count_as_fast_ones() -> None:
    """Bad requests fail in no time; that must not make a slow model look fit for the loop."""
    scheduler = ManualScheduler()

    def refuse(inputs: Arrays, control: object) -> list[Array]:
        raise InferenceFailed("bad")

    batcher = Batcher(
        refuse,
        BatchPolicy(),
        wake=scheduler.wake,
        observe=RecordedEvents(),
        seconds_for=lambda rows: 10.0,
    )
    for _ in range(50):
        batcher.submit({"x": ONE}, RecordedReply())
        scheduler.run_next(batcher)
    assert batcher.seconds_for(1) == 10.0


async def test_runs_of_late_change_what_the_next_should_take() -> None:
    """The profile was made on an idle machine; a hundred runs say what it is like now."""
    scheduler = ManualScheduler()
    batcher = Batcher(
        double,
        BatchPolicy(),
        wake=scheduler.wake,
        observe=RecordedEvents(),
        seconds_for=lambda rows: 10.0,
    )
    for _ in range(100):
        batcher.submit({"x": ONE}, RecordedReply())
        scheduler.run_next(batcher)
    assert batcher.seconds_for(1) < 0.1


@pytest.mark.parametrize(("taken", "then"), [(20.0, 20.0), (40.0, 22.0), (10.0, 19.0), (1e6, 26.0)])
async def test_each_run_moves_the_estimate_a_little(taken: float, then: float) -> None:
    """It moves by a tenth of the difference, limited to that of four times the estimate."""
    batcher = Batcher(
        double,
        BatchPolicy(),
        wake=ManualScheduler().wake,
        observe=RecordedEvents(),
        seconds_for=lambda work: 10.0 * work,
    )
    with (
        mock.patch("cohort.batching.batcher.monotonic", return_value=100.0),
        mock.patch("cohort.batching.inline.monotonic", return_value=100.0 + taken),
    ):
        batcher.run_now({"x": np.ones((2, 2))}, 99.0, 2, 2)
    assert batcher.seconds_for(2) == pytest.approx(then)


async def test_runs_beside_others_teach_also_where_exclusive_ones_are_different() -> None:
    """Runs next to others teach like the profile; exclusive runs on more threads do not count."""
    scheduler = ManualScheduler()
    batcher = Batcher(
        double,
        BatchPolicy(),
        wake=scheduler.wake,
        observe=RecordedEvents(),
        run_exclusively=lambda inputs, control: double(inputs),
        seconds_for=lambda rows: 10.0,
    )
    for _ in range(100):
        batcher.submit({"x": ONE}, RecordedReply())
        scheduler.run_next(batcher)
    assert batcher.seconds_for(1) < 0.1


async def test_a_run_now_lets_those_who_wait_go_first() -> None:
    """With a queue it returns None; without one it runs, replies and is counted."""
    scheduler, seen = ManualScheduler(), RecordedEvents()
    batcher = Batcher(double, BatchPolicy(), wake=scheduler.wake, observe=seen)
    batcher.submit({"x": ONE}, RecordedReply())
    assert batcher.run_now({"x": ONE}, 0.0, 1, 1) is None
    scheduler.run_all(batcher)
    outputs, error = batcher.run_now({"x": ONE}, 0.0, 1, 3) or (None, None)
    assert outputs is not None
    assert (outputs[0].tolist(), error) == (double({"x": ONE})[0].tolist(), None)
    assert [(ran.rows, ran.requests) for ran in seen.runs] == [(1, 1), (1, 3)]
    assert_empty(batcher)


async def test_a_run_now_that_fails_is_told_and_teaches_nothing() -> None:
    """Its caller gets the error; a closed version accepts no run."""
    scheduler, seen = ManualScheduler(), RecordedEvents()

    def refuse(inputs: Arrays, control: object) -> list[Array]:
        raise InferenceFailed("bad")

    batcher = Batcher(
        refuse, BatchPolicy(), wake=scheduler.wake, observe=seen, seconds_for=lambda work: 10.0
    )
    outputs, error = batcher.run_now({"x": ONE}, 0.0, 1, 1) or (None, None)
    assert (outputs, type(error)) == (None, InferenceFailed)
    assert batcher.seconds_for(1) == 10.0
    batcher.close()
    with pytest.raises(NotReady):
        batcher.run_now({"x": ONE}, 0.0, 1, 1)


async def test_a_bug_in_a_run_now_is_answered() -> None:
    """The callers get an error of the server, whatever the run raises."""
    scheduler, seen = ManualScheduler(), RecordedEvents()

    def broken(inputs: Arrays, control: object) -> list[Array]:
        raise ZeroDivisionError

    batcher = Batcher(broken, BatchPolicy(), wake=scheduler.wake, observe=seen)
    _, error = batcher.run_now({"x": ONE}, 0.0, 1, 1) or (None, None)
    assert "the server failed" in str(error)
