"""Conditions: their language, refused texts, and results for rows."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.errors import InferenceFailed
from cohort.pipelines import ConditionWrong, parse_condition
from cohort.tensors import Array

P = np.array([[0.1, 0.9], [0.5, 0.5], [0.8, 0.2]], np.float32)


def holds(text: str, *, by_rows: bool = True, **tensors: Array) -> Any:
    """Return the condition's result for tensors, whose names have `_` for `.`."""
    values = {name.replace("_", "."): array for name, array in tensors.items()}
    return parse_condition(text).holds(values, by_rows=by_rows).tolist()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("max(a.p) < 0.8", [False, True, False]),
        ("max(a.p) <= 0.5", [False, True, False]),
        ("max(a.p) > 0.8", [True, False, False]),
        ("min(a.p) >= 0.2", [False, True, True]),
        ("argmax(a.p) == 1", [True, False, False]),
        ("argmax(a.p) != 1", [False, True, True]),
        ("mean(a.p) > -1", [True, True, True]),
        ("sum(a.p) < 1.1 and not argmax(a.p) == 0", [True, False, False]),
        ("max(a.p) > 0.85 or min(a.p) > 0.3", [True, True, False]),
        ("0.45 < max(a.p) < 0.85", [False, True, True]),
        ("max('a.p') < 0.8", [False, True, False]),
        ("max(a.p) < -min(a.p) or max(a.p) == 0.5", [False, True, False]),
    ],
)
def test_what_it_says_of_each_row(text: str, wanted: list[bool]) -> None:
    """And, or, not, comparisons, chained comparisons and functions of a row give a bool per row."""
    assert holds(text, a_p=P) == wanted


def test_what_it_says_of_a_whole_request() -> None:
    """The condition has one answer for all numbers together."""
    assert holds("max(a.p) < 0.8", by_rows=False, a_p=P) == [False]
    assert holds("max(a.p) < 0.95 and argmax(a.p) == 1", by_rows=False, a_p=P) == [True]


@pytest.mark.parametrize(
    "dtype", [np.uint8, np.int64, np.float16, np.float64, np.bool_, ml_dtypes.bfloat16]
)
def test_all_datatypes_of_numbers(dtype: Any) -> None:
    """Numbers are compared in their own datatype: unsigned ones also have a negative."""
    assert holds("x > 0 and -x < 0", x=np.array([0, 1], dtype)) == [False, True]
    assert holds("sum(x) >= 1", x=np.array([[0, 0], [1, 1]], dtype)) == [False, True]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_number_is_rounded_to_the_tensor_it_is_compared_with(dtype: Any) -> None:
    """A score that is shown as 0.7 is at least 0.7, and not below it, as for a threshold."""
    x = np.array([0.7, 0.71, 0.69], dtype)
    assert holds("x >= 0.7", x=x) == [True, True, False]
    assert holds("max(x) < 0.7", x=x[:, None]) == [False, False, True]
    assert holds("-x > -0.7", x=x) == [False, False, True]
    assert holds("x < 1e300", x=x) == holds("x < 100000", x=x) == [True] * 3


def test_what_is_no_number_is_in_no_comparison() -> None:
    """NaN is neither less nor more."""
    assert holds("x < 1 or x >= 1", x=np.array([np.nan, 1], np.float32)) == [False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("max(x) <", "cannot be read"),
        ("class.p < 1", "cannot be read"),
        ("max(x)", "neither true nor false"),
        ("1 < 2", "names no tensor"),
        ("max(x) < 1 < y.z.w", "is not understood|is not a tensor"),
        ("median(x) < 1", "there is no function 'median'"),
        ("maxx(x) < 1", "did you mean 'max'"),
        ("max(x, y) < 1", "max needs exactly one tensor"),
        ("max() < 1", "max needs exactly one tensor"),
        ("max(x + 1) < 1", "is not a tensor"),
        ("max(x) in y", "compare by"),
        ("max(x) < True", "is not understood"),
        ("max(x) < 'y' + 1", "is not understood"),
        ("__import__('os').system('ls') < 1", "is not understood"),
        ("().__class__ < 1", "is not a tensor|is not understood"),
        ("(lambda: 1)() < x", "is not understood"),
        ("[x for x in y] == 1", "is not understood"),
        ("f'{x}' == 1", "is not understood"),
        ("(x := 1) < 2", "is not understood"),
        ("x ** 9 ** 9 ** 9 < 1", "is not understood"),
        ("max(x) < 1" + " " * 1000, "at most 1000 characters"),
        ("(" * 400 + "x < 1" + ")" * 400, "cannot be read"),
        ("not " * 240 + "x", "neither true nor false|nested"),
    ],
)
def test_what_it_refuses(text: str, message: str) -> None:
    """Everything outside the language is refused, and the error names the fault."""
    with pytest.raises(ConditionWrong, match=message):
        parse_condition(text)


def test_a_tensor_of_several_numbers_needs_a_function() -> None:
    """A row of several numbers needs a function, and a row without numbers has no result."""
    with pytest.raises(InferenceFailed, match=r"a\.p has 2 numbers .* max\(a\.p\)"):
        holds("a.p < 1", a_p=P)
    with pytest.raises(InferenceFailed, match="has no values"):
        holds("max(a.p) < 1", a_p=P[:, :0])
    with pytest.raises(InferenceFailed, match="has no rows"):
        holds("x < 1", x=np.array(1.0))
    assert holds("max(a.p) < 1", a_p=P[:0]) == []


@given(
    st.lists(st.lists(st.floats(-2, 2, width=32), min_size=3, max_size=3), max_size=6),
    st.sampled_from(["max(x) < 0.5", "argmax(x) == 1 or min(x) > -1", "not mean(x) <= sum(x)"]),
)
def test_a_row_among_others_is_a_row_alone(values: list[list[float]], text: str) -> None:
    """A row gives the same result alone as among other rows."""
    x = np.array(values, np.float32).reshape(len(values), 3)
    alone = [holds(text, x=x[row : row + 1])[0] for row in range(len(x))]
    assert holds(text, x=x) == alone
