"""Rows that two models get right, and what chance explains of the difference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.tensors import Array, Arrays, TensorSpec
from cohort_prepare.evaluating.accuracy import (
    MAX_EXACT,
    LabelCount,
    PairedAccuracy,
    find_decision,
    fit_labels,
    interval,
    sign_test,
)
from cohort_prepare.failures import Misused

SCORES = np.array([[0.9, 0.1], [0.2, 0.8]], np.float32)

counts = st.integers(0, 50)


def counted(labels: Array, outputs: Arrays, *specs: TensorSpec) -> PairedAccuracy:
    """Compare one model with itself."""
    count = LabelCount(labels, specs)
    count.add(0, len(labels), outputs, outputs)
    return count.total()


@given(counts, counts, counts, counts)
def test_accuracy_holds_together(both: int, lost: int, gained: int, neither: int) -> None:
    """Intervals hold the share; equal models differ by chance, whichever comes first."""
    found = PairedAccuracy(both, lost, gained, neither)
    low, high = interval(found.before, found.rows)
    assert 0 <= low <= found.before <= high <= 1 or not found.rows
    assert 0 < found.chance <= 1
    assert found.chance == PairedAccuracy(both, gained, lost, neither).chance
    assert PairedAccuracy(both, 1, 0, neither).chance == 1


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_sign_test_splits_all_outcomes(lost: int, gained: int) -> None:
    """The chances of at least `lost` and of fewer add up to 1."""
    fewer = sign_test(gained + 1, lost - 1) if lost else 0.0
    assert sign_test(lost, gained) + fewer == pytest.approx(1)


def test_the_sign_test_of_many_rows_continues_that_of_few() -> None:
    """The two formulas agree within a hundredth at the number of rows that separates them."""
    for lead in (0, 40, 90):
        exact = sign_test((MAX_EXACT + lead) // 2, (MAX_EXACT - lead) // 2)
        normal = sign_test((MAX_EXACT + lead) // 2 + 1, (MAX_EXACT - lead) // 2 + 1)
        assert normal == pytest.approx(exact, abs=0.01)


def test_answers_are_read_from_classes_or_else_scores() -> None:
    """An output with a class for each row comes first; otherwise the largest score decides."""
    truth = np.array(["no", "yes"], object)
    spec = TensorSpec("y", "FP32", (None, 2), ("no", "yes"))
    assert counted(truth, {"y": SCORES}, spec).both == 2
    assert counted(np.array([0, 0]), {"y": SCORES}).both == 1
    answered = np.array(["no", "no"], object)
    assert counted(truth, {"y": SCORES, "label": answered}, spec).both == 1


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.uint64, bool])
@pytest.mark.parametrize("answered", [np.int64, np.int32, bool, ml_dtypes.int4])
def test_a_class_is_the_same_in_every_datatype(dtype: type, answered: type) -> None:
    """Labels that numpy saved as floats or booleans are right where the model gives integers."""
    labels: Array = np.array([0, 1, 1]).astype(dtype)
    answers: Array = np.array([0, 1, 0]).astype(answered)
    assert counted(labels, {"y": answers}) == PairedAccuracy(both=2, neither=1)
    scores = np.eye(2, dtype=np.float32)[[0, 1, 0]]
    assert counted(labels, {"y": scores}) == PairedAccuracy(both=2, neither=1)


def test_scores_of_every_datatype_decide() -> None:
    """Datatypes that numpy does not know as floats decide as well."""
    for dtype in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2):
        assert counted(np.array([0, 1]), {"y": SCORES.astype(dtype)}).both == 2


def test_one_score_for_each_row_speaks_for_the_second_class() -> None:
    """It does above one half for probabilities and above zero for logits, with two classes only."""
    labels = np.array([0, 1])
    assert counted(labels, {"y": np.array([[0.4], [0.6]])}).both == 2
    assert counted(labels, {"y": np.array([[-3.0], [0.2]])}).both == 2
    with pytest.raises(Misused, match="remove --labels"):
        counted(np.array([0, 5]), {"y": np.array([[0.4], [0.6]])})


def test_equal_scores_are_the_first_class() -> None:
    """Both models use argmax, which takes the first of equal scores."""
    assert counted(np.array([0, 0, 0]), {"y": np.ones((3, 4), np.float32)}).both == 3


def test_labels_are_understood_once_for_all_batches() -> None:
    """A batch whose numbers could be names does not change what numbers mean in all others."""
    spec = TensorSpec("y", "FP32", (None, 3), (1, 2, 3))
    count = LabelCount(np.array([0, 1, 2]), [spec])
    for row in range(3):
        one: Arrays = {"y": np.eye(3, dtype=np.float32)[row : row + 1]}
        count.add(row, 1, one, one)
    assert count.total() == PairedAccuracy(both=3)


def test_a_model_without_an_answer_is_wrong() -> None:
    """It is wrong for rows that it refused, and if it lacks the output."""
    count = LabelCount(np.array([0, 0, 1, 1]), ())
    count.add(0, 2, {"y": SCORES}, None)
    count.add(2, 2, {"y": SCORES}, {"z": SCORES})
    assert count.total() == PairedAccuracy(lost=2, neither=2)


def test_labels_are_never_counted_for_other_rows() -> None:
    """More rows than labels are refused."""
    with pytest.raises(Misused, match="more rows than the 1 labels"):
        LabelCount(np.array([0]), ()).add(0, 2, {"y": SCORES}, {"y": SCORES})


def test_labels_that_are_no_classes_are_told() -> None:
    """NaN, infinity and numbers that no integer holds are refused, without a warning of numpy."""
    for odd in (np.nan, np.inf, 1e300, 0.5):
        with pytest.raises(Misused, match="one of the model's 2 classes"):
            fit_labels(np.array([0, odd]), 2)


def test_nothing_decides_where_nothing_is_a_class() -> None:
    """Embeddings and one number for each row do not decide without labels."""
    outputs: Arrays = {"embedding": 3 * SCORES, "price": SCORES[:, :1]}
    assert find_decision(outputs, 2, ()) is None
    found = find_decision({"probabilities": SCORES, **outputs}, 2, ())
    assert found is not None
    assert found.output == "probabilities"
