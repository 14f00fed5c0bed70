"""Requests whose rows are along other axes than 0, or that have equal inputs, in one run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cohort.batching import Batcher, BatchPolicy, Key, Outputs, RowPlan
from cohort.batching.policy import MAX_QUEUES
from cohort.batching.row_plan import MAX_SHARED_BYTES
from cohort.row_independence import OutputRows
from cohort.tensors import Array, Arrays
from tests.fakes import ManualScheduler, RecordedEvents, RecordedReply, assert_empty, assert_same

PLAN = RowPlan(
    {"steps": 1, "state": 0, "gain": None},
    [OutputRows(1), OutputRows(0, 2), OutputRows(0, None), None],
)


def recurrent(inputs: Arrays, control: object = None) -> Outputs:
    """A model: steps `[T, N]` and states `[N, 3]` by a gain for all; the gain itself.

    Its outputs are `[T, N]`, two entries a row, as many entries a row as there are steps, and one
    that is the same for all.
    """
    steps, state, gain = (inputs[name].astype(float) for name in ("steps", "state", "gain"))
    sums = state.sum(1)
    return [
        steps * gain + sums,
        np.repeat(sums, 2),
        (steps.T * gain).ravel(),
        np.asarray(gain * 2),
    ]


@dataclass(frozen=True)
class Asked:
    """A generated request."""

    rows: int
    steps: int
    gain: float
    first: int = field(default=1)

    def inputs(self) -> Arrays:
        ends = self.first + self.rows * self.steps
        steps: Array = np.arange(self.first, ends, dtype=float).reshape(self.steps, self.rows)
        state: Array = np.arange(self.rows * 3, dtype=float).reshape(self.rows, 3) + self.first
        return {"steps": steps, "state": state, "gain": np.array(self.gain)}


asked = st.builds(
    Asked,
    rows=st.integers(0, 4),
    steps=st.integers(1, 3),
    gain=st.sampled_from([0.5, 2.0]),
    first=st.integers(1, 1000),
)


async def answers_of(requests: list[Arrays], plan: RowPlan = PLAN) -> RecordedEvents:
    """Run all and compare each answer with the same request's alone."""
    scheduler, seen = ManualScheduler(), RecordedEvents()
    batcher = Batcher(recurrent, BatchPolicy(), wake=scheduler.wake, observe=seen, stacking=plan)
    replies = [RecordedReply() for _ in requests]
    for inputs, reply in zip(requests, replies, strict=True):
        batcher.submit(inputs, reply)
    scheduler.run_all(batcher)
    for inputs, reply in zip(requests, replies, strict=True):
        outputs, error = await reply.once()
        assert error is None
        assert outputs is not None
        for got, expected in zip(outputs, recurrent(inputs), strict=True):
            assert_same(got, expected)
    assert_empty(batcher)
    return seen


@given(requests=st.lists(asked, min_size=1, max_size=12))
async def test_everyone_gets_their_own_rows(requests: list[Asked]) -> None:
    """Whichever axis rows are along, however many a request has, and whatever the gain is."""
    seen = await answers_of([one.inputs() for one in requests])
    assert not seen.off


async def test_requests_of_equal_shared_inputs_share_a_run() -> None:
    """Requests with another gain, or another number of steps, have separate runs."""
    requests = [Asked(1, 2, gain).inputs() for gain in (0.5, 2.0, 0.5, 2.0, 0.5)]
    requests.append(Asked(2, 3, 0.5).inputs())
    seen = await answers_of(requests)
    assert sorted(run.requests for run in seen.runs) == [1, 2, 3]


async def test_texts_are_compared_by_what_they_say() -> None:
    """A shared input may be of any datatype."""
    plan = RowPlan({"x": 0, "language": None}, [OutputRows(0)])
    keys = [
        plan.rows_and_key({"x": np.ones((1, 2)), "language": np.array([one], object)})[1]
        for one in ("de", "fr", "de")
    ]
    assert keys[0] == keys[2] != keys[1]


