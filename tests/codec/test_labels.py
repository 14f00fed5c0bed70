"""Names of the best classes of each row."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cohort.codec.labels import LABELS_AT_ONCE, Labeller, chosen, labellers_of, read_top
from cohort.codec.ranking import SORTED_WHOLE, best_of
from cohort.errors import InvalidInput
from cohort.tensors import BY_NAME, TensorSpec

LABELS = ("a", "b", "c")


def labeller(named: int | None = 0, **more: Any) -> Labeller:
    spec = TensorSpec("p", "FP32", ("N", 3), classes=LABELS, named=named, **more)
    return Labeller(spec, LABELS, "p_labels")


def written(one: Labeller, values: Any, top: int = 0) -> Any:
    """Return the labels of each row, as written in JSON."""
    array: Any = np.array(values, np.float32)
    return [json.loads(text) for text in one.texts(array, top)]


def told(label: str, score: float) -> dict[str, Any]:
    return {"label": label, "score": score}


def test_the_best_one_is_an_object_and_several_are_a_list() -> None:
    """Best first; never more than there are classes."""
    rows = [[0.25, 0.5, 0.125], [1, 2, 3]]
    assert written(labeller(), rows) == [told("b", 0.5), told("c", 3)]
    assert written(labeller(), rows[:1], top=1) == [[told("b", 0.5)]]
    assert written(labeller(2), rows[:1]) == [[told("b", 0.5), told("a", 0.25)]]
    best = [told("b", 0.5), told("a", 0.25), told("c", 0.125)]
    assert written(labeller(2), rows[:1], top=9) == [best]


def test_equal_scores_come_by_index() -> None:
    """The same numbers therefore always have the same label."""
    assert written(labeller(), [[2, 2, 2]]) == [told("a", 2)]
    assert [one["label"] for one in written(labeller(), [[1, 2, 2]], top=3)[0]] == ["b", "c", "a"]


def test_nan_is_last() -> None:
    """NaN comes after minus infinity; JSON has neither, but a list of names does."""
    array: Any = np.array([[np.nan, -np.inf, 0], [np.nan, np.nan, -1]], np.float32)
    assert labeller().names(array, 3).tolist() == [["c", "b", "a"], ["c", "a", "b"]]
    assert labeller().names(array, 0).tolist() == ["c", "c"]


def test_a_threshold_leaves_out_the_others() -> None:
    """Each row's list is as long as its labels; `names` fills shorter rows with ""."""
    one = labeller(0, threshold=0.5)
    rows = [[0.5, 0.75, 0.25], [0.0, 0.0, 0.0]]
    assert written(one, rows) == [[told("b", 0.75), told("a", 0.5)], []]
    assert written(one, rows, top=1) == [[told("b", 0.75)], []]
    assert one.names(np.array(rows, np.float32), 0).tolist() == [["b", "a", ""], ["", "", ""]]


def test_more_axes_are_lists_in_lists() -> None:
    """The last axis has the classes, as for words of a sentence."""
    rows = [[[1, 0, 0], [0, 1, 0]], [[0, 0, 1], [1, 0, 0]]]
    labels = [[one["label"] for one in row] for row in written(labeller(), rows)]
    assert labels == [["a", "b"], ["c", "a"]]
    assert labeller().names(np.array(rows, np.float32), 2).shape == (2, 2, 2)
    assert labeller().shape((2, 2, 3), 2) == (2, 2, 2)


def test_a_list_without_rows_is_one_row() -> None:
    """A model may return `[10]`, for example."""
    assert written(labeller(), [0, 1, 0]) == [told("b", 1)]
    assert labeller().names(np.array([0, 1, 0], np.float32), 0).tolist() == ["b"]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0), (0, 2, 3), (2, 0, 3)])
@pytest.mark.parametrize("top", [0, 2])
def test_nothing_has_no_labels(shape: tuple[int, ...], top: int) -> None:
    """There are as many entries as rows, all equal."""
    array: Any = np.zeros(shape, np.float32)
    assert len(labeller().texts(array, top)) == shape[0]
    for text in labeller().texts(array, top):
        json.loads(text)
    assert labeller().names(array, top).shape == labeller().shape(shape, top)


def test_a_class_without_a_name_is_called_by_its_index() -> None:
    """This happens if a column was added and its label was not."""
    spec = TensorSpec("p", "FP32", ("N", None), classes=LABELS, named=0)
    assert written(Labeller(spec, LABELS, "l"), [[0, 0, 0, 0, 9]]) == [told("4", 9)]


