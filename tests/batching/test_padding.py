"""Requests of different lengths in one run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.batching import (
    FIRST_AXIS,
    Batcher,
    BatchPolicy,
    Outputs,
    Padding,
    PadPlan,
    RowCost,
    Stacking,
    plan_padding,
)
from cohort.batching.policy import count_elements
from cohort.errors import InvalidInput
from cohort.tensors import Array, Arrays, TensorSpec
from tests.fakes import ManualScheduler, RecordedEvents, RecordedReply, assert_empty, assert_same

IDS = TensorSpec("ids", "INT64", ("N", "L"))
MASK = TensorSpec("mask", "INT64", ("N", "L"))
EMBEDDING = TensorSpec("embedding", "FP32", ("N", 4))
HIDDEN = TensorSpec("hidden", "FP32", ("N", "L", 4))
PAIRS = TensorSpec("pairs", "FP32", ("N", "L", "L"))


def pad(*names: str, multiple: int = 8, value: float = 0) -> dict[str, Padding]:
    return {name: Padding(axis=1, value=value, multiple=multiple) for name in names}


def masked_mean(inputs: Arrays, control: object = None) -> Outputs:
    """A model: the mean of the unmasked ids per row, each id with its mean, and all products."""
    ids, mask = inputs["ids"].astype(float), inputs["mask"].astype(float)
    if ids.shape != mask.shape:
        raise InvalidInput("ids and mask differ in length")
    if (ids < 0).any():
        raise InvalidInput("poison")
    mean = (ids * mask).sum(1, keepdims=True) / np.maximum(mask.sum(1, keepdims=True), 1)
    return [mean, np.stack([ids, ids - mean], axis=2), ids[:, :, None] * ids[:, None, :]]


PLAN = plan_padding(
    [IDS, MASK],
    [
        TensorSpec("mean", "FP64", ("N", 1)),
        TensorSpec("beside", "FP64", ("N", "L", 2)),
        TensorSpec("products", "FP64", ("N", "L", "L")),
    ],
    pad("ids", "mask"),
)


def text(rows: int, length: int, *, first: int = 1) -> Arrays:
    ids: Array = np.arange(first, first + rows * length).reshape(rows, length)
    return {"ids": ids, "mask": np.ones_like(ids)}


def make(
    scheduler: ManualScheduler, seen: RecordedEvents, plan: Stacking = PLAN, most: int = 32
) -> Batcher:
    policy = BatchPolicy(max_batch_size=most)
    return Batcher(masked_mean, policy, wake=scheduler.wake, observe=seen, stacking=plan)


async def answers_of(requests: list[Arrays], plan: Stacking = PLAN) -> RecordedEvents:
    """Run all and compare each answer with the same request's alone."""
    scheduler, seen = ManualScheduler(), RecordedEvents()
    batcher = make(scheduler, seen, plan)
    answers = [RecordedReply() for _ in requests]
    for inputs, answer in zip(requests, answers, strict=True):
        batcher.submit(inputs, answer)
    scheduler.run_all(batcher)
    for inputs, answer in zip(requests, answers, strict=True):
        for got, expected in zip(await answer.outputs(), masked_mean(inputs), strict=True):
            assert_same(got, expected, 1e-12)
            assert got.flags["C_CONTIGUOUS"]
    assert_empty(batcher)
    return seen


def test_outputs_that_share_the_symbol_follow() -> None:
    """An output's axis is cut back where it carries the padded input's name, on every such axis."""
    plan = plan_padding([IDS, MASK], [EMBEDDING, HIDDEN, PAIRS], pad("ids", "mask"))
    assert plan.reason == ""
    assert {position: list(axes) for position, axes in plan.outputs.items()} == {
        1: [(1, "L")],
        2: [(1, "L"), (2, "L")],
    }


def test_inputs_of_one_symbol_share_their_buckets() -> None:
    """Two multiples for one length become their least common multiple."""
    both = {"ids": Padding(multiple=6), "mask": Padding(multiple=4)}
    assert plan_padding([IDS, MASK], [EMBEDDING], both).multiples == {"L": 12}