async def test_a_large_shared_input_is_not_compared() -> None:
    """Its request runs alone: to compare megabytes costs every request as much."""
    plan = RowPlan({"x": 0, "table": None}, [OutputRows(0)])
    for size, shares in ((MAX_SHARED_BYTES, True), (MAX_SHARED_BYTES + 1, False)):
        rows, key = plan.rows_and_key({"x": np.ones((2, 2)), "table": np.zeros(size, np.uint8)})
        assert (key is not None, rows >= 2) == (shares, True)


def test_a_request_of_unequal_sizes_runs_alone() -> None:
    """It runs alone if the proof needs equal sizes or the inputs have different numbers of rows."""
    plan = RowPlan({"a": 0, "b": 0}, [OutputRows(0)], equal_sizes=[[("a", 1), ("b", 1)]])
    for a, b, shares in (((2, 3), (2, 3), True), ((2, 3), (2, 4), False), ((2, 3), (3, 3), False)):
        _, key = plan.rows_and_key({"a": np.ones(a), "b": np.ones(b)})
        assert (key is not None) is shares


def test_the_order_of_inputs_does_not_matter() -> None:
    """Callers of V2 and gRPC may send them in any order."""
    one: Arrays = {"steps": np.ones((1, 2, 3)), "state": np.ones((2, 3)), "gain": np.ones(())}
    other = {name: one[name] for name in ("gain", "state", "steps")}
    assert PLAN.rows_and_key(one) == PLAN.rows_and_key(other)


def test_requests_for_which_nothing_is_proven_run_alone() -> None:
    """Requests of other sizes, or with other values of a shared input, run alone."""
    plan = RowPlan({"x": 0, "rate": None}, [OutputRows(0)])

    def key(length: int, rate: int, rows: int = 1) -> Key:
        return plan.rows_and_key({"x": np.ones((rows, length)), "rate": np.array(rate)})[1]

    plan = replace(plan, only=frozenset([key(4, 16), key(2, 8)]))
    assert key(4, 16) == key(4, 16, rows=3) is not None
    assert key(2, 8) is not None
    assert [key(4, 8), key(2, 16), key(5, 16)] == [None] * 3


def test_an_array_without_the_axis_of_rows_runs_alone() -> None:
    """The runtime refuses it with its own words."""
    assert PLAN.rows_and_key({"steps": np.ones(3), "state": np.ones((3, 3))}) == (3, None)


def test_rows_are_those_along_their_axis_though_a_request_runs_alone() -> None:
    """Rows along axis 0 are not counted, since they would over-estimate the work."""
    alone: Arrays = {"steps": np.ones((128, 2)), "state": np.ones((3, 3)), "gain": np.ones(1 << 17)}
    assert PLAN.rows_and_key(alone) == (3, None)
    assert PLAN.rows_alone(alone) == (3, None)
    assert PLAN.rows_alone({"gain": np.ones(5)}) == (1, None)


def test_queues_hold_no_copies_of_large_shared_inputs() -> None:
    """A digest of each stands for it."""
    plan = RowPlan({"x": 0, "table": None}, [OutputRows(0)])
    keys = [
        plan.rows_and_key({"x": np.ones((1, 2)), "table": np.full(4096, value)})[1]
        for value in (1.0, 2.0, 1.0)
    ]
    assert keys[0] == keys[2] != keys[1]
    assert len(repr(keys[0])) < 500


async def test_requests_of_too_many_kinds_run_alone() -> None:
    """Each decision looks at all queues, of which there is a bounded number."""
    gains = [float(number) for number in range(MAX_QUEUES + 50)]
    requests = [Asked(1, 2, gain).inputs() for gain in gains * 2]
    seen = await answers_of(requests)
    assert sorted({run.requests for run in seen.runs}) == [1, 2]
    assert sum(run.requests == 2 for run in seen.runs) == MAX_QUEUES
