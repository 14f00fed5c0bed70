"""Queue, cut and answer, one batch at a time in the test's hand."""

from __future__ import annotations

import asyncio
from time import monotonic

import numpy as np
import pytest

from app.batching import Batcher, BatchPolicy
from app.errors import DeadlineExceeded, InferenceFailed, NotReady, Overloaded
from app.tensors import Array, Arrays
from tests.fakes import Answers, Hand, Observed, assert_empty, double

ONE = np.ones((1, 2), np.float32)


def make(hand: Hand, seen: Observed, policy: BatchPolicy | None = None) -> Batcher:
    return Batcher(double, policy or BatchPolicy(), wake=hand.wake, observe=seen)


async def test_requests_run_together_and_each_gets_its_own_rows() -> None:
    """One run for all who wait, one answer each, of as many rows as were sent."""
    hand, seen = Hand(), Observed()
    batcher = make(hand, seen)
    sent = [np.full((rows, 2), value, np.float32) for rows, value in [(1, 5), (3, 7), (2, 9)]]
    answers = [Answers() for _ in sent]
    for array, answer in zip(sent, answers, strict=True):
        batcher.submit({"x": array}, answer)
    hand.run_next(batcher)
    for array, answer in zip(sent, answers, strict=True):
        np.testing.assert_array_equal((await answer.outputs())[0], 2 * array)
    (ran,) = seen.runs
    assert (ran.rows, ran.requests, len(ran.waits), ran.padding) == (6, 3, 3, 0.0)
    assert_empty(batcher)


async def test_datatypes_are_never_mixed() -> None:
    """Floats of two sizes, integers and strings wait apart and stay what they are."""
    hand, seen = Hand(), Observed()
    batcher = make(hand, seen)
    kinds: list[Array] = [
        np.array([[1.5]], np.float32),
        np.array([[2.5]], np.float64),
        np.array([[3]], np.int64),
        np.array([["four"]], object),
    ]
    answers = []
    for array in [*kinds, *kinds]:
        answers.append(Answers())
        batcher.submit({"x": array}, answers[-1])
    hand.run_all(batcher)
    for array, answer in zip([*kinds, *kinds], answers, strict=True):
        (output,) = await answer.outputs()
        assert output.dtype == array.dtype
        np.testing.assert_array_equal(output, array + array)  # type: ignore[operator]
    assert [ran.requests for ran in seen.runs] == [2] * len(kinds)


async def test_inputs_in_another_order_are_the_same_inputs_or_none_of_ours() -> None:
    """Two callers name inputs in different orders: neither is given the other's, nobody fails."""
    hand, seen = Hand(), Observed()
    batcher = make(hand, seen)
    first: Arrays = {"a": np.full((1, 2), 1.0), "b": np.full((1, 3), 2.0)}
    second: Arrays = {"b": np.full((1, 2), 3.0), "a": np.full((1, 3), 4.0)}
    answers = [Answers(), Answers()]
    batcher.submit(first, answers[0])
    batcher.submit(second, answers[1])
    hand.run_all(batcher)
    assert [out.mean() for out in await answers[0].outputs()] == [2.0, 4.0]
    assert [out.mean() for out in await answers[1].outputs()] == [8.0, 6.0]


async def test_a_full_queue_refuses() -> None:
    """Beyond max_queue_size a caller is told at once, and when to come back."""
    hand, seen = Hand(), Observed()
    batcher = make(hand, seen, BatchPolicy(max_queue_size=2))
    answers = [Answers(), Answers()]
    for answer in answers:
        batcher.submit({"x": ONE}, answer)
    with pytest.raises(Overloaded, match="max_queue_size") as refused:
        batcher.submit({"x": ONE}, Answers())
    assert refused.value.retry_after > 0
    hand.run_all(batcher)
    batcher.submit({"x": ONE}, Answers())
    for answer in answers:
        await answer.outputs()


async def test_a_leaver_makes_room_in_the_queue() -> None:
    """Who leaves while waiting is forgotten at once, and counted as having left the queue."""
    hand, seen = Hand(), Observed()
    batcher = make(hand, seen, BatchPolicy(max_queue_size=1))
    answer = Answers()
    ticket = batcher.submit({"x": ONE}, answer)
    ticket.cancel()
    ticket.cancel()
    assert seen.left == ["queued"]
    assert_empty(batcher)
    batcher.submit({"x": ONE}, Answers())
    hand.run_all(batcher)
    assert answer.calls == []


