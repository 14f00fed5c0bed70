"""Comparison of outputs for the same request: how far they differ, and which differences count."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cohort.comparing import (
    ROUNDING,
    SAME_DECISION,
    SAME_MODEL,
    Criterion,
    OutputDifference,
    Pair,
    Tolerance,
    compare,
    explain,
)
from cohort.tensors import BY_NAME, DATATYPES, Array, Datatype

NAN, INF = float("nan"), float("inf")
CRITERIA: tuple[Criterion, ...] = (SAME_MODEL, ROUNDING, SAME_DECISION)


def pair_of(datatype: str, expected: object, got: object) -> Pair:
    """Return a pair with one output, `y`."""
    dtype = BY_NAME[datatype].dtype
    return Pair({"y": np.array(expected, dtype)}, {"y": np.array(got, dtype)})


def one(pair: Pair, criterion: Criterion = SAME_DECISION) -> OutputDifference:
    """Return the difference in the only output of one request; the sentence must agree with it."""
    ((difference,),) = compare([pair], criterion)
    assert bool(explain(pair, criterion)) == difference.disagrees
    return difference


def disagrees(pair: Pair, criterion: Criterion) -> bool:
    return one(pair, criterion).disagrees


@pytest.mark.parametrize(
    ("expected", "got", "another", "largest", "relative"),
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
        ([[1.7e308]], [[-1.7e308]], True, INF, INF),
        (np.empty((0, 3)), np.empty((0, 3)), False, 0.0, 0.0),
        (np.empty((2, 0)), np.empty((2, 0)), False, 0.0, 0.0),
    ],
)
def test_scores_decide_by_argmax(
    expected: object, got: object, another: bool, largest: float, relative: float
) -> None:
    """Other numbers are only measured, unless a NaN or an infinity is on one side."""
    found = one(pair_of("FP64", expected, got))
    assert found.disagrees == another
    assert found.largest == pytest.approx(largest)
    assert found.relative == pytest.approx(relative)


def test_labels_and_text_must_be_the_same() -> None:
    """Any element that is not the same is a disagreement."""
    assert one(pair_of("INT64", [3, 4], [3, 4])) == ("y", False, 0.0, 0.0)
    assert one(pair_of("INT64", [3, 4], [3, 5])) == ("y", True, 1.0, 0.2)
    assert one(pair_of("INT64", [2**60], [2**60 + 1])).disagrees
    assert one(pair_of("INT4", [1], [2])).disagrees
    assert one(pair_of("BYTES", ["cat", "dog"], ["cat", "dog"])) == ("y", False, None, None)
    assert one(pair_of("BYTES", ["cat", "dog"], ["cat", "doe"])) == ("y", True, None, None)
    assert one(pair_of("BOOL", [True], [False])) == ("y", True, None, None)


def test_small_floats_are_compared_as_numbers() -> None:
    """This includes those that numpy knows only by ml_dtypes."""
    assert one(pair_of("BF16", [[0.5, 1.0]], [[2.0, 1.0]])) == ("y", True, 1.5, 0.75)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_other_shapes_kinds_and_names_disagree(criterion: Criterion) -> None:
    """The reason is given; outputs that only the other side has do not disagree."""
    expected = {"y": np.zeros((1, 2), np.float32)}
    other_shape = Pair(expected, {"y": np.zeros((1, 3), np.float32)})
    other_kind = Pair(expected, {"y": np.zeros((1, 2), np.int64)})
    assert "of shape [1, 3], expected float32 of shape [1, 2]" in explain(other_shape, criterion)
    assert "is int64" in explain(other_kind, criterion)
    assert explain(Pair(expected, {"z": expected["y"]}), criterion) == "output 'y' is missing"
    assert disagrees(other_shape, criterion)
    assert disagrees(other_kind, criterion)
    assert disagrees(Pair(expected, {"z": expected["y"]}), criterion)
    assert not disagrees(Pair(expected, {**expected, "z": np.zeros(1)}), criterion)


def test_a_shadow_may_have_another_datatype_of_the_same_kind() -> None:
    """A shadow may use FP16 instead of FP32; a published model does not change its own datatype."""
    floats = Pair({"y": np.ones((1, 2), "f4")}, {"y": np.ones((1, 2), "f2")})
    whole = Pair({"y": np.array([1], BY_NAME["INT4"].dtype)}, {"y": np.array([1], "i8")})
    for pair in (floats, whole):
        assert [disagrees(pair, criterion) for criterion in CRITERIA] == [True, True, False]
    assert disagrees(whole._replace(got={"y": np.array([2], "i8")}), SAME_DECISION)


def test_arrays_of_as_many_axes_as_numpy_has_are_compared() -> None:
    """There is none left for the pairs' own."""
    expected = np.arange(4, dtype="f4").reshape(2, *[1] * 62, 2)
    pair = Pair({"y": expected}, {"y": expected + np.float32(1)})
    assert not disagrees(Pair({"y": expected}, {"y": expected.copy()}), SAME_DECISION)
    assert disagrees(pair, Tolerance())
    assert "is off by 1" in explain(pair, Tolerance())


