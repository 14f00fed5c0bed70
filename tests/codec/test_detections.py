"""Objects in pictures, as answers in JSON have them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cohort.codec.detections import MAX_OBJECTS, detectors_of
from cohort.errors import DeadlineExceeded, InferenceFailed, InvalidInput
from cohort.tensors import DetectionSpec, TensorSpec

PLAIN = DetectionSpec("scores", "classes", "xyxy", "pixels", None, ("cat", "dog"), None, None)


def found(about: DetectionSpec, *outputs: Any, datatype: str = "FP32") -> Any:
    """The objects of outputs boxes, scores and classes."""
    names = ("boxes", "scores", "classes")[: len(outputs)]
    specs = [TensorSpec(name, datatype, None) for name in names]
    specs[0] = replace(specs[0], detections=about)
    (one,) = detectors_of(specs)
    arrays: Any = [np.asarray(value) for value in outputs]
    return [json.loads(text) for text in one.texts(arrays, lambda: None)]


def thing(score: float, *box: float, label: str | None = None) -> dict[str, Any]:
    named = dict(zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
    return {**({} if label is None else {"label": label}), "score": score, "box": named}


BOXES = np.array([[[1, 2, 3, 4], [5, 6, 7, 8]]], np.float32)
SCORES = np.array([[0.25, 0.5]], np.float32)
CLASSES = np.array([[1, 7]], np.int64)


def test_the_best_object_comes_first() -> None:
    """A class beyond the labels is called by its number."""
    assert found(PLAIN, BOXES, SCORES, CLASSES) == [
        [thing(0.5, 5, 6, 7, 8, label="7"), thing(0.25, 1, 2, 3, 4, label="dog")]
    ]


@pytest.mark.parametrize(
    ("form", "box"),
    [
        ("xyxy", [2, 3, 6, 9]),
        ("yxyx", [3, 2, 9, 6]),
        ("xywh", [2, 3, 4, 6]),
        ("cxcywh", [4, 6, 4, 6]),
    ],
)
def test_all_forms_are_answered_as_corners(form: str, box: list[int]) -> None:
    """Floats and integers are accepted; `size` converts pixels to parts of width and height."""
    for dtype in (np.float32, np.int64, np.float16, np.uint8, ml_dtypes.bfloat16):
        boxes = np.array([[box]], dtype)
        one = found(replace(PLAIN, form=form, classes=None, labels=()), boxes, SCORES[:, :1])
        assert one == [[thing(0.25, 2, 3, 6, 9)]]
        about = replace(PLAIN, form=form, classes=None, labels=(), size=(12, 8))
        parts = found(about, boxes, SCORES[:, :1])
        assert parts == [[thing(0.25, 0.25, 0.25, 0.75, 0.75)]]


def test_corners_of_small_integers_do_not_wrap() -> None:
    """UINT8 has no 260."""
    boxes = np.array([[[200, 10, 60, 10]]], np.uint8)
    about = replace(PLAIN, form="xywh", classes=None, labels=())
    assert found(about, boxes, SCORES[:, :1]) == [[thing(0.25, 200, 10, 260, 20)]]


def test_threshold_and_top_leave_out_the_others() -> None:
    """All may be left out; a score that equals the threshold stays."""
    about = replace(PLAIN, threshold=0.5)
    assert [one["score"] for one in found(about, BOXES, SCORES, CLASSES)[0]] == [0.5]
    assert found(replace(about, threshold=0.6), BOXES, SCORES, CLASSES) == [[]]
    assert len(found(replace(PLAIN, top=1), BOXES, SCORES, CLASSES)[0]) == 1
    scores = np.array([[np.nan, 0.5]], np.float32)
    assert [one["score"] for one in found(about, BOXES, scores, CLASSES)[0]] == [0.5]


def test_scores_may_have_a_column_for_each_class() -> None:
    """The best column counts; columns beyond the labels are ignored."""
    scores = np.array([[[0.1, 0.25, 0.9], [0.5, 0.2, 0.9]]], np.float32)
    about = replace(PLAIN, classes=None)
    assert found(about, BOXES, scores) == [
        [thing(0.5, 5, 6, 7, 8, label="cat"), thing(0.25, 1, 2, 3, 4, label="dog")]
    ]


def test_classes_may_have_a_column_for_each_class_or_be_text() -> None:
    """A classifier of each box gives such columns."""
    classes = np.array([[[0.1, 0.9], [0.8, 0.2]]], np.float32)
    assert [one["label"] for one in found(PLAIN, BOXES, SCORES, classes)[0]] == ["cat", "dog"]
    words = np.array([["a", b"b"]], np.object_)
    assert [one["label"] for one in found(PLAIN, BOXES, SCORES, words)[0]] == ["b", "a"]


def test_a_class_is_the_nearest_whole_number() -> None:
    """Classes that were computed may be a little below their number."""
    numbers = np.array([[0.9999999, -0.2]], np.float32)
    assert [one["label"] for one in found(PLAIN, BOXES, SCORES, numbers)[0]] == ["cat", "dog"]


def test_score_and_class_may_be_columns_of_the_boxes() -> None:
    """YOLO's exports have the form [pictures, boxes, 6]."""
    packed = np.concatenate([BOXES, SCORES[..., None], CLASSES[..., None]], -1, dtype=np.float32)
    assert found(replace(PLAIN, scores=4, classes=5), packed) == found(
        PLAIN, BOXES, SCORES, CLASSES
    )
    with pytest.raises(InferenceFailed, match="so there is not a column 6"):
        found(replace(PLAIN, scores=6, classes=None), packed)