async def test_a_deadline_that_has_passed_is_refused_at_once() -> None:
    """Nothing is queued for a caller who no longer waits."""
    batcher = make(Hand(), Observed())
    with pytest.raises(DeadlineExceeded):
        batcher.submit({"x": ONE}, Answers(), deadline=monotonic() - 1)
    assert_empty(batcher)


async def test_a_deadline_passes_in_the_queue() -> None:
    """Who waits too long is told so, once, and takes part in no run; the others are served."""
    hand, seen = Hand(), Observed()
    batcher = make(hand, seen)
    hasty, patient = Answers(), Answers()
    batcher.submit({"x": ONE}, hasty, deadline=monotonic() + 0.05)
    batcher.submit({"x": ONE}, patient, deadline=monotonic() + 30)
    assert isinstance(await hasty.error(), DeadlineExceeded)
    hand.run_all(batcher)
    await patient.outputs()
    assert [ran.requests for ran in seen.runs] == [1]
    assert len(hasty.calls) == 1


async def test_deadlines_in_any_order_all_pass() -> None:
    """A later request with an earlier deadline is not forgotten, and no expiry forgets the next."""
    batcher = make(Hand(), Observed())
    answers = []
    for milliseconds in (60, 30, 45, 20, 50):
        answers.append(Answers())
        batcher.submit({"x": ONE}, answers[-1], deadline=monotonic() + milliseconds / 1000)
    for answer in answers:
        assert isinstance(await answer.error(), DeadlineExceeded)
    assert_empty(batcher)
    assert batcher._deadline_timer is None


async def test_timers_that_fire_early_do_not_spin() -> None:
    """uvloop fires up to half a millisecond early: the next look is then at least one later."""
    batcher = make(Hand(), Observed())
    looks = 0
    expire = batcher._expire

    def counted() -> None:
        nonlocal looks
        looks += 1
        expire()

    batcher._expire = counted  # type: ignore[method-assign]
    answers = []
    for number in range(10):  # ends at every tenth of a millisecond
        answers.append(Answers())
        batcher.submit({"x": ONE}, answers[-1], deadline=monotonic() + 0.03 + number * 0.0021)
    counted()
    for answer in answers:
        assert isinstance(await answer.error(), DeadlineExceeded)
    assert looks <= 2 * len(answers) + 1


async def test_closing_answers_those_who_wait() -> None:
    """A version that goes away says so to its queue, takes no more, and leaves no timer behind."""
    batcher = make(Hand(), Observed())
    answers = [Answers(), Answers()]
    for answer in answers:
        batcher.submit({"x": ONE}, answer, deadline=monotonic() + 30)
    batcher.close()
    for answer in answers:
        assert isinstance(await answer.error(), NotReady)
    with pytest.raises(NotReady):
        batcher.submit({"x": ONE}, Answers())
    assert_empty(batcher)
    assert batcher._deadline_timer is None


async def test_closing_leaves_a_running_batch_its_deadline() -> None:
    """What runs is finished, its callers' deadlines hold, and the timer goes with the last."""
    batcher = make(Hand(), Observed())
    hasty, patient = Answers(), Answers()
    batcher.submit({"x": ONE}, hasty, deadline=monotonic() + 0.05)
    batcher.submit({"x": ONE}, patient, deadline=monotonic() + 30)
    cut = batcher.next_batch(monotonic())
    assert not isinstance(cut, float)
    batch = batcher.take(cut, monotonic())
    batcher.close()
    assert isinstance(await hasty.error(), DeadlineExceeded)
    assert not batcher.idle
    batch.execute()
    batcher.finish(batch)
    await patient.outputs()
    assert_empty(batcher)
    assert batcher._deadline_timer is None


async def test_a_reply_that_raises_harms_nobody_else() -> None:
    """One caller's broken connection is reported, and the rest get their answers."""
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: reported.append(str(context["exception"]))
    )
    hand = Hand()
    batcher = make(hand, Observed())

    def broken(*_: object) -> None:
        raise ConnectionError("gone")

    rest = [Answers(), Answers()]
    batcher.submit({"x": ONE}, rest[0])
    batcher.submit({"x": ONE}, broken)
    batcher.submit({"x": ONE}, rest[1])
    hand.run_next(batcher)
    for answer in rest:
        await answer.outputs()
    batcher.submit({"x": ONE}, broken)
    batcher.submit({"x": ONE}, rest_two := Answers())
    batcher.close()
    assert isinstance(await rest_two.error(), NotReady)
    assert reported == ["gone", "gone"]


