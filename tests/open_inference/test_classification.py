"""Scores to the best classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cohort.errors import InvalidInput
from cohort.open_inference.classification import ModelShape, classify, has_rows
from cohort.tensors import BY_NAME, TensorSpec


def best(
    datatype: str,
    values: Any,
    count: int = 2,
    labels: tuple[str, ...] = (),
    *,
    by_row: bool = False,
) -> Any:
    """Return the classes of an output of these values."""
    array = np.array(values).astype(BY_NAME[datatype].dtype)
    return classify(TensorSpec("y", datatype, None), array, count, labels, by_row=by_row).tolist()


@pytest.mark.parametrize(
    ("values", "count", "classes"),
    [
        pytest.param([[1, 2], [4, 3]], 1, [["2.0:1"], ["4.0:0"]], id="each row by itself"),
        pytest.param([[[1, 2], [4, 3]]], 2, [["4.0:2", "3.0:3"]], id="a row's elements are flat"),
        pytest.param([7, 8], 1, [["7.0:0"], ["8.0:0"]], id="one value a row"),
        pytest.param(7, 1, ["7.0:0"], id="a scalar has no rows"),
        pytest.param(np.zeros((0, 3)), 2, [], id="no rows"),
        pytest.param(np.zeros((2, 0)), 2, [[], []], id="no classes"),
    ],
)
def test_each_row_has_its_own_list(values: Any, count: int, classes: Any) -> None:
    """Triton's extension does so for a model whose axis 0 is rows."""
    assert best("FP32", values, count, by_row=True) == classes


@pytest.mark.parametrize(
    ("values", "count", "classes"),
    [
        pytest.param([1.1, 3.3, 0.5, 2.4], 2, ["3.3:1", "2.4:3"], id="best first"),
        pytest.param([[1, 2], [4, 3]], 2, ["4.0:2", "3.0:3"], id="all elements are flat"),
        pytest.param([1, 1, 2, 2], 4, ["2.0:2", "2.0:3", "1.0:0", "1.0:1"], id="equals by index"),
        pytest.param([1, 2], 9, ["2.0:1", "1.0:0"], id="no more than there are"),
        pytest.param([np.nan, -1], 2, ["-1.0:1", "nan:0"], id="NaN last"),
    ],
)
def test_without_rows_there_is_one_list(values: Any, count: int, classes: Any) -> None:
    """The highest scores first, of all that the output holds."""
    assert best("FP32", values, count) == classes


@pytest.mark.parametrize(
    ("inputs", "outputs", "rows"),
    [
        ([("N", 3)], [("N", 10)], True),
        ([(None, 3), ("N",)], [("M", 10), ("N",)], True),
        ([(1, 3, 224, 224)], [(1, 1000)], True),
        ([(1, 3)], [("N", 10)], True),
        ([("N", 3)], [None], True),
        ([(4, 3)], [(4, 10)], False),
        ([("N", 3)], [(1,)], False),
        ([("N", 3), (1, 3)], [("N", 10)], False),
        ([("N", 3)], [()], False),
        ([()], [()], False),
        ([None], [("N", 10)], False),
        ([], [("N", 10)], False),
    ],
)
def test_axis_0_is_rows_where_it_may_have_any_length_or_has_one(
    inputs: list[ModelShape], outputs: list[ModelShape], rows: bool
) -> None:
    """All tensors need such an axis; without axis 0, or with a fixed longer one, no rows exist."""
    assert has_rows(inputs, outputs) is rows


def test_labels_follow_the_index() -> None:
    """If the model names fewer classes than it scores, the rest have no label."""
    assert best("FP32", [1, 2, 3], 3, ("a", "b")) == ["3.0:2", "2.0:1:b", "1.0:0:a"]


@pytest.mark.parametrize(
    ("datatype", "values", "classes"),
    [
        ("INT64", [-(2**63), 2**63 - 1, 0], [f"{2**63 - 1}:1", "0:2"]),
        ("UINT8", [0, 255, 3], ["255:1", "3:2"]),
        ("FP16", [0.1, 0.2, 0.3], ["0.3:2", "0.2:1"]),
        ("BF16", [1, 2, 3], ["3:2", "2:1"]),
        ("BOOL", [False, True, True], ["True:1", "True:2"]),
        ("INT4", [-8, 7, 0], ["7:1", "0:2"]),
    ],
)
def test_every_ordered_datatype_has_best_classes(datatype: str, values: Any, classes: Any) -> None:
    """Values are compared in their own datatype, never in a narrower one."""
    assert best(datatype, values) == classes


def test_texts_have_none() -> None:
    """The output is named."""
    with pytest.raises(InvalidInput, match="'y' of BYTES"):
        best("BYTES", ["a", "b"])
