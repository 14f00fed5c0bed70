"""How far two answers lie apart."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.comparing import Answer, OutputDifference, Pair, compare
from app.tensors import Array, TensorSpec

NAN, INF = float("nan"), float("inf")


def one(datatype: str, ours: object, theirs: object) -> OutputDifference:
    """The difference in the only output of one request."""
    spec = TensorSpec("y", datatype, None)
    arrays: list[Array] = [np.array(value, spec.dtype) for value in (ours, theirs)]
    pair = Pair(Answer([spec], [arrays[0]]), Answer([spec], [arrays[1]]))
    ((difference,),) = compare([pair])
    return difference


@pytest.mark.parametrize(
    ("ours", "theirs", "disagrees", "largest", "relative"),
    [
        ([[0.1, 0.9]], [[0.2, 0.8]], False, 0.1, 0.5),
        ([[0.1, 0.9]], [[0.6, 0.4]], True, 0.5, 5 / 6),
        ([[0.1, 0.9], [0.9, 0.1]], [[0.1, 0.9], [0.1, 0.9]], True, 0.8, 8 / 9),
        ([[2.0]], [[3.0]], False, 1.0, 1 / 3),  # one score has no rival
        ([1.0, 5.0], [5.0, 1.0], False, 4.0, 0.8),  # a value per row: no scores
        ([[0.0, 0.0]], [[0.0, 0.0]], False, 0.0, 0.0),
        ([[INF, 1.0]], [[INF, 1.0]], False, 0.0, 0.0),
        ([[NAN]], [[NAN]], False, 0.0, 0.0),
        ([[NAN]], [[1.0]], True, INF, INF),
        ([[INF]], [[1.0]], True, INF, INF),
        ([[INF]], [[-INF]], True, INF, INF),
        (np.empty((0, 3)), np.empty((0, 3)), False, 0.0, 0.0),
        (np.empty((2, 0)), np.empty((2, 0)), False, 0.0, 0.0),
    ],
)
def test_floats_are_scores_where_they_have_rivals(
    ours: object, theirs: object, disagrees: bool, largest: float, relative: float
) -> None:
    """Scores disagree by argmax; other numbers are only measured, unless one side has none."""
    got = one("FP64", ours, theirs)
    assert got.disagrees == disagrees
    assert got.largest == pytest.approx(largest)
    assert got.relative == pytest.approx(relative)


def test_labels_and_text_must_be_the_same() -> None:
    """Any element that is not the same is a disagreement."""
    assert one("INT64", [3, 4], [3, 4]) == ("y", False, 0.0, 0.0)
    assert one("INT64", [3, 4], [3, 5]) == ("y", True, 1.0, 0.2)
    assert one("INT4", [1], [2]).disagrees
    assert one("BYTES", ["cat", "dog"], ["cat", "dog"]) == ("y", False, None, None)
    assert one("BYTES", ["cat", "dog"], ["cat", "doe"]) == ("y", True, None, None)
    assert one("BOOL", [True], [False]) == ("y", True, None, None)


def test_small_floats_are_compared_as_numbers() -> None:
    """Also those that numpy knows only by ml_dtypes."""
    got = one("BF16", [[0.5, 1.0]], [[2.0, 1.0]])
    assert got == ("y", True, 1.5, 0.75)


def test_other_shapes_kinds_and_names_disagree() -> None:
    """Datatypes of one kind do not: FP16 beside FP32 is what a shadow may be for."""
    x, half = TensorSpec("x", "FP32", None), TensorSpec("x", "FP16", None)
    label, other = TensorSpec("x", "INT64", None), TensorSpec("z", "FP32", None)
    ours = Answer([x], [np.zeros((1, 2), np.float32)])

    def disagrees(theirs: Answer) -> bool:
        return compare([Pair(ours, theirs)])[0][0].disagrees

    assert disagrees(Answer([x], [np.zeros((1, 3), np.float32)]))
    assert disagrees(Answer([label], [np.zeros((1, 2), np.int64)]))
    assert disagrees(Answer([other], [np.zeros((1, 2), np.float32)]))
    assert not disagrees(Answer([half], [np.zeros((1, 2), np.float16)]))


@given(st.lists(st.lists(st.floats(width=32), min_size=6, max_size=6), min_size=2, max_size=6))
def test_pairs_compared_together_are_as_compared_alone(rows: list[list[float]]) -> None:
    """Company changes nothing."""
    spec = TensorSpec("y", "FP32", None)
    arrays = [np.array(row, np.float32).reshape(2, 3) for row in rows]
    pairs = [Pair(Answer([spec], [a]), Answer([spec], [b])) for a, b in pairwise(arrays)]
    assert compare(pairs) == [compare([pair])[0] for pair in pairs]
