"""Effects of one request on the others when its run fails."""

from __future__ import annotations

from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.batching import Batcher, BatchPolicy, Outputs, Run
from cohort.errors import CohortError, InferenceFailed, InvalidInput
from cohort.tensors import Arrays
from tests.fakes import ManualScheduler, RecordedEvents, RecordedReply, assert_empty, double

POISON = -1.0


def poisoned(inputs: Arrays, control: object = None) -> Outputs:
    """Doubles, and refuses a run with a poisoned row."""
    if (inputs["x"] == POISON).any():
        raise InvalidInput("poison")
    return double(inputs)


async def answers_of(
    run: Run, values: list[float]
) -> tuple[list[float | CohortError], RecordedEvents]:
    scheduler, seen = ManualScheduler(), RecordedEvents()
    batcher = Batcher(run, BatchPolicy(max_batch_size=64), wake=scheduler.wake, observe=seen)
    answers = [RecordedReply() for _ in values]
    for value, answer in zip(values, answers, strict=True):
        batcher.submit({"x": np.array([[value]])}, answer)
    scheduler.run_all(batcher)
    assert_empty(batcher)
    got: list[float | CohortError] = []
    for answer in answers:
        outputs, error = await answer.once()
        if error is not None:
            got.append(error)
        else:
            assert outputs is not None
            got.append(np.asarray(outputs[0], float).item())
    return got, seen