@pytest.mark.parametrize(
    ("expected", "got", "within"),
    [
        ([1, 2], [1, 2], True),
        ([1, 100], [1, 100.005], True),
        ([0, 1], [1e-6, 1], True),
        ([0, 1], [1e-3, 1], False),
        ([NAN, INF], [NAN, INF], True),
        ([3e38], [-3e38], False),
        ([], [], True),
    ],
)
def test_tolerance_is_of_each_number(expected: object, got: object, within: bool) -> None:
    """The tolerance is absolute, plus relative to the larger of the two."""
    assert disagrees(pair_of("FP32", expected, got), SAME_MODEL) is not within


def test_rounding_is_of_the_largest_number() -> None:
    """Small numbers next to a large one may change by more than themselves; less so in 32 bits."""
    pair = pair_of("FP32", [100, 0.1], [100, 0.9])
    assert not disagrees(pair, ROUNDING)
    assert disagrees(pair_of("FP32", [100, 0.1], [100, 1.2]), ROUNDING)
    assert not disagrees(pair_of("FP16", [100, 0.1], [100, 1.2]), ROUNDING)
    assert disagrees(pair_of("FP32", [INF, 0.1], [INF, 0.2]), ROUNDING)  # infinity sets no scale


@pytest.mark.parametrize(
    ("datatype", "expected", "got", "criterion", "says"),
    [
        ("FP32", [1, 2], [1, 2.5], Tolerance(1e-5, 0), "is off by 0.5 at [1], in 1 of 2 values"),
        ("FP32", [1, NAN], [1, 2.5], SAME_MODEL, "differs in NaN or infinity at [1]"),
        ("FP32", [1, 2], [1, 3], ROUNDING, "(tolerance 0.01 x the output's largest value)"),
        ("INT8", [1, 2], [1, 3], SAME_MODEL, "differs in 1 of 2 values"),
        ("BYTES", ["a"], ["b"], ROUNDING, "differs in 1 of 1 values"),
        ("FP32", [[1, 2]], [[2, 1]], SAME_DECISION, "has another argmax in 1 of 1 places"),
        ("FP32", 1, INF, SAME_DECISION, "differs in NaN or infinity at []"),
    ],
)
def test_sentence_says_where_and_how_far(
    datatype: str, expected: object, got: object, criterion: Criterion, says: str
) -> None:
    """The sentence helps a reader find the cause."""
    sentence = explain(pair_of(datatype, expected, got), criterion)
    assert sentence.startswith("output 'y' ")
    assert says in sentence


# --- For every criterion

floats = st.floats(width=32)
finite = st.floats(-(2.0**99), 2.0**99, width=32)
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


def two(elements: st.SearchStrategy[float]) -> st.SearchStrategy[Pair]:
    """Two arrays of one shape."""
    return shapes.flatmap(
        lambda shape: st.tuples(
            *[hnp.arrays(np.float32, shape, elements=elements, fill=st.nothing())] * 2
        )
    ).map(lambda arrays: Pair({"y": arrays[0]}, {"y": arrays[1]}))


@given(two(floats))
def test_difference_is_symmetric(pair: Pair) -> None:
    """It makes no difference which of the two is expected."""
    for criterion in CRITERIA:
        assert one(pair, criterion) == one(Pair(pair.got, pair.expected), criterion)


