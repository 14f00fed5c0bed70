"""Inputs as a model's metadata declares them."""

from __future__ import annotations

import json

import pytest

from cohort.session.declared_inputs import declared_inputs
from cohort.tensors import TensorSpec

BLOCK = TensorSpec("x", "FP32", ("N", 2))
CITY = TensorSpec("city", "BYTES", ("N", 1))


@pytest.mark.parametrize(
    "names", ["", "[", "{}", "7", '["a"]', '["a", "a"]', '["a", 1]', "[" * 100_000, "null"]
)
def test_names_that_do_not_fit_count_for_nothing(names: str) -> None:
    """The model serves as one without."""
    assert declared_inputs([BLOCK], {"feature_names": names}) == (BLOCK,)


@pytest.mark.parametrize("shape", [None, ("N",), ("N", None), ("N", 2, 1)])
def test_only_a_block_of_columns_has_names(shape: tuple[str | int | None, ...] | None) -> None:
    """There are as many names as columns; several inputs get no names."""
    spec = TensorSpec("x", "FP32", shape)
    assert declared_inputs([spec], {"feature_names": '["a", "b"]'}) == (spec,)
    assert declared_inputs([BLOCK, CITY], {"feature_names": '["a", "b"]'}) == (BLOCK, CITY)
    assert declared_inputs([BLOCK], {"feature_names": '["a", "b"]'})[0].columns == ("a", "b")


@pytest.mark.parametrize(
    ("datatype", "value", "fits"),
    [
        ("BYTES", "?", True), ("BYTES", "", True), ("BYTES", 1, False), ("FP32", 1, True),
        ("FP32", 1.5, True), ("FP32", "1", False), ("INT64", 1, True), ("INT64", 1.5, False),
        ("INT64", True, False), ("INT64", None, False), ("seq(tensor(float))", 1, False),
    ],
)  # fmt: skip
def test_a_missing_value_is_one_of_the_datatype(datatype: str, value: object, fits: bool) -> None:
    """Any other counts for nothing."""
    spec = TensorSpec("x", datatype, ("N",))
    (found,) = declared_inputs([spec], {"cohort.missing": json.dumps({"x": value, "y": 1})})
    assert found.missing == (value if fits else None)
    assert declared_inputs([spec], {"cohort.missing": "[]"}) == (spec,)
