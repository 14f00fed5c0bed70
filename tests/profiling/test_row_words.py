"""Descriptions of the proof about rows."""

from __future__ import annotations

import pytest

from cohort.profiling import row_advice, row_places
from cohort.row_independence import OutputRows, RowKind, RowVerdict


def test_what_is_along_axis_0_is_not_worth_a_word() -> None:
    """Without a proof nothing is listed either."""
    proven = RowVerdict(RowKind.PROVEN, inputs={"x": 0}, outputs={"y": OutputRows(0)})
    assert list(row_places(proven)) == []
    refuted = RowVerdict(RowKind.REFUTED, "Sum 'y'", "it adds up", {"x": 1})
    assert list(row_places(refuted)) == []


def test_each_other_place_of_rows_is_named() -> None:
    """Inputs, outputs, shared tensors and the sizes that must be equal are named."""
    shared = RowVerdict(
        RowKind.SHARED,
        inputs={"x": 1, "rate": None, "z": 0},
        outputs={"y": OutputRows(0, 2), "seen": None, "h": OutputRows(1)},
        equal_sizes=True,
    )
    assert list(row_places(shared)) == [
        "input 'x': rows along axis 1",
        "input 'rate': equal in all requests of a run",
        "output 'y': rows along axis 0, several entries each",
        "output 'seen': the same for all requests of a run",
        "output 'h': rows along axis 1",
        "requests share a run if sizes with one name are equal",
    ]


@pytest.mark.parametrize(
    ("verdict", "advice"),
    [
        (RowVerdict(RowKind.PROVEN), ""),
        (RowVerdict(RowKind.SHARED), ""),
        (RowVerdict(RowKind.REFUTED, "DynamicQuantizeLinear 'q'"), "quantize statically"),
        (RowVerdict(RowKind.REFUTED, "com.microsoft.DynamicQuantizeLSTM 'q'"), "statically"),
        (RowVerdict(RowKind.REFUTED, "ReduceMax 'low'"), "without this node"),
        (RowVerdict(RowKind.UNKNOWN, "tests.Own 'a'"), "batching.trust"),
        (RowVerdict(RowKind.RANDOM, "Dropout 'd'"), "for inference"),
        (RowVerdict(RowKind.FIXED), "open first dimension"),
    ],
)
def test_what_to_do_goes_by_the_verdict(verdict: RowVerdict, advice: str) -> None:
    """Nothing where requests share runs."""
    assert advice in row_advice(verdict)
    assert bool(row_advice(verdict)) == bool(advice)


def test_an_example_is_asked_for_where_sizes_may_decide() -> None:
    """Sizes may decide in a branch, if trust would not help."""
    by_branch = RowVerdict(RowKind.REFUTED, "ReduceMax 'low'", inputs={"x": 0}, by_request=True)
    assert row_advice(by_branch).startswith("give an `example`")
    elsewhere = RowVerdict(RowKind.UNKNOWN, "If 'a'", inputs={"x": 0, "state": 1})
    assert row_advice(elsewhere).startswith("give an `example`")
    assert "trust" not in row_advice(elsewhere)