@given(two(floats))
def test_outputs_agree_with_themselves(pair: Pair) -> None:
    """NaN is equal to NaN, and infinity to itself."""
    for criterion in CRITERIA:
        assert one(Pair(pair.got, pair.got), criterion) == ("y", False, 0.0, 0.0)


@pytest.mark.parametrize("row", DATATYPES, ids=lambda row: row.name)
def test_every_datatype_agrees_with_itself(row: Datatype) -> None:
    """Each datatype has a verdict under each criterion."""
    values: Array = np.array(["1", "2"] if row.kind == "text" else [0.0, 1.0]).astype(row.dtype)
    other = values[::-1].copy()
    for criterion in CRITERIA:
        assert not disagrees(Pair({"y": values}, {"y": values.copy()}), criterion)
    assert disagrees(Pair({"y": values}, {"y": other}), SAME_MODEL)
    assert disagrees(Pair({"y": values}, {"y": other}), ROUNDING)


@given(two(floats))
def test_a_number_on_one_side_only_is_a_difference_for_all(pair: Pair) -> None:
    """Another infinity also differs: no tolerance is wide enough."""
    expected, got = pair.expected["y"], pair.got["y"]
    same = (expected == got) | (np.isnan(expected) & np.isnan(got))
    if (~same & ~(np.isfinite(expected) & np.isfinite(got))).any():
        assert all(disagrees(pair, criterion) for criterion in CRITERIA)


@given(two(st.integers(-3, 3).map(float)), st.sampled_from(["INT8", "INT64", "BOOL", "UINT4"]))
def test_all_criteria_say_the_same_of_what_must_be_equal(pair: Pair, datatype: str) -> None:
    """Integers and booleans must be equal under every criterion."""
    dtype = BY_NAME[datatype].dtype
    expected, got = (np.abs(side["y"]).astype(dtype) for side in pair)
    unequal = bool((expected != got).any())
    pair = Pair({"y": expected}, {"y": got})
    assert [disagrees(pair, criterion) for criterion in CRITERIA] == [unequal] * 3


@given(two(finite), st.floats(0, 1), st.floats(0, 1))
def test_a_wider_tolerance_allows_no_less(pair: Pair, narrow: float, wider: float) -> None:
    """A share of each number is less than the same share of the largest."""
    narrow, wide = sorted((narrow, wider))
    if not disagrees(pair, Tolerance(0, narrow)):
        assert not disagrees(pair, Tolerance(0, wide))
        assert not disagrees(pair, Tolerance(wide, narrow))
        assert not disagrees(pair, replace(ROUNDING, share=wide))


@given(two(st.floats(-100, 100, width=16)), st.integers(-20, 20))
def test_shares_do_not_depend_on_the_unit(pair: Pair, exponent: int) -> None:
    """The same numbers in thousandths get the same verdict, and are as far apart relatively."""
    scaled = Pair(*({"y": np.ldexp(np.asarray(side["y"], "f4"), exponent)} for side in pair))
    for criterion in (Tolerance(0, 1e-3), ROUNDING, SAME_DECISION):
        assert disagrees(pair, criterion) == disagrees(scaled, criterion)
    assert one(pair).relative == one(scaled).relative


@given(st.lists(st.lists(floats, min_size=6, max_size=6), min_size=2, max_size=6))
def test_pairs_compared_together_are_as_compared_alone(rows: list[list[float]]) -> None:
    """The results are equal, stacked or not, and in any order of shapes."""
    arrays = [np.array(row, np.float32).reshape(2, 3) for row in rows]
    pairs = [Pair({"y": a}, {"y": b}) for a, b in pairwise(arrays)]
    pairs += [Pair({"y": a[:1]}, {"y": b}) for a, b in pairwise(arrays)]
    pairs += [Pair({"y": a[0, 0]}, {"y": b[0, 0]}) for a, b in pairwise(arrays)]
    mixed = pairs[::2] + pairs[1::2]
    for criterion in CRITERIA:
        assert compare(mixed, criterion) == [compare([pair], criterion)[0] for pair in mixed]