def test_work_is_bounded() -> None:
    """Many rows of many labels, or of long ones, are refused before they are written."""
    array: Any = np.zeros((2**18, 3), np.float32)
    few: Any = np.zeros((2**17, 3), np.float32)
    with pytest.raises(InvalidInput, match="send fewer rows"):
        labeller().texts(np.zeros((2**20, 3), np.float32), 3)
    long = Labeller(labeller().spec, ["x" * 1000] * 3, "l")
    with pytest.raises(InvalidInput, match="the limit of 64 MiB per request"):
        long.names(few, 3)
    assert labeller().work(array, 1) > 100_000


def test_many_labels_are_those_of_few() -> None:
    """Writing them in parts does not change them."""
    rows: Any = np.random.default_rng(1).random((LABELS_AT_ONCE, 3)).astype(np.float32)
    for top in (0, 2):
        parts = [rows[at : at + 1000] for at in range(0, len(rows), 1000)]
        apart = [text for part in parts for text in labeller().texts(part, top)]
        assert labeller().texts(rows, top) == apart
    one = labeller(0, threshold=0.9)
    assert one.texts(rows, 0)[-1] == one.texts(rows[-1:], 0)[0]


def test_who_checks_may_end_it() -> None:
    """A caller's deadline may end the writing."""

    def end() -> None:
        raise InvalidInput("over")

    with pytest.raises(InvalidInput, match="over"):
        labeller().texts(np.zeros((2**18, 3), np.float32), 1, end)


@pytest.mark.parametrize("value", [0, -1, "x", "0", "-1", 1.5, True, [1], "1e3", "٣", None, ""])
def test_top_is_a_number_of_labels(value: Any) -> None:
    """Any other value is refused, and the error shows it."""
    with pytest.raises(InvalidInput, match=r"parameters\.top must be a whole number >= 1, got"):
        read_top("parameters.top", value)
    assert read_top("top", "3") == read_top("top", 3) == 3


def test_labels_of_the_model_are_for_outputs_with_as_many_columns() -> None:
    """They are written only on request, and their name is not one of the model's outputs."""
    specs = [
        TensorSpec("label", "INT64", ("N",)),
        TensorSpec("p", "FP32", ("N", 3)),
        TensorSpec("p_labels", "FP32", ("N", 7)),
        TensorSpec("text", "BYTES", ("N", 3)),
    ]
    made = labellers_of(specs, LABELS)
    assert [one and one.output for one in made] == [None, "p_labels_", None, None]
    assert chosen(made, [0, 1, 2], 0) == []
    ((position, _),) = chosen(made, [0, 1, 2], 2)
    assert position == 1
    with pytest.raises(InvalidInput, match="the requested outputs have no labels; only 'p' has"):
        chosen(made, [0], 2)
    with pytest.raises(InvalidInput, match=r"outputs: .*labels.*config\.yaml"):
        chosen(labellers_of(specs, ()), [0], 2)


kinds = st.sampled_from(
    ["FP32", "FP16", "BF16", "FP64", "INT64", "UINT64", "UINT8", "BOOL", "INT4"]
)


@given(kinds, st.integers(1, 4), st.integers(1, 9), st.data())
def test_the_best_are_those_of_a_stable_sort(
    datatype: str, rows: int, classes: int, data: st.DataObject
) -> None:
    """This holds for each datatype and its extremes."""
    row = BY_NAME[datatype]
    count = data.draw(st.integers(1, classes))
    if row.numpy_native:
        scores: Any = data.draw(arrays(row.dtype, (rows, classes)))
    else:
        scores = np.array(data.draw(arrays(np.int8, (rows, classes)))).astype(row.dtype)
    got = best_of(scores, row.kind, count)
    for places, values in zip(got.tolist(), scores, strict=True):
        numbers = [one.item() if row.numpy_native else float(one) for one in values]
        ordered = sorted(
            range(classes),
            key=lambda at: (
                numbers[at] != numbers[at],
                -numbers[at] if numbers[at] == numbers[at] else 0,
            ),
        )
        assert places == ordered[:count]


@pytest.mark.parametrize("count", [1, 2, 5, SORTED_WHOLE + 1])
def test_of_many_classes_only_some_are_sorted(count: int) -> None:
    """The result is the same: ties are ordered by index, and NaN is last."""
    random = np.random.default_rng(count)
    scores = random.integers(0, 50, (3, SORTED_WHOLE + 1)).astype(np.float32)
    scores[1, :-3] = np.nan
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(best_of(scores, "float", count), expected)
