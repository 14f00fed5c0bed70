"""Runs of all sizes compared with each row alone, to the bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.batching import Outputs, RowPlan
from cohort.errors import InferenceFailed
from cohort.profiling.exactness import Exactness, RoundingKernel, try_bits
from cohort.row_independence import ALIGNMENT, OutputRows
from cohort.tensors import Array, Arrays, TensorSpec

OUTPUTS = [TensorSpec("y", "FP32", (None, 3))]
MOST = 9
REQUESTS: list[Arrays] = [{"x": np.full((1, 3), value, np.float32)} for value in (1.0, 2.5, -3.0)]


def a_little_more(values: Array) -> Array:
    return np.asarray(np.nextafter(values, np.float32(np.inf)))


def try_model(model: Callable[[Array], Array], **more: object) -> Exactness:
    def run(feeds: Arrays) -> Outputs:
        return [model(feeds["x"])]

    return try_bits(run, REQUESTS, OUTPUTS, most=MOST, **more)  # type: ignore[arg-type]


def otherwise_alone(x: Array) -> Array:
    return a_little_more(x) if len(x) == 1 else x


def test_a_model_that_rounds_alike_at_every_size_is_exact() -> None:
    """All sizes up to the maximum are tried, and no minimum is needed."""
    assert try_model(lambda x: x * 2) == Exactness(1, "", tuple(range(2, MOST + 1)))


def test_one_that_rounds_a_lone_row_otherwise_is_exact_from_two_rows_on() -> None:
    """A lone row is to run as two."""
    found = try_model(otherwise_alone)
    assert (found.least_rows, found.reason) == (
        2,
        "here output 'y' of a row differs by up to 2.4e-07 in a run of 2 rows",
    )


@given(place=st.integers(0, MOST - 1), size=st.integers(2, MOST))
def test_any_place_in_a_run_of_any_size_shows(place: int, size: int) -> None:
    """A single row that gets one bit more in runs of one size is enough, wherever it is."""

    def model(x: Array) -> Array:
        y = x.copy()
        if len(x) == size:
            y[place % size] = a_little_more(x[place % size])
        return y

    assert try_model(model).least_rows == 0


def test_where_sizes_choose_kernels_runs_of_one_size_are_exact() -> None:
    """Those of the most rows, on devices that do so."""

    def model(x: Array) -> Array:
        return np.multiply(x, np.float32(1 + len(x) * 1e-6))

    assert try_model(model).least_rows == 0
    assert try_model(model, one_size=True).least_rows == MOST


def test_what_kernels_are_known_for_counts_though_nothing_was_seen() -> None:
    """Other values may show it; the node is named."""
    alone = RoundingKernel("ReduceSum (inner axes)", "alone", 3e-6, "ReduceSum 'sum'")
    place = RoundingKernel("Log (unaligned)", "place", 1e-7, "Log 'log'")
    assert try_model(lambda x: x, known=[alone]).least_rows == 2
    found = try_model(lambda x: x, known=[place, alone])
    assert (found.least_rows, found.reason) == (
        0,
        "Log 'log' rounds a row by its place in a run (up to 1e-07 of a value in other models)",
    )


def test_a_kernel_that_rounds_by_address_needs_inputs_at_the_beginning_of_a_vector() -> None:
    """It is exact with them, and not exact otherwise."""
    address = RoundingKernel("ReduceSum", "address", 1e-6, "ReduceSum 'sum'")
    found = try_model(lambda x: x, known=[address])
    assert (found.least_rows, found.only_aligned) == (1, True)
    assert found.reason == str(address)


def test_every_run_is_of_inputs_that_begin_where_a_vector_does() -> None:
    """Requests under `batching.exact` do so as well."""
    begins = []

    def model(x: Array) -> Array:
        begins.append(x.ctypes.data % ALIGNMENT)
        return x

    try_model(model)
    assert not any(begins)


def test_zero_and_minus_zero_are_other_bits_and_nan_is_nan() -> None:
    """A NaN has many forms, which JSON does not distinguish."""
    negative = np.float32(-0.0)
    assert try_model(lambda x: x * 0 if len(x) == 1 else np.abs(x) * negative).least_rows == 2
    nan = np.float32(np.nan)
    assert try_model(lambda x: np.multiply(x, nan if len(x) == 1 else -nan)).least_rows == 1


def test_a_model_that_fails_on_several_rows_is_not_exact() -> None:
    """A model whose outputs do not follow its inputs is not exact either."""

    def fails(x: Array) -> Array:
        if len(x) > 1:
            raise InferenceFailed("no room")
        return x

    assert try_model(fails).reason == "a run of 2 rows failed: no room"
    assert try_model(lambda x: x[:1]).least_rows == 0


def test_the_output_that_differs_most_is_named() -> None:
    """The size of the difference is given; texts have no distance."""

    def run(feeds: Arrays) -> Outputs:
        x, alone = feeds["x"], len(feeds["x"]) == 1
        little = a_little_more(x) if alone else x
        much = np.add(x, np.float32(0.5)) if alone else x
        return [little, much, np.full(len(x), str(alone), object)]

    specs = [*OUTPUTS, TensorSpec("z", "FP32", (None, 3)), TensorSpec("t", "BYTES", (None,))]
    found = try_bits(run, REQUESTS, specs, most=4)
    assert found.reason == "here output 'z' of a row differs by up to 0.5 in a run of 2 rows"


def test_only_requests_of_one_row_that_may_share_a_run_are_tried() -> None:
    """An example may have several rows, or inputs of different numbers of them."""
    seen = []

    def run(feeds: Arrays) -> Outputs:
        seen.append(len(feeds["x"]))
        return [feeds["x"]]

    several: Arrays = {"x": np.ones((3, 3), np.float32)}
    uneven: Arrays = {"x": np.ones((1, 3), np.float32), "z": np.ones((2, 1), np.float32)}
    assert try_bits(run, [several, uneven], OUTPUTS, most=2).least_rows == 0
    assert seen == []


def test_nothing_is_promised_where_no_request_could_be_run() -> None:
    """No request of one row that may share a run could be run."""
    found = try_bits(lambda feeds: list(feeds.values()), [], OUTPUTS, most=4)
    assert found == Exactness(0, "all of its requests failed")


def test_rows_along_another_axis_are_joined_and_cut_there() -> None:
    """They are joined as those of requests."""
    plan = RowPlan({"x": 1}, [OutputRows(1)])

    def run(feeds: Arrays) -> Outputs:
        x = feeds["x"]
        return [a_little_more(x) if x.shape[1] == 1 else x]

    requests: list[Arrays] = [{"x": np.full((2, 1), value, np.float32)} for value in (1.0, 2.0)]
    assert try_bits(run, requests, OUTPUTS, most=5, stacking=plan).least_rows == 2


def test_no_more_sizes_are_tried_once_nothing_helps() -> None:
    """They would cost time for nothing."""
    found = try_model(lambda x: a_little_more(x) if len(x) > 2 else otherwise_alone(x))
    assert (found.least_rows, found.sizes) == (0, (2, 3, MOST))


def test_few_requests_are_tried_where_answers_are_large() -> None:
    """Those alone are held as long as the trial takes."""
    alone = []

    def run(feeds: Arrays) -> Outputs:
        x = feeds["x"]
        if len(x) == 1:
            alone.append(float(x[0, 0]))
        return [np.broadcast_to(x[:, :1], (len(x), 5 << 20))]

    found = try_bits(run, REQUESTS, OUTPUTS, most=2)
    assert (found.least_rows, set(alone)) == (1, {1.0})


def test_the_time_is_bounded_but_for_a_few_sizes() -> None:
    """After the time limit, only runs of two, three and the maximum rows are tried."""
    clock = iter(range(0, 10_000, 10))

    def run(feeds: Arrays) -> Outputs:
        return [feeds["x"]]

    found = try_bits(run, REQUESTS, OUTPUTS, most=64, clock=lambda: float(next(clock)))
    assert found == Exactness(1, "", (2, 3, 64))


@pytest.mark.parametrize("most", [2, 33, 100, 130])
def test_sizes_around_powers_of_two_are_tried(most: int) -> None:
    """All smaller sizes, the largest one and its neighbour are tried as well."""
    sizes = set()

    def run(feeds: Arrays) -> Outputs:
        sizes.add(len(feeds["x"]))
        return [feeds["x"]]

    try_bits(run, REQUESTS, OUTPUTS, most=most)
    expected = {*range(1, min(most, 32) + 1), most, most - 1}
    expected |= {n for p in (64, 128) if p <= most for n in (p - 1, p, p + 1) if n <= most}
    assert sizes == expected


def test_lengths_that_the_model_refuses_are_left_out() -> None:
    """Lengths of a trial are made up; a request that fails alone proves nothing."""

    def run(feeds: Arrays) -> Outputs:
        if feeds["x"].shape[1] != 3:
            raise InferenceFailed("of this length there are none")
        return [feeds["x"]]

    others: list[Arrays] = [{"x": np.ones((1, 7), np.float32)}]
    assert try_bits(run, [*others, *REQUESTS], OUTPUTS, most=4).least_rows == 1