def test_no_padding_asked_for_is_no_plan() -> None:
    """Without `pad` the plan is empty and has no reason."""
    assert plan_padding([IDS], [HIDDEN], {}) == PadPlan()


@dataclass(frozen=True)
class Refused:
    """Padding that must not be done, and a word from the reason."""

    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    pad: dict[str, Padding]
    because: str


@pytest.mark.parametrize(
    "case",
    [
        Refused([IDS], [EMBEDDING], pad("idz"), "'idz' not found"),
        Refused([TensorSpec("x", "FP32", None)], [EMBEDDING], pad("x"), "no axis 1"),
        Refused([TensorSpec("x", "FP32", ("N",))], [EMBEDDING], pad("x"), "no axis 1"),
        Refused([IDS], [EMBEDDING], {"ids": Padding(axis=0)}, "no axis 0"),
        Refused([TensorSpec("x", "FP32", ("N", 3))], [EMBEDDING], pad("x"), "the fixed length 3"),
        Refused([IDS, MASK], [EMBEDDING], pad("ids"), "input 'mask' has the length L"),
        Refused([TensorSpec("x", "FP32", ("N", "N"))], [EMBEDDING], pad("x"), "has the length N"),
        Refused([IDS], [TensorSpec("y", "FP32", None)], pad("ids"), "is unknown"),
        Refused([IDS], [TensorSpec("y", "FP32", ("N", None))], pad("ids"), "may or may not follow"),
        Refused([IDS], [TensorSpec("y", "FP32", ("N", "L2"))], pad("ids"), "may or may not follow"),
    ],
    ids=lambda case: case.because,
)
def test_nothing_is_padded_where_it_might_show(case: Refused) -> None:
    """Unless it is certain which outputs follow, requests of different lengths stay apart."""
    plan = plan_padding(case.inputs, case.outputs, case.pad)
    assert case.because in plan.reason
    assert not plan.inputs


def test_an_unnamed_axis_is_padded_where_no_output_can_follow() -> None:
    """Outputs of fixed shape cannot grow, whatever the input's axis is called."""
    plan = plan_padding([TensorSpec("x", "FP32", ("N", None))], [EMBEDDING], pad("x"))
    assert list(plan.inputs) == ["x"]


async def test_lengths_of_one_bucket_run_together_padded_to_the_longest() -> None:
    """Three lengths of the bucket up to 8 make one run 7 long; the share of padding is counted."""
    scheduler, seen = ManualScheduler(), RecordedEvents()
    fed: list[Arrays] = []

    def run(inputs: Arrays, control: object) -> Outputs:
        fed.append(inputs)
        return masked_mean(inputs)

    batcher = Batcher(run, BatchPolicy(), wake=scheduler.wake, observe=seen, stacking=PLAN)
    for length in (3, 5, 7):
        batcher.submit(text(2, length), RecordedReply())
    scheduler.run_all(batcher)
    assert [inputs["ids"].shape for inputs in fed] == [(6, 7)]
    assert fed[0]["ids"][0].tolist() == [1, 2, 3, 0, 0, 0, 0]
    (ran,) = seen.runs
    assert ran.padding == pytest.approx(1 - 30 / 42)


async def test_buckets_are_never_mixed() -> None:
    """8 is the end of its bucket and 9 the start of the next."""
    seen = await answers_of([text(1, 8), text(1, 9), text(1, 7), text(1, 16)])
    assert [ran.requests for ran in seen.runs] == [2, 2]


@pytest.mark.parametrize("lengths", [[5], [5, 5, 5], [8, 8]])
async def test_equal_lengths_are_not_padded(lengths: list[int]) -> None:
    """One request, or several of one length, run as they are."""
    seen = await answers_of([text(1, length) for length in lengths])
    assert [(ran.requests, ran.padding) for ran in seen.runs] == [(len(lengths), 0.0)]


