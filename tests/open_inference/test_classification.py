"""Scores to the best classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.errors import InvalidInput
from app.open_inference.classification import classify
from app.tensors import BY_NAME, TensorSpec


def best(datatype: str, values: Any, count: int = 2, labels: tuple[str, ...] = ()) -> Any:
    """The classes of an output of these values."""
    array = np.array(values).astype(BY_NAME[datatype].dtype)
    return classify(TensorSpec("y", datatype, None), array, count, labels).tolist()


@pytest.mark.parametrize(
    ("values", "count", "classes"),
    [
        pytest.param([1.1, 3.3, 0.5, 2.4], 2, ["3.3:1", "2.4:3"], id="one row, best first"),
        pytest.param([[1, 2], [4, 3]], 1, [["2.0:1"], ["4.0:0"]], id="each row by itself"),
        pytest.param([[[1, 2], [4, 3]]], 2, [["4.0:2", "3.0:3"]], id="a row's elements are flat"),
        pytest.param([1, 1, 2, 2], 4, ["2.0:2", "2.0:3", "1.0:0", "1.0:1"], id="equals by index"),
        pytest.param([1, 2], 9, ["2.0:1", "1.0:0"], id="no more than there are"),
        pytest.param([np.nan, -1], 2, ["-1.0:1", "nan:0"], id="NaN last"),
        pytest.param(7, 1, ["7.0:0"], id="a scalar is one class"),
        pytest.param(np.zeros((0, 3)), 2, [], id="no rows"),
        pytest.param(np.zeros((2, 0)), 2, [[], []], id="no classes"),
    ],
)
def test_the_highest_scores_come_first(values: Any, count: int, classes: Any) -> None:
    """As Triton's extension says, one list for each row."""
    assert best("FP32", values, count) == classes


def test_labels_follow_the_index() -> None:
    """Where the model names fewer classes than it scores, the rest go without."""
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
    """Compared as what they are, none of them through a narrower one."""
    assert best(datatype, values) == classes


def test_texts_have_none() -> None:
    """The output is named."""
    with pytest.raises(InvalidInput, match="'y' of BYTES"):
        best("BYTES", ["a", "b"])
