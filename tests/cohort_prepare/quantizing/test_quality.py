"""Distances of outputs from those of the original."""

from __future__ import annotations

import numpy as np
import pytest

from cohort.tensors import Arrays, TensorSpec
from cohort_prepare.evaluating.accuracy import PairedAccuracy
from cohort_prepare.failures import Misused
from cohort_prepare.quantizing.quality import QualityTotals

SCORES = [TensorSpec("scores", "FP32", (None, 2))]
BEFORE = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]], np.float32)
AFTER = np.array([[0.8, 0.2], [0.4, 0.6], [0.2, 0.8], [0.3, 0.7]], np.float32)


def test_rows_are_counted_by_who_was_right() -> None:
    """In two batches one row is right twice, one lost, one gained and one wrong twice."""
    totals = QualityTotals(SCORES, np.array([0, 0, 0, 1]))
    totals.add({"scores": BEFORE[:3]}, {"scores": AFTER[:3]})
    totals.add({"scores": BEFORE[3:]}, {"scores": AFTER[3:]})
    quality = totals.quality()
    assert quality.labels == PairedAccuracy(both=1, lost=1, gained=1, neither=1)
    assert (quality.rows, quality.changed, quality.decision) == (4, 2, "scores")
    assert quality.max_absolute == pytest.approx(0.4)
    assert 0.8 < quality.cosine < 1.0


def test_probabilities_decide_and_embeddings_do_not() -> None:
    """The largest number is a decision without labels only if the numbers add up to one."""
    totals = QualityTotals(SCORES)
    totals.add({"scores": BEFORE}, {"scores": AFTER})
    assert (totals.quality().decision, totals.quality().changed) == ("scores", 2)
    totals = QualityTotals(SCORES)
    totals.add({"scores": 2 * BEFORE}, {"scores": 2 * AFTER})
    assert totals.quality().decision == ""


def test_labels_of_classes_by_name_are_compared_by_name() -> None:
    """The output's columns are named, and so are the labels."""
    specs = [TensorSpec("scores", "FP32", (None, 2), ("cat", "dog"))]
    totals = QualityTotals(specs, np.array(["cat", "cat", "dog", "dog"], object))
    totals.add({"scores": BEFORE}, {"scores": BEFORE})
    assert totals.quality().labels == PairedAccuracy(both=3, neither=1)


def test_nan_makes_outputs_unusable() -> None:
    """The output is named."""
    totals = QualityTotals(SCORES)
    totals.add({"scores": BEFORE}, {"scores": BEFORE * np.nan})
    assert "'scores' differs in NaN" in totals.quality().broken


def test_a_shape_of_their_own_makes_outputs_unusable() -> None:
    """A missing output makes them unusable as well."""
    several: tuple[Arrays, ...] = ({"scores": BEFORE[:, :1]}, {})
    for got in several:
        totals = QualityTotals(SCORES)
        totals.add({"scores": BEFORE}, got)
        assert "output 'scores' is" in totals.quality().broken


def test_single_numbers_are_compared_as_a_column() -> None:
    """Prices that have little to do with the original's are not alike since both are positive."""
    totals = QualityTotals([TensorSpec("price", "FP32", (None, 1))])
    for rows in (slice(0, 2), slice(2, 4)):
        totals.add({"price": BEFORE[rows, :1]}, {"price": AFTER[rows][::-1, :1] ** 3})
    assert totals.quality().cosine < 0.9


def test_the_output_that_is_furthest_off_counts() -> None:
    """One that keeps its direction does not make up for another; labels have no distance."""
    outputs = {"one": BEFORE, "other": BEFORE, "label": np.array([7, 7, 7, 7])}
    totals = QualityTotals([])
    totals.add(outputs, {**outputs, "other": -BEFORE, "label": np.array([7, 7, 7, 0])})
    quality = totals.quality()
    assert (quality.cosine, quality.least_cosine) == (-1, -1)
    assert quality.max_absolute == pytest.approx(1.8)
    assert (quality.decision, quality.changed) == ("label", 1)


def test_labels_that_do_not_go_with_the_rows_are_said() -> None:
    """There are too few or too many, or the model has no classes."""
    totals = QualityTotals(SCORES, np.array([0, 1]))
    with pytest.raises(Misused, match="more rows than the 2 labels"):
        totals.add({"scores": BEFORE}, {"scores": AFTER})
    totals = QualityTotals(SCORES, np.zeros(9, np.int64))
    totals.add({"scores": BEFORE}, {"scores": AFTER})
    with pytest.raises(Misused, match="9 labels for 4 rows"):
        totals.quality()
    totals = QualityTotals([TensorSpec("y", "FP32", (None, 1))], np.arange(4))
    with pytest.raises(Misused, match="remove --labels"):
        totals.add({"y": BEFORE[:, :1]}, {"y": AFTER[:, :1]})