async def test_without_a_plan_lengths_stay_apart() -> None:
    """A model without padding, or with refused padding, runs each length separately."""
    for plan in (FIRST_AXIS, PadPlan(reason="not sure")):
        seen = await answers_of([text(1, 3), text(1, 4), text(1, 3)], plan)
        assert [ran.requests for ran in seen.runs] == [2, 1]


async def test_lengths_that_disagree_within_a_request_run_alone() -> None:
    """A request whose ids and mask differ in length fails alone."""
    scheduler, seen = ManualScheduler(), RecordedEvents()
    batcher = make(scheduler, seen)
    good, bad = RecordedReply(), RecordedReply()
    batcher.submit({"ids": np.ones((1, 3), int), "mask": np.ones((1, 4), int)}, bad)
    batcher.submit(text(1, 4), good)
    scheduler.run_all(batcher)
    assert isinstance(await bad.error(), InvalidInput)
    await good.outputs()
    assert [ran.requests for ran in seen.runs] == [1, 1]


@pytest.mark.parametrize(
    ("ids", "mask", "rows"),
    [((3,), (3,), 3), ((0, 3), (2, 3), 2), ((2, 3), (0, 3), 2), ((), (2, 3), 2)],
    ids=["no axis to pad", "no rows beside some", "rows beside none", "a single number"],
)
def test_shapes_that_cannot_be_padded_run_alone(
    ids: tuple[int, ...], mask: tuple[int, ...], rows: int
) -> None:
    """Such requests run alone, and the model reports their error."""
    assert PLAN.rows_and_key({"ids": np.ones(ids), "mask": np.ones(mask)}) == (rows, None)


async def test_only_the_axis_that_is_asked_for_is_padded() -> None:
    """A later axis is padded next to an unpadded input; rows follow their requests."""
    image, scale = TensorSpec("image", "FP32", ("N", 2, "L")), TensorSpec("scale", "FP32", ("N",))
    scaled = TensorSpec("scaled", "FP32", (None, 2, "L"))
    plan = plan_padding([image, scale], [scaled], {"image": Padding(axis=2, value=-1, multiple=4)})
    fed: list[Arrays] = []

    def run(inputs: Arrays, control: object) -> Outputs:
        fed.append(inputs)
        images, scales = np.asarray(inputs["image"], float), np.asarray(inputs["scale"], float)
        return [images * scales[:, None, None]]

    scheduler, seen = ManualScheduler(), RecordedEvents()
    batcher = Batcher(run, BatchPolicy(), wake=scheduler.wake, observe=seen, stacking=plan)
    sent = [
        (np.full((rows, 2, length), 3.0), np.full(rows, 2.0)) for rows, length in [(1, 2), (2, 4)]
    ]
    answers = [RecordedReply() for _ in sent]
    for (images, scales), answer in zip(sent, answers, strict=True):
        batcher.submit({"image": images, "scale": scales}, answer)
    scheduler.run_all(batcher)
    (feeds,) = fed
    assert np.asarray(feeds["image"])[0].tolist() == [[3, 3, -1, -1]] * 2
    assert np.asarray(feeds["scale"]).tolist() == [2.0] * 3
    for (images, _), answer in zip(sent, answers, strict=True):
        assert_same((await answer.outputs())[0], images * 2)
    assert seen.runs[0].padding == pytest.approx(1 - 20 / 24)


async def test_strings_are_padded_with_empty_ones() -> None:
    """The pad value is a number; a string tensor takes none."""
    words = TensorSpec("words", "BYTES", ("N", "L"))
    plan = plan_padding([words], [TensorSpec("same", "BYTES", ("N", "L"))], pad("words"))
    scheduler = ManualScheduler()

    def same(inputs: Arrays, control: object) -> Outputs:
        assert all(isinstance(word, str) for word in inputs["words"].ravel())
        return [inputs["words"]]

    batcher = Batcher(
        same,
        BatchPolicy(),
        wake=scheduler.wake,
        observe=RecordedEvents(),
        stacking=plan,
    )
    answers = [RecordedReply(), RecordedReply()]
    batcher.submit({"words": np.array([["a", "b"]], object)}, answers[0])
    batcher.submit({"words": np.array([["c"]], object)}, answers[1])
    scheduler.run_next(batcher)
    assert [(await one.outputs())[0].tolist() for one in answers] == [[["a", "b"]], [["c"]]]