def test_boxes_without_an_axis_of_pictures_are_of_one() -> None:
    """torchvision's detectors return such boxes."""
    alone = found(PLAIN, BOXES[0], SCORES[0], CLASSES[0])
    assert alone == found(PLAIN, BOXES, SCORES, CLASSES)


@pytest.mark.parametrize("shape", [(0, 2), (2, 0), (0, 0)])
def test_no_pictures_or_no_boxes(shape: tuple[int, int]) -> None:
    """An empty list for each picture."""
    empty = np.zeros((*shape, 4), np.float32), np.zeros(shape, np.float32)
    assert found(PLAIN, *empty, np.zeros(shape, np.int64)) == [[]] * shape[0]
    per_class = np.zeros((*shape, 2), np.float32)
    assert found(replace(PLAIN, classes=None), empty[0], per_class) == [[]] * shape[0]


def test_a_label_without_classes_is_that_of_all_objects() -> None:
    """A detector of one kind of things has such a label."""
    about = replace(PLAIN, classes=None, labels=("face",))
    assert {one["label"] for one in found(about, BOXES, SCORES)[0]} == {"face"}


@pytest.mark.parametrize(
    ("boxes", "scores", "message"),
    [
        (BOXES[..., :3], SCORES, r"shape \[1, 2, 3\], not \[pictures, boxes, 4\]"),
        (BOXES, SCORES[:, :1], r"shapes \[1, 2, 4\] and \[1, 1\], with other boxes"),
        (BOXES, SCORES[0, 0], "with other boxes"),
        (BOXES[0, 0], SCORES, "not "),
    ],
)
def test_outputs_that_do_not_fit_each_other(boxes: Any, scores: Any, message: str) -> None:
    """They are the model's fault, and named."""
    with pytest.raises(InferenceFailed, match=f"detections of output 'boxes': .*{message}"):
        found(PLAIN, boxes, scores, CLASSES)


def test_a_box_that_is_not_finite_is_refused() -> None:
    """A box with NaN or infinity is refused, unless its score is below the threshold."""
    boxes = BOXES.copy()
    boxes[0, 0, 0] = np.nan
    with pytest.raises(InferenceFailed, match="nan"):
        found(PLAIN, boxes, SCORES, CLASSES)
    assert len(found(replace(PLAIN, threshold=0.5), boxes, SCORES, CLASSES)[0]) == 1


def test_more_objects_than_a_response_has() -> None:
    """The caller may send fewer pictures; `top` counts."""
    count = MAX_OBJECTS + 1
    boxes, scores = np.zeros((1, count, 4), np.float32), np.zeros((1, count), np.float32)
    about = replace(PLAIN, classes=None)
    with pytest.raises(InvalidInput, match=f"{count} objects of output 'boxes' are more than"):
        found(about, boxes, scores)
    assert len(found(replace(about, top=1), boxes, scores)[0]) == 1


def test_writing_ends_where_nobody_waits() -> None:
    """Writing stops if its check raises, such as after the deadline."""
    specs = [replace(TensorSpec("boxes", "FP32", None), detections=PLAIN)]
    specs += [TensorSpec("scores", "FP32", None), TensorSpec("classes", "INT64", None)]
    (one,) = detectors_of(specs)

    def late() -> None:
        raise DeadlineExceeded(1)

    with pytest.raises(DeadlineExceeded):
        one.texts([BOXES, SCORES, CLASSES], late)
