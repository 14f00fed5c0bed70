"""The most bytes of outputs that a request may get."""

from __future__ import annotations

import numpy as np
import pytest

from cohort.batching import Batcher, BatchPolicy, OutputLimit, Outputs, limit_outputs
from cohort.errors import InvalidInput
from cohort.tensors import Arrays, TensorSpec
from tests.fakes import ManualScheduler, RecordedEvents, RecordedReply

X = TensorSpec("x", "FP32", ("N", 3))


@pytest.mark.parametrize(
    ("outputs", "limit"),
    [
        ([TensorSpec("y", "FP32", ("N", 5))], OutputLimit(100, max_rows=5)),
        (
            [TensorSpec("y", "FP32", ("N", 5)), TensorSpec("z", "INT64", ("N",))],
            OutputLimit(100, max_rows=3),
        ),
        ([TensorSpec("y", "FP32", ("M", 5))], OutputLimit(100, measured=True)),
        ([TensorSpec("y", "FP32", (None, 5))], OutputLimit(100, measured=True)),
        ([TensorSpec("y", "FP32", ("N", None))], OutputLimit(100, measured=True)),
        ([TensorSpec("y", "FP32", None)], OutputLimit(100, measured=True)),
        ([TensorSpec("y", "BYTES", ("N", 1))], OutputLimit(100, measured=True)),
        ([TensorSpec("y", "seq(tensor(float))", None)], OutputLimit(100)),
    ],
)
def test_rows_tell_the_size_where_outputs_have_the_inputs_rows(
    outputs: list[TensorSpec], limit: OutputLimit
) -> None:
    """Otherwise it is measured after the run."""
    assert limit_outputs([X], outputs, 100) == limit


def repeat(inputs: Arrays, control: object) -> Outputs:
    """Return as many ones in each row as the input's largest value."""
    x = inputs["x"]
    return [np.ones((len(x), int(x.max())), "f4")]


def make(limit: OutputLimit, ran: list[int]) -> tuple[Batcher, ManualScheduler]:
    def run(inputs: Arrays, control: object) -> Outputs:
        ran.append(len(inputs["x"]))
        return repeat(inputs, control)

    scheduler = ManualScheduler()
    batcher = Batcher(
        run, BatchPolicy(), wake=scheduler.wake, observe=RecordedEvents(), output_limit=limit
    )
    return batcher, scheduler


async def test_too_many_rows_are_refused_before_they_run() -> None:
    """The error contains the number of rows that fits."""
    ran: list[int] = []
    batcher, scheduler = make(OutputLimit(2**20, max_rows=40), ran)
    reply, fine = RecordedReply(), RecordedReply()
    batcher.submit({"x": np.ones((41, 1))}, reply)
    batcher.submit({"x": np.ones((40, 1))}, fine)
    scheduler.run_all(batcher)
    error = await reply.error()
    assert isinstance(error, InvalidInput)
    assert str(error) == (
        "the outputs of 41 rows would take more than 1 MB (max_output_mb); send at most 40 rows"
    )
    await fine.outputs()
    assert ran == [40]


async def test_outputs_that_are_too_large_are_refused_to_their_caller_only() -> None:
    """A request of the same batch gets its own."""
    batcher, scheduler = make(OutputLimit(2**20, measured=True), [])
    reply, fine = RecordedReply(), RecordedReply()
    batcher.submit({"x": np.full((3, 1), 2**17)}, reply)
    batcher.submit({"x": np.full((1, 1), 2**17)}, fine)
    scheduler.run_all(batcher)
    assert str(await reply.error()) == "the outputs take 1.5 MB, more than 1 MB (max_output_mb)"
    assert (await fine.outputs())[0].nbytes == 2**19