async def test_an_output_that_breaks_its_promise_turns_batching_off() -> None:
    """A model that breaks its promise of one vector per word serves each request alone."""
    scheduler, seen = ManualScheduler(), RecordedEvents()

    def halves(inputs: Arrays, control: object) -> Outputs:
        return [inputs["ids"][:, ::2]]

    plan = plan_padding([IDS], [TensorSpec("y", "INT64", ("N", "L"))], pad("ids"))
    batcher = Batcher(halves, BatchPolicy(), wake=scheduler.wake, observe=seen, stacking=plan)
    answers = [RecordedReply(), RecordedReply()]
    batcher.submit({"ids": np.array([[1, 2, 3]])}, answers[0])
    batcher.submit({"ids": np.array([[4, 5]])}, answers[1])
    scheduler.run_all(batcher)
    assert [(await one.outputs())[0].tolist() for one in answers] == [[[1, 3]], [[4]]]
    assert "padded to L = 3" in seen.off[0]


requests = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 20), st.booleans()), min_size=1, max_size=20
)


@given(requests, st.sampled_from([1, 4, 8, 16]), st.integers(2, 12), st.integers(-3, 3))
async def test_nobody_sees_padding(
    sizes: list[tuple[int, int, bool]], multiple: int, most: int, value: int
) -> None:
    """Any lengths, rows, buckets and poison: answers equal those of each request run alone."""
    plan = plan_padding(
        [IDS, MASK],
        [
            TensorSpec("mean", "FP64", ("N", 1)),
            TensorSpec("beside", "FP64", ("N", "L", 2)),
            TensorSpec("products", "FP64", ("N", "L", "L")),
        ],
        {"ids": Padding(1, max(value, 0), multiple), "mask": Padding(1, 0, multiple)},
    )
    scheduler, seen = ManualScheduler(), RecordedEvents()
    batcher = make(scheduler, seen, plan, most)
    sent = []
    for number, (rows, length, poison) in enumerate(sizes):
        inputs = text(rows, length, first=1000 * number + 1)
        bad = poison and inputs["ids"].size > 0
        if bad:
            inputs["ids"][0, 0] = -1
        answer = RecordedReply()
        batcher.submit(inputs, answer)
        sent.append((inputs, answer, bad))
    scheduler.run_all(batcher)
    for inputs, answer, bad in sent:
        if bad:
            assert isinstance(await answer.error(), InvalidInput)
            continue
        for got, expected in zip(await answer.outputs(), masked_mean(inputs), strict=True):
            assert_same(got, expected, 1e-12)
    assert all(0 <= ran.padding < 1 for ran in seen.runs)
    assert_empty(batcher)


@pytest.mark.parametrize(
    ("rows", "length", "relative"), [(1, 16, 2.0), (2, 16, 2.0), (2, 9, 2.0), (1, 0, 0.0)]
)
async def test_length_of_rows_is_counted_in_rows_as_profiled(
    rows: int, length: int, relative: float
) -> None:
    """All inputs count, up to the end of the bucket: a short head may run with longer ones."""
    batcher = Batcher(
        masked_mean,
        BatchPolicy(),
        wake=ManualScheduler().wake,
        observe=RecordedEvents(),
        stacking=PLAN,
        row_cost=RowCost(count_elements(text(1, 8)), 8),
    )
    ticket = batcher.submit(text(rows, length), RecordedReply())
    assert ticket.length == relative
    assert batcher.seconds_for(0.0) > 0


async def test_requests_without_rows_are_of_usual_length() -> None:
    """A request without rows has no length to count."""
    row_cost = RowCost(16, 8)
    batcher = Batcher(
        masked_mean,
        BatchPolicy(),
        wake=ManualScheduler().wake,
        observe=RecordedEvents(),
        row_cost=row_cost,
    )
    assert batcher.submit(text(0, 8), RecordedReply()).length == 1.0
