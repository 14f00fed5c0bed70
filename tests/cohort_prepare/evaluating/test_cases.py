"""Rows to run a model with: cut, repeated, and fitted to the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.session import open_session
from cohort.tensors import Array, Arrays, TensorSpec
from cohort_prepare.evaluating.cases import Cases, fit_cases, in_datatype, run_alone, run_named
from cohort_prepare.evaluating.generated import given_cases
from cohort_prepare.evaluating.graph_hints import GraphHints, Precision
from cohort_prepare.evaluating.pairing import match_outputs, resolve_ties
from cohort_prepare.failures import Misused
from cohort_prepare.verifying.tolerance import allowed_for
from tests import onnx_models


@given(st.integers(0, 20), st.integers(1, 8))
def test_batches_hold_every_row_once(rows: int, size: int) -> None:
    """Batches are in order, have their place, and have the wanted size, except the last."""
    cases = Cases({"x": np.arange(rows), "y": np.arange(2 * rows).reshape(rows, 2)})
    parts = list(cases.batches(size))
    assert [row for _, part in parts for row in part.inputs["x"].tolist()] == list(range(rows))
    assert all(part.inputs["x"][0] == start for start, part in parts)
    assert [part.rows for _, part in parts[:-1]] == [size] * len(parts[:-1])


def test_rows_that_a_fixed_number_leaves_over_are_not_run() -> None:
    """A model of two rows is run on four of five, and no other number of rows is tried."""
    cases = Cases({"x": np.arange(5)})
    fixed = list(given_cases(cases, fixed_rows=2))
    assert [(one.title, one.rows) for one in fixed] == [("rows 0 to 1", 2), ("rows 2 to 3", 2)]
    free = [(one.title, one.start) for one in given_cases(cases)]
    assert free == [("rows 0 to 4", 0), ("the first row alone", None), ("the first 2 rows", None)]


@given(st.integers(1, 5), st.integers(0, 12))
def test_rows_are_repeated_in_order(there: int, wanted: int) -> None:
    """If a file has fewer rows than needed, its rows are repeated in order."""
    repeated = Cases({"x": np.arange(there)}).repeated(wanted)["x"]
    assert repeated.tolist() == [row % there for row in range(wanted)]


def test_no_rows_are_not_repeated() -> None:
    """Without rows the model has no input to run with."""
    with pytest.raises(Misused, match="no rows"):
        Cases({"x": np.zeros((0, 3))}).repeated(2)


@pytest.mark.parametrize(
    "inputs",
    [{}, {"x": np.float32(1)}, {"x": np.ones(3), "y": np.ones(2)}, {"x": np.ones(3), "y": 1.0}],
)
def test_inputs_without_common_rows_are_one_run(inputs: dict[str, Array]) -> None:
    """Inputs without a common number of rows are one run, and are never cut."""
    cases = Cases({name: np.asarray(value) for name, value in inputs.items()})
    assert (cases.by_row, cases.rows) == (False, 1)
    assert list(cases.batches(1)) == [(0, cases)]


def test_outputs_without_rows_stay_whole() -> None:
    """A part of the rows has a scalar, and a vector of another length, as they are."""
    cases = Cases({"x": np.arange(4)}, {"y": np.arange(4), "sum": np.array(6), "z": np.ones(3)})
    part = cases.part(1, 3)
    assert part.outputs["y"].tolist() == [1, 2]
    assert (part.outputs["sum"].shape, part.outputs["z"].shape) == ((), (3,))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4))
def test_whole_numbers_never_become_others(values: list[int]) -> None:
    """In a narrower datatype they stay equal, or they keep their datatype."""
    for dtype in (np.int32, np.uint8, np.uint64):
        cast = in_datatype(np.array(values, np.int64), np.dtype(dtype))
        assert cast.tolist() == values


def test_floats_are_rounded_and_never_become_infinite() -> None:
    """NaN and infinities stay what they are; a number out of range keeps the datatype."""
    half = np.dtype(np.float16)
    assert in_datatype(np.array([0.1, np.nan, np.inf]), half).dtype == half
    assert in_datatype(np.array([70000.0]), half).dtype == np.float64
    assert in_datatype(np.array([0.5]), np.dtype(np.int64)).dtype == np.float64
    assert in_datatype(np.array(["a"], object), half).dtype == object


def test_an_input_out_of_range_is_told(tmp_path: Path) -> None:
    """It does not wrap around to another row of a table."""
    specs = [TensorSpec("ids", "INT32", (None,))]
    fitted = fit_cases(Cases({"ids": np.array([5])}), specs, tmp_path / "rows.npz")
    assert fitted.inputs["ids"].dtype == np.int32
    with pytest.raises(Misused, match="'ids' is INT32, got int64"):
        fit_cases(Cases({"ids": np.array([2**32 + 5])}), specs, tmp_path / "rows.npz")


def test_outputs_that_overflow_are_not_made_to_agree() -> None:
    """A label beyond INT32, and a number beyond float16, are not what they wrap or round to."""
    comparable, _ = resolve_ties(
        {"label": np.array([2**32 + 5])}, {"label": np.array([5], np.int32)}
    )
    assert comparable["label"].tolist() == [2**32 + 5]
    (pair,) = match_outputs({"y": np.array([7e4])}, {"y": np.array([np.inf], np.float16)}).pairs
    assert pair.comparable
    assert pair.expected.tolist() == [7e4]


def test_rows_run_alone_are_joined(tmp_path: Path) -> None:
    """They are those that a run of all gives, where rows do not influence each other."""
    session = open_session(onnx_models.save(onnx_models.times(2.0), tmp_path / "model.onnx"))
    inputs: Arrays = {"x": np.arange(12, dtype=np.float32).reshape(4, 3)}
    np.testing.assert_array_equal(run_alone(session, inputs)["y"], run_named(session, inputs)["y"])


@pytest.mark.parametrize(
    ("operators", "datatypes", "precision"),
    [
        ({"MatMul"}, {1}, "float32"),
        ({"TreeEnsemble", "Scaler"}, {1}, "trees"),
        ({"MatMul", "Cast"}, {1, 10}, "float16"),
        ({"MatMul"}, {10, 16}, "bfloat16"),
        ({"MatMul", "DequantizeLinear"}, {1, 3}, "quantized"),
        ({"DynamicQuantizeLSTM"}, {16}, "quantized"),
        ({"QLinearAdd"}, set(), "quantized"),
    ],
)
def test_the_coarsest_arithmetic_decides(
    operators: set[str], datatypes: set[int], precision: Precision
) -> None:
    """`verify` and a manifest use the same rule; weights alone may be quantized."""
    hints = GraphHints({}, frozenset(operators), frozenset(datatypes))
    assert hints.precision == precision
    assert allowed_for(hints, share=0.5).share == 0.5


def test_outputs_in_fp16_are_rounded_as_such() -> None:
    """FP16 outputs decide, unless the model computes in coarser arithmetic."""
    outputs = [TensorSpec("y", "FP16", (None,))]
    assert allowed_for(GraphHints(), outputs).computation == "FP16"
    coarser = GraphHints({}, frozenset({"QLinearAdd"}))
    assert allowed_for(coarser, outputs).by_decision
