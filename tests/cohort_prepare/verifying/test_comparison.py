"""Outputs of two models, matched and measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cohort.tensors import Array, Arrays
from cohort_prepare.evaluating.generated import Case
from cohort_prepare.verifying.comparison import ModelAnswer, RunCases, Verification, compare_models
from cohort_prepare.verifying.tolerance import Allowed

ALLOWED = Allowed("FP32", 1e-4)

numbers = st.floats(width=32)
tables = arrays(np.float32, (4, 3), elements=numbers)


def gives(outputs: Arrays) -> RunCases:
    def run(cases: Sequence[Arrays]) -> list[ModelAnswer]:
        return [outputs for _ in cases]

    return run


def compared(expected: Arrays, got: Arrays) -> Verification:
    case = Case("some", {"x": np.zeros(4, np.float32)}, 4)
    return compare_models(gives(expected), gives(got), [case], ALLOWED)


@given(tables)
def test_equal_outputs_agree(table: Array) -> None:
    """They agree for any values, NaN and infinities included."""
    found = compared({"y": table}, {"y": table.copy()})
    assert (found.rows_off, found.agreeing) == (0, 1)
    assert found.outputs["y"].unequal == 0


@given(tables, tables)
def test_comparison_is_symmetric(one: Array, other: Array) -> None:
    """It does not matter which of the two is the source."""
    there, back = compared({"y": one}, {"y": other}), compared({"y": other}, {"y": one})
    assert there.rows_off == back.rows_off
    assert there.outputs["y"].max_absolute == back.outputs["y"].max_absolute
    assert there.outputs["y"].argmax_same == back.outputs["y"].argmax_same


@given(tables, tables, st.permutations(range(4)))
def test_order_of_rows_does_not_matter(one: Array, other: Array, order: list[int]) -> None:
    """The result stays if the order is the same on both sides."""
    straight = compared({"y": one}, {"y": other})
    moved = compared({"y": one[order]}, {"y": other[order]})
    assert straight.rows_off == moved.rows_off


def test_nan_on_one_side_is_a_difference() -> None:
    """It makes its row alone differ, by infinity."""
    table = np.ones((4, 3), np.float32)
    broken = table.copy()
    broken[2, 1] = np.nan
    found = compared({"y": table}, {"y": broken})
    assert found.rows_off == 1
    assert found.worst is not None
    assert found.worst[1] == 2
    assert found.outputs["y"].max_absolute == np.inf


def test_outputs_are_matched_by_name_then_by_shape() -> None:
    """Doubles match floats, and `[4]` matches `[4, 1]`; notes report both."""
    table = np.arange(12.0).reshape(4, 3)
    found = compared(
        {"scores": table, "label": np.arange(4)},
        {"variable": table.astype(np.float32), "label": np.arange(4).reshape(4, 1), "more": table},
    )
    assert found.rows_off == 0
    assert found.outputs["scores"].matched == "variable"
    told = " ".join(found.notes)
    assert "'more' exists only in the model" in told
    assert "shape [4, 1] in the model" in told


def test_missing_output_is_a_difference() -> None:
    """It is one even if all other outputs agree."""
    found = compared({"y": np.ones(4), "z": np.ones((4, 2))}, {"y": np.ones(4)})
    assert found.rows_off == 4
    assert "lacks the source's output 'z'" in " ".join(found.notes)


def test_small_rows_are_not_hidden_by_large_ones() -> None:
    """A difference counts against its own row, not against the largest number of the batch."""
    table = np.array([[1.0, 2], [1000, 2000], [1, 2], [1, 2]], np.float32)
    broken = table.copy()
    broken[0] *= 1.05
    assert compared({"y": table}, {"y": broken}).rows_off == 1


def test_small_columns_are_not_hidden_by_large_ones() -> None:
    """One target may be a million times as large as another, which is wrong."""
    table = np.array([[1e6, 1], [2e6, -1], [3e6, 2], [1e6, 1]], np.float32)
    broken = table * np.array([1, -1], np.float32)
    assert compared({"y": table}, {"y": broken}).rows_off == 4
    rounded = table + np.array([1, 1e-3], np.float32)
    assert compared({"y": table}, {"y": rounded}).rows_off == 0


def test_rounding_of_a_column_of_zeros_is_no_difference() -> None:
    """A forest that is certain of a class adds up shares in FP32, to 1.0000001 and the rest."""
    certain = np.array([[0.0, 1.0]] * 4, np.float32)
    summed = np.array([[-1.2e-7, 1.0000001]] * 4, np.float32)
    assert compared({"y": certain}, {"y": summed}).rows_off == 0


def test_quantized_scores_are_held_to_their_decision() -> None:
    """Numbers may differ, the argmax not, unless it was a tie in the source."""
    allowed = Allowed("INT8 or less", 0.1, by_decision=True)
    table = np.array([[0.9, 0.1], [0.52, 0.48], [0.2, 0.8], [0.9, 0.1]], np.float32)
    other = np.array([[0.7, 0.3], [0.49, 0.51], [0.6, 0.4], [0.9, 0.1]], np.float32)
    case = Case("some", {"x": np.zeros(4)}, 4)
    found = compare_models(gives({"y": table}), gives({"y": other}), [case], allowed)
    assert found.worst is not None
    assert (found.rows_off, found.worst[1]) == (1, 2)