async def test_an_observer_that_raises_harms_nobody() -> None:
    """Counting is not worth an answer."""
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: reported.append(context["message"])
    )
    hand = Hand()

    def observe(_: object) -> None:
        raise ValueError("no such metric")

    batcher = Batcher(double, BatchPolicy(), wake=hand.wake, observe=observe)
    answer = Answers()
    batcher.submit({"x": ONE}, answer)
    hand.run_next(batcher)
    await answer.outputs()
    assert reported == ["an observer failed"]


async def test_a_reply_may_submit_and_cancel() -> None:
    """Replies run in the middle of answering: what they do to the same batcher is safe."""
    hand, seen = Hand(), Observed()
    batcher = make(hand, seen)
    second = Answers()
    again = Answers()

    def reply(*_: object) -> None:
        ticket.cancel()
        batcher.submit({"x": ONE}, again)

    batcher.submit({"x": ONE}, reply)
    ticket = batcher.submit({"x": ONE}, second)
    hand.run_all(batcher)
    await again.outputs()
    assert second.calls == []
    assert_empty(batcher)


async def test_failing_runs_do_not_count_as_fast_ones() -> None:
    """Bad requests fail in no time; that must not make a slow model look fit for the loop."""
    hand = Hand()

    def refuse(inputs: Arrays, control: object) -> list[Array]:
        raise InferenceFailed("bad")

    batcher = Batcher(
        refuse, BatchPolicy(), wake=hand.wake, observe=Observed(), seconds_for=lambda rows: 10.0
    )
    for _ in range(50):
        batcher.submit({"x": ONE}, Answers())
        hand.run_next(batcher)
    assert batcher.seconds_for(1) == 10.0


async def test_runs_of_late_change_what_the_next_should_take() -> None:
    """The profile was made on an idle machine; a hundred runs say what it is like now."""
    hand = Hand()
    batcher = Batcher(
        double, BatchPolicy(), wake=hand.wake, observe=Observed(), seconds_for=lambda rows: 10.0
    )
    for _ in range(100):
        batcher.submit({"x": ONE}, Answers())
        hand.run_next(batcher)
    assert batcher.seconds_for(1) < 0.1


async def test_a_run_now_lets_those_who_wait_go_first() -> None:
    """With a queue it says so and does nothing; without one it runs, replies and is counted."""
    hand, seen = Hand(), Observed()
    batcher = Batcher(double, BatchPolicy(), wake=hand.wake, observe=seen)
    waiting, answers = Answers(), Answers()
    batcher.submit({"x": ONE}, waiting)
    assert not batcher.run_now({"x": ONE}, answers, arrived=0.0, rows=1, requests=1)
    hand.run_all(batcher)
    assert batcher.run_now({"x": ONE}, answers, arrived=0.0, rows=1, requests=3)
    assert (await answers.outputs())[0].tolist() == double({"x": ONE})[0].tolist()
    assert [(ran.rows, ran.requests) for ran in seen.runs] == [(1, 1), (1, 3)]
    assert_empty(batcher)


async def test_a_run_now_that_fails_is_told_and_teaches_nothing() -> None:
    """As with any other run; a closed version takes none."""
    hand, seen = Hand(), Observed()

    def refuse(inputs: Arrays, control: object) -> list[Array]:
        raise InferenceFailed("bad")

    batcher = Batcher(
        refuse, BatchPolicy(), wake=hand.wake, observe=seen, seconds_for=lambda work: 10.0
    )
    answers = Answers()
    assert batcher.run_now({"x": ONE}, answers, arrived=0.0, rows=1, requests=1)
    assert isinstance(await answers.error(), InferenceFailed)
    assert batcher.seconds_for(1) == 10.0
    batcher.close()
    with pytest.raises(NotReady):
        batcher.run_now({"x": ONE}, answers, arrived=0.0, rows=1, requests=1)


async def test_a_bug_in_a_run_now_is_answered() -> None:
    """Whatever it raises, the callers hear that the server failed."""
    hand, seen, answers = Hand(), Observed(), Answers()

    def broken(inputs: Arrays, control: object) -> list[Array]:
        raise ZeroDivisionError

    batcher = Batcher(broken, BatchPolicy(), wake=hand.wake, observe=seen)
    assert batcher.run_now({"x": ONE}, answers, arrived=0.0, rows=1, requests=1)
    assert "the server failed" in str(await answers.error())