@pytest.mark.parametrize("requests", [2, 3, 7, 8, 31, 32, 64])
@pytest.mark.parametrize("at", ["first", "middle", "last"])
async def test_poisoned_request_fails_alone(requests: int, at: str) -> None:
    """The caller of the one bad input gets the error, in a number of runs that grows by log2."""
    values = [float(i) for i in range(requests)]
    culprit = {"first": 0, "middle": requests // 2, "last": requests - 1}[at]
    values[culprit] = POISON
    got, seen = await answers_of(poisoned, values)
    assert isinstance(got.pop(culprit), InvalidInput)
    assert got == [2 * value for value in values if value != POISON]
    assert len(seen.runs) <= 1 + 2 * ceil(log2(requests))


@given(st.lists(st.booleans(), min_size=1, max_size=40))
async def test_any_number_of_poisoned_requests_fails_alone(bad: list[bool]) -> None:
    """All others are answered, whichever and however many are bad, in at most 2n - 1 runs."""
    values = [POISON if one else float(i) for i, one in enumerate(bad)]
    got, seen = await answers_of(poisoned, values)
    for one, value, answer in zip(bad, values, got, strict=True):
        assert isinstance(answer, InvalidInput) if one else answer == 2 * value
    assert len(seen.runs) <= 2 * len(bad) - 1
    assert sum(len(ran.waits) for ran in seen.runs) == len(bad)


async def test_inference_that_blames_the_input_is_retried_in_parts() -> None:
    """ONNX Runtime's own failures during a run may be one caller's fault as well."""

    def run(inputs: Arrays, control: object) -> Outputs:
        if (inputs["x"] == POISON).any():
            raise InferenceFailed("index out of bounds")
        return double(inputs)

    got, _ = await answers_of(run, [1.0, POISON, 3.0])
    assert got[::2] == [2.0, 6.0]
    assert isinstance(got[1], InferenceFailed)


async def test_inference_that_blames_the_device_is_not_retried() -> None:
    """A retry after lost memory or a lost device would make it worse: all callers get the error."""

    def run(inputs: Arrays, control: object) -> Outputs:
        raise InferenceFailed("out of memory", blames_input=False)

    got, seen = await answers_of(run, [1.0, 2.0, 3.0])
    assert [str(one) for one in got] == ["out of memory"] * 3
    assert len(seen.runs) == 1


async def test_a_bug_of_ours_answers_everyone() -> None:
    """An unexpected exception does not reach a caller as it is, and every caller is answered."""

    def run(inputs: Arrays, control: object) -> Outputs:
        raise ZeroDivisionError("/home/me/secret.py")

    got, seen = await answers_of(run, [1.0, 2.0, 3.0])
    assert all(isinstance(one, InferenceFailed) and not one.blames_input for one in got)
    assert not any("secret" in str(one) for one in got)
    assert len(seen.runs) == 1


async def test_a_bug_in_a_part_of_a_run_leaves_those_before_their_answers() -> None:
    """Callers whose runs had ended keep the outputs; all others get one error each."""

    def run(inputs: Arrays, control: object) -> Outputs:
        if len(inputs["x"]) > 1:
            raise InvalidInput("one of these")
        if (inputs["x"] == POISON).any():
            raise ZeroDivisionError
        return double(inputs)

    got, _ = await answers_of(run, [1.0, 2.0, POISON, 4.0])
    assert got[:2] == [2.0, 4.0]
    assert [type(one) for one in got[2:]] == [InferenceFailed] * 2


async def test_a_control_that_cannot_be_made_answers_everyone() -> None:
    """An error before the run also answers every caller."""
    scheduler = ManualScheduler()

    def make_control() -> None:
        raise MemoryError

    batcher = Batcher(
        double,
        BatchPolicy(),
        wake=scheduler.wake,
        observe=RecordedEvents(),
        make_control=make_control,
    )
    answer = RecordedReply()
    batcher.submit({"x": np.ones((1, 1))}, answer)
    scheduler.run_next(batcher)
    assert isinstance(await answer.error(), InferenceFailed)
    assert_empty(batcher)


def row_sum(inputs: Arrays, control: object = None) -> Outputs:
    """One number per row together with one number for all: the second does not follow the rows."""
    x = np.asarray(inputs["x"], float)
    return [x * 2, x.sum(keepdims=True)[0]]


def row_scalar(inputs: Arrays, control: object = None) -> Outputs:
    """The same, and the second is not even an array with an axis."""
    x = np.asarray(inputs["x"], float)
    return [x * 2, np.array(x.sum())]


def row_sequence(inputs: Arrays, control: object = None) -> Outputs:
    """A sequence where a tensor is expected."""
    x = np.asarray(inputs["x"], float)
    return [x * 2, list(x[:, 0])]  # type: ignore[list-item]


@pytest.mark.parametrize("run", [row_sum, row_scalar, row_sequence])
async def test_outputs_that_do_not_follow_the_rows_turn_batching_off(run: Run) -> None:
    """Each caller gets the right answer alone; the observer is notified once; sharing ends."""
    scheduler, seen = ManualScheduler(), RecordedEvents()
    batcher = Batcher(run, BatchPolicy(), wake=scheduler.wake, observe=seen)
    for turn in range(2):
        answers = [RecordedReply() for _ in range(4)]
        for value, answer in enumerate(answers):
            batcher.submit({"x": np.array([[float(value)]])}, answer)
        scheduler.run_all(batcher)
        for value, answer in enumerate(answers):
            doubled, rest = await answer.outputs()
            assert (float(doubled[0, 0]), float(np.ravel(rest)[0])) == (2.0 * value, value), turn
    assert len(seen.off) == 1
    assert "output 1" in seen.off[0]
    assert not batcher.policy.batches
    assert [ran.requests for ran in seen.runs] == [4, *[1] * 8]
    assert_empty(batcher)


async def test_those_queued_when_batching_is_turned_off_run_alone() -> None:
    """Requests that waited under a shared key before are not run together after."""
    scheduler, seen = ManualScheduler(), RecordedEvents()
    batcher = Batcher(row_sum, BatchPolicy(max_batch_size=2), wake=scheduler.wake, observe=seen)
    answers = [RecordedReply() for _ in range(6)]
    for value, answer in enumerate(answers):
        batcher.submit({"x": np.array([[float(value)]])}, answer)
    scheduler.run_all(batcher)
    for value, answer in enumerate(answers):
        assert float((await answer.outputs())[1][0]) == value
    assert [ran.requests for ran in seen.runs] == [2, 1, 1, 1, 1, 1, 1]
