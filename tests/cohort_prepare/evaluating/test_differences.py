"""How far outputs are apart, whatever is in them and however it is cut into runs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from cohort.comparing import Pair
from cohort.tensors import Array
from cohort_prepare.evaluating.differences import Differences, largest, measure_pairs, measure_rows

anything = arrays(np.float32, (4, 3), elements=st.floats(width=32))
ordinary = arrays(np.float64, (4, 3), elements=st.floats(-1e6, 1e6).map(lambda x: round(x, 3)))


def differences(*pairs: tuple[Array, Array]) -> Differences:
    found = Differences()
    for one, other in pairs:
        found.add(measure_rows(one, other))
    return found


@given(arrays(np.float32, array_shapes(min_dims=0, min_side=0), elements=st.floats(width=32)))
def test_what_is_the_same_does_not_differ(array: Array) -> None:
    """An array of any shape, with NaN, infinities, zeros or no elements, equals its copy."""
    found = differences((array, array.copy()))
    assert (found.values, found.unequal, found.noise) == (array.size, 0, 0)
    assert (found.max_absolute, found.max_relative) == (0, 0)
    assert (found.cosine, found.least_cosine) == (1, 1)
    assert found.row_cosine == pytest.approx(1)
    assert found.argmax_agreement in {None, 1}


@given(anything, anything)
def test_it_does_not_matter_which_comes_first(one: Array, other: Array) -> None:
    """All figures are equal, except those of the first one's size."""
    there, back = differences((one, other)), differences((other, one))
    for figure in ("unequal", "max_absolute", "max_relative", "argmax_same", "noise", "cosine"):
        assert getattr(there, figure) == getattr(back, figure), figure


@given(ordinary, ordinary, st.integers(1, 3))
def test_it_does_not_matter_how_rows_are_cut_into_runs(one: Array, other: Array, cut: int) -> None:
    """Two runs give what one gives."""
    whole = differences((one, other))
    parts = differences((one[:cut], other[:cut]), (one[cut:], other[cut:]))
    for figure in ("values", "unequal", "max_absolute", "max_relative", "argmax_same"):
        assert getattr(whole, figure) == getattr(parts, figure), figure
    for figure in ("noise", "power", "cosine", "row_cosine", "least_cosine"):
        assert getattr(whole, figure) == pytest.approx(getattr(parts, figure)), figure


@given(ordinary, ordinary, st.sampled_from([0.25, 8.0, 1024.0]))
def test_directions_do_not_depend_on_size(one: Array, other: Array, factor: float) -> None:
    """A cosine is between -1 and 1, and that of the same numbers on another scale."""
    found, scaled = differences((one, other)), differences((one, other * factor))  # type: ignore[operator]
    assert found.cosine is not None
    assert -1 <= found.least_cosine <= 1
    assert found.cosine == pytest.approx(scaled.cosine)
    assert found.row_cosine == pytest.approx(scaled.row_cosine)


def test_all_zeros_have_no_direction_but_their_own() -> None:
    """The cosine of zeros and zeros is 1, of zeros and numbers 0, in a row and in all together."""
    zeros, ones = np.zeros((2, 3)), np.ones((2, 3))
    assert differences((zeros, zeros)).cosine == 1
    broken = differences((ones, zeros))
    assert (broken.cosine, broken.row_cosine, broken.least_cosine) == (0, 0, 0)
    assert differences((np.stack([ones[0], zeros[0]]), ones)).row_cosine == 0.5


def test_single_numbers_have_a_direction_together() -> None:
    """One number for each row always points where another of its sign does; the column does not."""
    one, other = np.array([[1.0], [2.0], [3.0]]), np.array([[3.0], [0.1], [0.1]])
    found = differences((one, other))
    assert found.row_cosine == found.cosine
    assert found.row_cosine == pytest.approx(3.5 / np.sqrt(14 * 9.02))
    assert differences((one[:, 0], other[:, 0])).row_cosine == found.row_cosine


def test_numbers_beyond_all_squares_do_no_harm() -> None:
    """What is equal stays equal; else there is no direction, and no NaN either."""
    large = np.full((2, 3), 1e100)
    assert differences((large, 2 * large)).cosine == pytest.approx(1)
    huge = np.full((2, 3), 1e300)
    assert differences((huge, huge)).cosine == 1
    assert differences((huge, -huge)).cosine == 0
    assert differences((huge, np.ones((2, 3)))).row_cosine == 0


def test_one_sided_nan_is_infinitely_far_and_of_another_argmax() -> None:
    """A number on one side only is not a small difference, wherever the largest score is."""
    one, other = np.array([[1.0, 2.0, 0.5]]), np.array([[1.0, 2.0, -np.inf]])
    found = differences((one, other))
    assert (found.max_absolute, found.max_relative) == (np.inf, np.inf)
    assert (found.argmax_same, found.argmax_of) == (0, 1)
    assert (found.cosine, found.noise) == (1, 0)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_short_floats_are_measured_as_long_ones(dtype: type) -> None:
    """The difference of the largest and the least of them does not overflow."""
    most = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    found = differences((np.array([[most, 1]], dtype), np.array([[-most, 1]], dtype)))
    assert found.max_absolute == 2 * most
    assert (found.argmax_same, found.argmax_of) == (0, 1)


def test_what_is_no_float_is_counted_and_has_no_distance() -> None:
    """How far two labels are apart means nothing: neither that of integers at their ends."""
    for one, other in (
        (np.array([0, 2**63 - 1]), np.array([0, -(2**63)])),
        (np.array([1, 0], np.uint8), np.array([1, 255], np.uint8)),
        (np.array([True, False]), np.array([True, True])),
        (np.array(["a", "b"], object), np.array(["a", "c"], object)),
    ):
        found = differences((one, other))
        assert (found.values, found.finite, found.unequal) == (2, 2, 1)
        assert (found.max_absolute, found.cosine, found.argmax_agreement) == (None, None, None)


def test_an_output_without_rows_is_one_row() -> None:
    """A scalar is one row, and so are scores for all rows together."""
    scores = np.array([0.1, 0.9])
    assert measure_rows(scores, scores, 5).unequal.shape == (1, 2)
    assert measure_rows(scores, scores).unequal.shape == (2,)
    assert measure_rows(np.float32(1), np.float32(1), 5).unequal.shape == (1,)  # type: ignore[arg-type]


def test_the_largest_difference_is_of_all_outputs_and_pairs() -> None:
    """What only one side has, or has otherwise, is left out; without floats there is none."""
    one = {"y": np.array([1.0]), "label": np.array([3]), "z": np.ones(2), "more": np.ones(1)}
    other = {"y": np.array([1.5]), "label": np.array([9]), "z": np.ones(3)}
    found = measure_pairs([Pair(one, one), Pair(one, other)])
    assert found.keys() == {"y", "label", "z", "more"}
    assert largest(found.values()).max_absolute == 0.5
    assert largest(found.values()).max_relative == pytest.approx(1 / 3)
    assert largest([]).max_absolute == 0
