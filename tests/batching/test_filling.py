"""Runs that always have the same number of rows, for devices where a change of it is slow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.batching import Batcher, BatchPolicy, FilledRuns, Outputs, RowPlan, aligned_runs
from cohort.errors import InferenceFailed
from cohort.row_independence import ALIGNMENT, OutputRows
from cohort.tensors import Array, Arrays
from tests.fakes import ManualScheduler, RecordedEvents, RecordedReply, assert_same

VALUES = {
    "numbers": np.arange(120, dtype=np.float32).reshape(40, 3),
    "text": np.array([str(number) for number in range(40)], object),
    "bytes": np.array([bytes([number, 255]) for number in range(40)], "V2"),
}


class Device:
    """Runs a model that gives its inputs back, and notes the rows of each run."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.controls: list[object] = []

    def run(self, feeds: Arrays, control: object = None) -> Outputs:
        self.rows.append(max(len(array) for array in feeds.values()))
        self.controls.append(control)
        return list(feeds.values())


@given(own=st.integers(1, 40), rows=st.integers(2, 40))
def test_runs_are_filled_up_and_callers_see_their_own_rows(own: int, rows: int) -> None:
    """A run has the set number of rows, or the caller's if that is more, for all datatypes."""
    device = Device()
    feeds = {name: array[:own] for name, array in VALUES.items()}
    outputs = FilledRuns(device.run, rows).run(feeds, "control")
    assert (device.rows, device.controls) == ([max(own, rows)], ["control"])
    for output, array in zip(outputs, feeds.values(), strict=True):
        assert_same(output, array)
        assert output.flags.c_contiguous


def test_the_rows_that_fill_up_are_the_last_one() -> None:
    """One that the model takes: it cannot fail for them where it does not for the request."""
    seen: list[Array] = []

    def run(feeds: Arrays, control: object) -> Outputs:
        seen.append(feeds["x"])
        return [feeds["x"]]

    FilledRuns(run, 4).run({"x": np.array([[1.0], [2.0]])}, None)
    assert seen[0].tolist() == [[1.0], [2.0], [2.0], [2.0]]


@pytest.mark.parametrize(
    "feeds",
    [
        {"x": np.zeros((0, 3))},
        {"x": np.zeros((8, 3))},
        {"x": np.zeros((2, 3)), "y": np.zeros((3, 3))},
        {"x": np.zeros((2, 3)), "y": np.float32(1)},
        {"x": np.float32(1)},
        {},
    ],
)
def test_inputs_with_nothing_to_fill_up_are_left_alone(feeds: Arrays) -> None:
    """They have enough rows, no rows, no elements, or different numbers of rows."""
    found: list[Arrays] = []

    def run(given: Arrays, control: object) -> Outputs:
        found.append(given)
        return [np.zeros(1)]

    feeds = {name: np.asarray(array) for name, array in feeds.items()}
    FilledRuns(run, 8).run(feeds, None)
    assert found == [feeds]
    assert found[0] is feeds


def test_outputs_that_do_not_follow_end_it() -> None:
    """Such a request is run again as it is, and later ones are not filled up at all."""
    rows: list[int] = []

    def total(feeds: Arrays, control: object) -> Outputs:
        rows.append(len(feeds["x"]))
        return [np.sum(feeds["x"], axis=0, keepdims=True)]

    run = FilledRuns(total, 4).run
    assert run({"x": np.ones((2, 1))}, None)[0].tolist() == [[2.0]]
    assert run({"x": np.ones((3, 1))}, None)[0].tolist() == [[3.0]]
    assert rows == [4, 2, 3]


def test_the_errors_of_a_run_are_its_own() -> None:
    """Errors of a run are raised unchanged."""

    def fail(feeds: Arrays, control: object) -> Outputs:
        raise InferenceFailed("no")

    with pytest.raises(InferenceFailed, match="no"):
        FilledRuns(fail, 4).run({"x": np.ones((2, 1))}, None)


async def test_a_batcher_counts_the_rows_of_requests() -> None:
    """Metrics count the requests' rows in batches and in lone requests, without the filling."""
    device, events, scheduler = Device(), RecordedEvents(), ManualScheduler()
    batcher = Batcher(
        FilledRuns(device.run, 8).run, BatchPolicy(8), wake=scheduler.wake, observe=events
    )
    replies = [RecordedReply() for _ in range(4)]
    for count, reply in enumerate(replies, start=1):
        batcher.submit({"x": np.full((count, 2), float(count))}, reply)
    scheduler.run_all(batcher)
    for count, reply in enumerate(replies, start=1):
        (output,) = await reply.outputs()
        assert output.tolist() == [[count, count]] * count
    assert set(device.rows) == {8}
    assert sum(ran.rows for ran in events.runs) == 1 + 2 + 3 + 4


def test_rows_along_another_axis_are_filled_up_there() -> None:
    """An input without rows stays as it is."""
    seen: list[Arrays] = []

    def run(feeds: Arrays, control: object) -> Outputs:
        seen.append(feeds)
        return [np.add(feeds["x"], feeds["all"])]

    plan = RowPlan({"x": 1, "all": None}, [OutputRows(1)])
    given = {"x": np.array([[1.0, 2.0], [3.0, 4.0]]), "all": np.array(10.0)}
    (output,) = FilledRuns(run, 3, plan).run(given, None)
    assert seen[0]["x"].tolist() == [[1.0, 2.0, 2.0], [3.0, 4.0, 4.0]]
    assert output.tolist() == [[11.0, 12.0], [13.0, 14.0]]


@given(offset=st.integers(0, 64), size=st.integers(1, 9))
def test_aligned_runs_get_the_same_values_where_a_vector_begins(offset: int, size: int) -> None:
    """The values are equal at any address; aligned arrays are not copied."""
    room = np.zeros(256, np.uint8)
    x = room[offset : offset + size].view()
    texts = np.array(["a", "b"], object)
    run = aligned_runs(lambda feeds, control: [feeds["x"], feeds["t"]])
    same, kept = run({"x": x, "t": texts}, None)
    assert_same(same, x)
    assert same.ctypes.data % ALIGNMENT == 0
    assert kept is texts
    assert (same is x) is (x.ctypes.data % ALIGNMENT == 0)
